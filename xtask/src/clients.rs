//! The official clients that the server is tested with, below `target/`: Python's and Node.js's, each pinned.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{python, shell};

/// The variables by which tests find the clients, with the Python that has them and the folder where Node.js has them.
pub(crate) fn found() -> Result<Vec<(&'static str, PathBuf)>> {
    let given = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let python = given(PYTHON).map_or_else(python_clients, Ok)?;
    let node = given(NODE).map_or_else(node_clients, Ok)?;
    Ok(vec![(PYTHON, python), (NODE, node)])
}

const PYTHON: &str = "MLXCEL_TEST_SDK_PYTHON";
const NODE: &str = "MLXCEL_TEST_SDK_NODE";

fn python_clients() -> Result<PathBuf> {
    python::environment("sdk-venv", &shell::root().join("xtask/sdk/requirements.txt"))
}

/// The folder that holds `node_modules`, made on first use and when the pinned packages change.
fn node_clients() -> Result<PathBuf> {
    let wanted_path = shell::root().join("xtask/sdk/package.json");
    let wanted = fs::read(&wanted_path).with_context(|| format!("cannot read {}", wanted_path.display()))?;
    let folder = shell::target_folder("sdk-node");
    // Written last, so an installation that broke off is begun again.
    let installed = folder.join("installed-package.json");
    if fs::read(&installed).is_ok_and(|text| text == wanted) {
        return Ok(folder);
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let copy = folder.join("package.json");
    fs::write(&copy, &wanted).with_context(|| format!("cannot write {}", copy.display()))?;
    let mut install = Command::new(if cfg!(windows) { "npm.cmd" } else { "npm" });
    install.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&folder);
    shell::run(install)?;
    fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(folder)
}
