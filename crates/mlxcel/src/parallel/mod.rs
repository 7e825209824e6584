//! Tensor parallelism on the command line: who the members of a group are, and how one command drives all of them. On
//! Windows, where neither MLX's engine nor NCCL is there to exchange anything, only the refusal is compiled.

#[cfg(windows)]
#[path = "absent.rs"]
mod members;
#[cfg(not(windows))]
mod members;

use std::path::PathBuf;

use clap::Args;

use crate::cli::ModelArgs;

pub use members::{open, run};

const EXAMPLES: &str = "\
Examples:
  mlxcel worker -m ./Qwen3-0.6B --engine mlx --tp 2 --hosts hosts.txt --rank 1
  mlxcel generate -m ./Qwen3-0.6B --engine mlx --tp 2 --hosts hosts.txt -p \"Hello\"";

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

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Worker {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Which line of --hosts this machine is, counted from 0, which is the machine that runs the command.
    #[arg(long, value_name = "N")]
    pub rank: u8,
}
