//! Running programs in the workspace's root, saying what is run.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// How the variables begin by which cargo describes the package it runs.
const PACKAGE_VARIABLES: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// What signs a release. Nothing that is run has a use for it, and build scripts are other people's.
pub(crate) const SECRETS: [&str; 5] = [
    "MLXCEL_MINISIGN_KEY_FILE",
    "MLXCEL_MINISIGN_PASSWORD",
    "MLXCEL_SIGN_PKCS12",
    "MLXCEL_SIGN_PASSWORD_FILE",
    "MLXCEL_SIGN_TIMESTAMP_URL",
];

/// A variable that is set to something.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Takes out of the environment what no program that is run may see.
pub(crate) fn without_secrets(command: &mut Command) -> &mut Command {
    for name in SECRETS {
        command.env_remove(name);
    }
    command
}

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable when it runs this program; the constant serves when it is run by hand.
    let here =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map_or(here.clone(), Path::to_owned)
}

/// Where chores keep what they install: `target/NAME`.
pub(crate) fn target_folder(name: &str) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |folder| root().join(folder))
        .join(name)
}

/// The cargo that runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    // `cargo run` describes this package in the environment. Build scripts look at that, so passing it on would
    // have dependencies built again for every chore.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| PACKAGE_VARIABLES.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(name);
        }
    }
    command
}

/// The command as one would type it.
pub(crate) fn words(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Says what is run, runs it, and fails when it fails.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let line = words(&command);
    eprintln!("xtask: {line}");
    let status = without_secrets(&mut command).status().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` failed ({status})");
    Ok(())
}
