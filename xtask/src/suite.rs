//! `cargo xtask test`: fetches the models and corpora that tests run on, then runs the tests of the whole workspace, or
//! those that arguments of `cargo test` choose.

use std::{env, ffi::OsString, path::PathBuf};

use anyhow::{Context as _, Result};
use mlxcel_hub::{CORPORA, Hub, MINILM, Member, SMOLLM2, STORIES15M, Settings, Stderr, XLLAMACPP};

use crate::{clients, fetch, iree, lanes, mlx, shell};

/// The variables by which tests find real models, and what is fetched for each that is not already set.
const MODELS: [(&str, Member<'static>); 2] =
    [("MLXCEL_TEST_SMOLLM2", SMOLLM2), ("MLXCEL_TEST_STORIES15M", STORIES15M)];

/// The variable by which tests find the embedding model.
const MINILM_VARIABLE: &str = "MLXCEL_TEST_MINILM";

/// The variable by which tests find the Python package of llama.cpp.
const XLLAMACPP_VARIABLE: &str = "MLXCEL_TEST_XLLAMACPP";

/// The variable by which tests find XLA's plugin for the processor.
const XLA_CPU_VARIABLE: &str = "MLXCEL_TEST_XLA_CPU";

/// The package that is tested with IREE too.
const WITH_IREE: &str = "mlxcel-xla";

/// The variables by which tests find the folders of [`CORPORA`], in the same order.
const CORPUS_VARIABLES: [&str; CORPORA.len()] = [
    "MLXCEL_TEST_LLAMA_CPP",
    "MLXCEL_TEST_GRAMMARS",
    "MLXCEL_TEST_JSON_SCHEMA",
    "MLXCEL_TEST_TOKENIZERS",
    "MLXCEL_TEST_TOKENIZER_GEMMA3",
    "MLXCEL_TEST_TOKENIZER_GPTOSS",
    "MLXCEL_TEST_TOKENIZER_LLAMA32",
    "MLXCEL_TEST_TOKENIZER_QWEN3",
];

/// Runs every test, or those that `arguments` choose.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let chosen = arguments.iter().any(|argument| argument == "-p" || argument.starts_with("--package"));
    let mut flags = if chosen { vec![] } else { vec!["--workspace"] };
    let mut variables: Vec<(&str, OsString)> = vec![];
    if !chosen || arguments.iter().any(|argument| argument.ends_with(WITH_IREE)) {
        let iree = iree::found(&Hub::new(Settings::from_env()?, Stderr::new()))?;
        if !iree.is_empty() {
            // One build for all tests: another for this crate alone would compile what they share again.
            flags.extend(["--features", iree::FEATURE]);
        }
        variables.extend(iree);
    }
    variables.extend(fetched()?.into_iter().map(|(variable, path)| (variable, path.into())));
    for (variable, value) in &variables {
        eprintln!("xtask: {variable}={}", value.display());
    }
    let command = || {
        let mut command = shell::cargo(&["test"]);
        command.args(&flags).envs(variables.iter().cloned());
        command
    };
    if !arguments.is_empty() {
        let mut command = command();
        command.args(arguments);
        return shell::run(command);
    }
    lanes::run(command())
}

/// Runs the server's soak for so long; `run` does it for two minutes.
pub(crate) fn soak(minutes: u64) -> Result<()> {
    let mut command =
        shell::cargo(&["test", "--package", "mlxcel-server", "--test", "soak", "--", "--nocapture"]);
    command.env("MLXCEL_SOAK_SECONDS", (minutes * 60).to_string());
    shell::run(command)
}

/// Each variable with what it says already, or with the path in the cache.
fn fetched() -> Result<Vec<(&'static str, PathBuf)>> {
    let hub = Hub::new(Settings::from_env()?, Stderr::new());
    let models = MODELS.iter().map(|(variable, member)| {
        found(variable, member.save_as, || hub.fetch_member(member)).map(|path| (*variable, path))
    });
    let corpora = CORPUS_VARIABLES.iter().zip(&CORPORA).map(|(variable, folder)| {
        found(variable, folder.package.name, || hub.fetch_folder(folder)).map(|path| (*variable, path))
    });
    let minilm = found(MINILM_VARIABLE, MINILM.save_as, || hub.fetch_folder(&MINILM));
    let minilm = minilm.map(|path| (MINILM_VARIABLE, path));
    let clients = clients::found()?.into_iter().chain(mlx::found()?).map(Ok);
    models.chain(corpora).chain([minilm]).chain(llama_cpp(&hub)).chain(xla(&hub)).chain(clients).collect()
}

/// llama.cpp for this machine, if there is one.
fn llama_cpp(hub: &Hub) -> Option<Result<(&'static str, PathBuf)>> {
    let Some(folder) = XLLAMACPP else {
        eprintln!(
            "xtask: files are not compared in llama.cpp: its package is pinned for Linux on x86-64 and ARM only"
        );
        return None;
    };
    let path = found(XLLAMACPP_VARIABLE, folder.package.name, || hub.fetch_folder(&folder));
    Some(path.map(|path| (XLLAMACPP_VARIABLE, path)))
}

/// XLA's plugin for the processor, if there is one for this machine.
fn xla(hub: &Hub) -> Option<Result<(&'static str, PathBuf)>> {
    let path = match env::var_os(XLA_CPU_VARIABLE) {
        Some(path) => Ok(path.into()),
        None => fetch::xla_cpu(hub)?.context("set MLXCEL_TEST_XLA_CPU to XLA's plugin, or"),
    };
    Some(path.map(|path| (XLA_CPU_VARIABLE, path)))
}

fn found(variable: &str, what: &str, fetch: impl FnOnce() -> mlxcel_hub::Result<PathBuf>) -> Result<PathBuf> {
    match env::var_os(variable) {
        Some(path) => Ok(path.into()),
        None => fetch().with_context(|| format!("set {variable} to a copy of {what}, or")),
    }
}
