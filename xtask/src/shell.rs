//! Running programs in the workspace's root, saying what is run.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

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
    // Set for this program by `cargo run`; a nested cargo would take them for its own package's.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(name);
    }
    command
}

/// Says what is run, runs it, and fails when it fails.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let words: Vec<_> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    let line = words.join(" ");
    eprintln!("xtask: {line}");
    let status = command.status().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` failed ({status})");
    Ok(())
}
