//! `cargo xtask check`: formatting, lints, tidiness, and the licences, duplicates and sources of dependencies.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Result, bail};

use crate::{shell, tidy};

/// Held back by hand, so that a new release cannot turn the check red on a day when nothing changed.
const DENY_VERSION: &str = "0.20.2";

type Check = fn() -> Result<()>;

/// Runs all checks, and fails in the end if any did.
pub(crate) fn run() -> Result<()> {
    let checks: [(&str, Check); 4] =
        [("formatting", formatting), ("tidy", tidy::run), ("clippy", clippy), ("dependencies", dependencies)];
    let mut failed = Vec::new();
    for (name, check) in checks {
        if let Err(error) = check() {
            eprintln!("xtask: {name}: {error:#}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        eprintln!("xtask: all checks passed");
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}

fn formatting() -> Result<()> {
    shell::run(shell::cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    shell::run(shell::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn dependencies() -> Result<()> {
    let mut command = Command::new(cargo_deny()?);
    command.current_dir(shell::root()).args(["--all-features", "check", "bans", "licenses", "sources"]);
    shell::run(command)
}

/// The pinned cargo-deny: the machine's own if it is that version, else one installed below `target`.
fn cargo_deny() -> Result<PathBuf> {
    let folder = shell::target_folder("tools");
    let own = folder.join("bin").join(if cfg!(windows) { "cargo-deny.exe" } else { "cargo-deny" });
    if let Some(present) = [PathBuf::from("cargo-deny"), own.clone()].into_iter().find(is_pinned) {
        return Ok(present);
    }
    eprintln!("xtask: installing cargo-deny {DENY_VERSION} into {}", folder.display());
    let mut command =
        shell::cargo(&["install", "--locked", "--quiet", "cargo-deny", "--version", DENY_VERSION]);
    command.arg("--root").arg(&folder);
    // It runs for a second or two; optimising it would take minutes.
    command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_LTO", "off");
    shell::run(command)?;
    Ok(own)
}

fn is_pinned(program: &PathBuf) -> bool {
    let output = Command::new(program).arg("--version").stderr(Stdio::null()).output();
    output.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).trim() == format!("cargo-deny {DENY_VERSION}")
    })
}
