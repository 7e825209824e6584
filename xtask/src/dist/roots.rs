//! Installing packages where nothing of this project is: a Debian made for it, an empty environment of Python, Wine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Row, machine::Machine, targets::Target, tools};
use crate::shell;

/// The Debian that packages are installed in: the one with the oldest C library that is still cared for.
const SUITE: &str = "bookworm";

/// Installs a package and runs what it installed; says in the row what happened, and returns whether nothing failed.
pub(crate) fn install(target: &Target, out: &Path, row: &mut Row) -> bool {
    let file = out.join(&row.name);
    let (done, what) = match file.extension().and_then(|e| e.to_str()) {
        _ if row.made.is_none() => return true,
        Some("deb") if target.is_host() => (debian(&file), "installed in a clean root, --version, purged"),
        Some("whl") if target.is_host() => (wheel(&file), "installed in an empty environment, --version"),
        Some("msi") => {
            let done = Machine::find(target).and_then(|machine| windows(&machine, &file));
            (done, "installed, run from the path and removed under Wine")
        }
        _ => return true,
    };
    match done {
        Ok(()) => row.ran.push(what.to_string()),
        Err(error) if tools::is_lack(&error) => row.ran.push(format!("not run: {error:#}")),
        Err(error) => row.ran.push(format!("FAILED: {error:#}")),
    }
    !row.ran.iter().any(|what| what.starts_with("FAILED"))
}

fn wheel(file: &Path) -> Result<()> {
    let folder = shell::target_folder("dist-smoke/wheel");
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&folder);
    tools::output(&mut make)?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]).arg(file);
    tools::output(&mut pip)?;
    for program in super::PROGRAMS {
        version(&mut Command::new(folder.join("bin").join(program)))?;
    }
    ensure!(folder.join("lib/mlxcel/libmlxcel_mlx.so").is_file(), "the wheel brought no shim");
    Ok(())
}

fn windows(machine: &Machine, file: &Path) -> Result<()> {
    let installer = |verb: &str| {
        let mut command = machine.command(Path::new("msiexec"));
        command.args([verb, &machine.path(file), "/qn"]);
        command
    };
    tools::output(&mut installer("/i"))?;
    let ran: Result<()> = super::PROGRAMS.iter().try_for_each(|program| {
        let mut command = machine.command(Path::new("cmd"));
        version(command.args(["/c", program]))
    });
    tools::output(&mut installer("/x"))?;
    ran?;
    // Wine's cmd ends well even where there is no such program.
    let mut gone = machine.command(Path::new("cmd"));
    let said = gone.args(["/c", "mlxcel", "--version"]).output()?.stdout;
    ensure!(
        !String::from_utf8_lossy(&said).contains(env!("CARGO_PKG_VERSION")),
        "it stays when it is removed"
    );
    Ok(())
}

fn debian(file: &Path) -> Result<()> {
    let root = clean_root()?;
    fs::copy(file, root.join("mlxcel.deb"))?;
    let inside = |words: &[&str]| {
        let mut command = Command::new("chroot");
        command.arg(&root).args(words).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
        command
    };
    tools::output(&mut inside(&["dpkg", "--install", "/mlxcel.deb"]))?;
    for program in super::PROGRAMS {
        version(&mut inside(&[program]))?;
    }
    ensure!(root.join("usr/lib/mlxcel/libmlxcel_mlx.so").is_file(), "the package brought no shim");
    tools::output(&mut inside(&["dpkg", "--purge", "mlxcel"]))?;
    ensure!(!root.join("usr/bin/mlxcel").exists(), "the package stays when it is removed");
    Ok(())
}

/// A Debian of nothing but what it needs, made once.
fn clean_root() -> Result<PathBuf> {
    let root = shell::target_folder("cross").join(format!("root-{SUITE}"));
    if root.join("usr/bin/dpkg").is_file() && !root.join("debootstrap").exists() {
        return Ok(root);
    }
    // It may lie where only root looks for programs.
    let program = tools::find("/usr/sbin/debootstrap").map_or_else(|| tools::need("debootstrap"), Ok)?;
    if tools::output(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!(tools::Lacking("only root can make a clean root".to_string()));
    }
    let mirror = super::toolchain::mirror().context("a clean root comes from a mirror of Debian")?;
    let mut make = Command::new(program);
    make.args(["--variant=minbase", SUITE]).arg(&root).arg(mirror);
    shell::run(make)?;
    Ok(root)
}

fn version(command: &mut Command) -> Result<()> {
    let said = tools::output(command.arg("--version"))?;
    ensure!(said.contains(env!("CARGO_PKG_VERSION")), "it said {said}");
    Ok(())
}
