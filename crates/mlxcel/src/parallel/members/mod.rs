//! The members of a group. The first one runs the command and hands every step to the others (`leader`), who only compute
//! (`worker`). Sums among them are the engine's business; this connection carries steps, and tells who is gone.

mod guarded;
mod hosts;
mod leader;
mod peers;
mod wire;
mod worker;

use std::sync::Arc;

use anyhow::{Result, bail};
use mlxcel_engine::{Engine, Sharing};

use super::ParallelArgs;
use crate::engines::{EngineArgs, EngineName, cuda, mlx};

pub use worker::run;

/// Under what errors of a group are known.
const NAME: &str = "group";

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
    let Some(hosts) = arguments.parallel.hosts()? else { return Ok(None) };
    Ok(Some(Box::new(leader::Leader::new(sharing(arguments)?, hosts))))
}

/// The engine of a member.
fn sharing(arguments: &EngineArgs) -> Result<Arc<dyn Sharing>> {
    let device = arguments.device.as_deref();
    Ok(match arguments.engine {
        EngineName::Mlx => Arc::new(mlx::open(&arguments.mlx, device)?),
        EngineName::Cuda => Arc::new(cuda::open(&arguments.cuda, arguments.cpu.products, device)?),
        _ => bail!("--tp needs an engine that can share a model; give --engine mlx or --engine cuda"),
    })
}
