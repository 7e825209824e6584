//! `cargo xtask golden`: runs the script that makes golden fixtures, in a Python environment of its own.

use std::process::Command;

use anyhow::Result;

use crate::{python, shell};

/// Makes the fixtures of the named families.
pub(crate) fn run(families: &[String]) -> Result<()> {
    let scripts = shell::root().join("xtask/golden");
    let python = python::environment("golden-venv", &scripts.join("requirements.txt"))?;
    let mut command = Command::new(python);
    command.current_dir(shell::root()).arg(scripts.join("golden.py")).args(families);
    shell::run(command)
}
