//! `cargo xtask bench cuda`: packs what a GPU host needs to check and measure the CUDA engine into a folder, with a script
//! that does it and prints tables. Where there is a GPU, the script is run at once. The host needs neither Rust nor CUDA.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell;

/// Packs the folder, and runs its script if this machine has a GPU.
pub(super) fn run(ours: &Path) -> Result<()> {
    let folder = shell::target_folder("bench").join("cuda");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    copy(&shell::root().join("xtask/bench/cuda"), &folder)?;
    copy(&shell::root().join("fixtures"), &folder.join("fixtures"))?;
    for (program, name) in [(ours.to_owned(), "mlxcel"), (conformance()?, "conformance")] {
        fs::copy(&program, folder.join(name))
            .with_context(|| format!("cannot copy {}", program.display()))?;
    }
    eprintln!("xtask: {} is packed; copy it to the GPU host and run `sh run.sh` there", folder.display());
    let listed = Command::new(ours).arg("devices").output().context("cannot list the devices")?;
    if String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.starts_with("cuda")) {
        let mut script = Command::new("sh");
        script.arg(folder.join("run.sh"));
        shell::run(script)?;
    }
    Ok(())
}

/// Builds the engine's checks, and finds where cargo put them.
fn conformance() -> Result<PathBuf> {
    let arguments = ["test", "--release", "--package", "mlxcel-cuda", "--test", "conformance", "--no-run"];
    let mut command = shell::cargo(&arguments);
    let output = command.arg("--message-format=json").output().context("cannot run cargo")?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let built = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut programs = built.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next().context("cargo names no program of the engine's checks")
}

/// A folder and all in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let (path, place) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        if path.is_dir() {
            copy(&path, &place)?;
        } else {
            fs::copy(&path, &place).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}
