//! `cargo xtask golden`: runs the script that makes golden fixtures, in a Python environment of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::shell;

/// Makes the fixtures of the named families.
pub(crate) fn run(families: &[String]) -> Result<()> {
    let scripts = shell::root().join("xtask/golden");
    let python = environment(&scripts.join("requirements.txt"))?;
    let mut command = Command::new(python);
    command.current_dir(shell::root()).arg(scripts.join("golden.py")).args(families);
    shell::run(command)
}

/// The Python of an environment with the pinned requirements, made on first use and when they change.
fn environment(requirements: &Path) -> Result<PathBuf> {
    let folder = shell::target_folder("golden-venv");
    let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let wanted = fs::read(requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    // Written last, so an installation that broke off is begun again.
    let installed = folder.join("installed-requirements.txt");
    if python.exists() && fs::read(&installed).is_ok_and(|text| text == wanted) {
        return Ok(python);
    }
    let mut make = Command::new(if cfg!(windows) { "py" } else { "python3" });
    make.args(["-m", "venv", "--clear"]).arg(&folder);
    shell::run(make)?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements);
    shell::run(install)?;
    fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(python)
}
