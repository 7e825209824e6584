//! `cargo xtask test`: fetches the models that tests run on, then runs `cargo test` over the whole workspace.

use std::{env, path::PathBuf};

use anyhow::{Context as _, Result};
use mlxcel_hub::{Hub, Member, SMOLLM2, STORIES15M, Settings, Stderr};

use crate::shell;

/// The variables by which tests find real models, and what is fetched for each that is not already set.
const MODELS: [(&str, Member<'static>); 2] =
    [("MLXCEL_TEST_SMOLLM2", SMOLLM2), ("MLXCEL_TEST_STORIES15M", STORIES15M)];

/// Runs every test, or those that `arguments` choose.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut command = shell::cargo(&["test"]);
    if !arguments.iter().any(|argument| argument == "-p" || argument.starts_with("--package")) {
        command.arg("--workspace");
    }
    command.args(arguments);
    for (variable, member) in MODELS {
        let path = model(variable, &member)?;
        eprintln!("xtask: {variable}={}", path.display());
        command.env(variable, path);
    }
    shell::run(command)
}

/// What the variable says, or the model from the cache.
fn model(variable: &str, member: &Member<'_>) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return Ok(path.into());
    }
    let hub = Hub::new(Settings::from_env()?, Stderr::new());
    hub.fetch_member(member).with_context(|| format!("set {variable} to a copy of {}, or", member.save_as))
}
