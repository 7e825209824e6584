//! Tensor parallelism on the command line: who the members of a group are, and how one command drives all of them. The
//! first member runs the command and hands every step to the others (`leader`), who only compute (`worker`). Sums among
//! them are the engine's business; this connection carries steps, and tells who is gone.

mod guarded;
mod hosts;
mod leader;
mod peers;
mod wire;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Error, Result, anyhow, bail};
use clap::Args;
use mlxcel_engine::{Engine, Sharing};

use crate::engines::{EngineArgs, EngineName, cuda, mlx};

pub use worker::{Worker, run};

/// Under what errors of a group are known.
const NAME: &str = "group";

#[derive(Clone, Debug, Default, Args)]
pub struct ParallelArgs {
    /// Share the model among so many machines: this one and those that run `mlxcel worker`; with --engine mlx or cuda.
    #[arg(long, value_name = "N", requires = "hosts")]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=64))]
    pub tp: Option<u8>,
    /// The machines, this one first: a line ADDRESS:PORT for each; a machine uses the port and the one after it.
    #[arg(long, value_name = "FILE", requires = "tp")]
    pub hosts: Option<PathBuf>,
}

impl ParallelArgs {
    /// The members, if there are several.
    fn hosts(&self) -> Result<Option<hosts::Hosts>> {
        match (self.tp, &self.hosts) {
            (Some(members), Some(file)) => Ok(Some(hosts::read(file, usize::from(members))?)),
            _ => Ok(None),
        }
    }
}

/// The engine of the first member, if a group is asked for. It meets the others when it first compiles something.
pub fn open(arguments: &EngineArgs) -> Result<Option<Box<dyn Engine>>> {
    if !mlxcel_platform::SHARES_MODELS {
        return if arguments.parallel.tp.is_some() { Err(absent()) } else { Ok(None) };
    }
    let Some(hosts) = arguments.parallel.hosts()? else { return Ok(None) };
    Ok(Some(Box::new(leader::Leader::new(sharing(arguments)?, hosts))))
}

/// What a build says that cannot share models.
fn absent() -> Error {
    anyhow!(
        "--tp is not in this build: on Windows machines cannot share a model; leave it out, or run on Linux, be it under WSL"
    )
}

/// The engine of a member.
fn sharing(arguments: &EngineArgs) -> Result<Arc<dyn Sharing>> {
    let device = arguments.device.as_deref();
    Ok(match arguments.engine {
        EngineName::Mlx => Arc::new(mlx::open(&arguments.mlx, device)?),
        EngineName::Cuda => Arc::new(cuda::open(&arguments.cuda, device)?),
        _ => bail!("--tp needs an engine that can share a model; give --engine mlx or --engine cuda"),
    })
}
