//! Python environments of the chores, below `target/`, each with pinned packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::shell;

/// The Python of the environment `target/NAME` with the pinned requirements, made on first use and when they change.
pub(crate) fn environment(name: &str, requirements: &Path) -> Result<PathBuf> {
    let folder = shell::target_folder(name);
    let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let wanted = fs::read(requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    // Written last, so an installation that broke off is begun again.
    let installed = folder.join("installed-requirements.txt");
    if python.exists() && fs::read(&installed).is_ok_and(|text| text == wanted) {
        return Ok(python);
    }
    let mut make = Command::new(if cfg!(windows) { "py" } else { "python3" });
    make.args(["-m", "venv", "--clear"]).arg(&folder);
    shell::run(make).context("Debian has venv in a package of its own: apt-get install python3-venv")?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements);
    shell::run(install)?;
    fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(python)
}
