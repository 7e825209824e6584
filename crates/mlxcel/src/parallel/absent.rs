//! What a program says that was built without sharing models.

use std::process::ExitCode;

use anyhow::{Error, Result, anyhow};
use mlxcel_engine::Engine;

use super::Worker;
use crate::engines::EngineArgs;

pub fn open(arguments: &EngineArgs) -> Result<Option<Box<dyn Engine>>> {
    if arguments.parallel.tp.is_some() { Err(absent()) } else { Ok(None) }
}

pub fn run(_: &Worker) -> Result<ExitCode> {
    Err(absent())
}

fn absent() -> Error {
    anyhow!(
        "--tp is not in this build: on Windows machines cannot share a model; leave it out, or run on Linux, be it under WSL"
    )
}
