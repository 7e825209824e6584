//! The engines of this build: the only place that names them. What an engine is asked to do and cannot is refused
//! here, with what exists instead.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use mlxcel_engine::{Engine, ReferenceEngine};
use mlxcel_ir::DType;
use mlxcel_models::Types;
use mlxcel_weights::Checkpoint;

use crate::cli::{CachePrecision, Precision, TypeArgs};

pub mod cpu;
pub mod cuda;
pub mod mlx;
pub mod xla;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// What computes; `reference` is for checking the others on tiny models.
    #[arg(long, value_enum, env = "MLXCEL_BACKEND", hide_env = true, default_value_t)]
    pub engine: EngineName,
    /// Where it computes, one of those that `mlxcel devices` lists for the engine [default: the engine's first].
    #[arg(long)]
    pub device: Option<String>,
    /// Threads of the cpu engine [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    #[command(flatten)]
    pub cpu: cpu::CpuArgs,
    #[command(flatten)]
    pub cuda: cuda::CudaArgs,
    #[command(flatten)]
    pub mlx: mlx::MlxArgs,
    #[command(flatten)]
    pub xla: xla::XlaArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    #[default]
    Cpu,
    Cuda,
    Mlx,
    Xla,
    Reference,
}

/// One engine on one device, as `mlxcel devices` lists it.
pub struct Listed {
    pub engine: &'static str,
    pub device: String,
    /// The device in words.
    pub description: String,
    /// The instructions that the engine's kernels use.
    pub simd: String,
    /// How many cores the engine uses unless told otherwise.
    pub cores: usize,
}

/// The engine that the arguments ask for.
pub fn open(arguments: &EngineArgs) -> Result<Box<dyn Engine>> {
    let threads = arguments.threads.map(usize::from);
    match arguments.engine {
        EngineName::Cpu => {
            only_the_processor(arguments)?;
            Ok(Box::new(cpu::open(&arguments.cpu, threads)?))
        }
        EngineName::Cuda => Ok(Box::new(cuda::open(&arguments.cuda, arguments.device.as_deref())?)),
        EngineName::Mlx => Ok(Box::new(mlx::open(&arguments.mlx, arguments.device.as_deref())?)),
        EngineName::Xla => Ok(Box::new(xla::open(&arguments.xla, arguments.device.as_deref())?)),
        EngineName::Reference => {
            only_the_processor(arguments)?;
            if threads.is_some_and(|n| n > 1) || arguments.cpu.simd.is_some() {
                bail!(
                    "the reference engine has one thread and no SIMD; leave out --threads and --simd or give --engine cpu"
                );
            }
            Ok(Box::new(ReferenceEngine))
        }
    }
}

/// Engines of the processor have one device.
fn only_the_processor(arguments: &EngineArgs) -> Result<()> {
    match arguments.device.as_deref() {
        None | Some("cpu") => Ok(()),
        Some(device) => bail!("there is no device '{device}'; give --device one of: cpu"),
    }
}

/// The engine of a name, as it comes.
pub fn by_name(engine: EngineName) -> Result<Box<dyn Engine>> {
    open(&EngineArgs { engine, ..EngineArgs::default() })
}

/// The types that activations and cache have. The engines of this build compute in f32 whatever they are: narrower
/// activations cost exactness and time, while a narrower cache is read faster and loses less than weights of 16 bits
/// or fewer already did.
pub fn types(arguments: TypeArgs, checkpoint: &Checkpoint) -> Types {
    let activations = activation_type(arguments.dtype);
    let stored = || {
        let exact = |(dtype, _): (DType, &[usize])| matches!(dtype, DType::F32 | DType::F64);
        let tensors = checkpoint.names().filter_map(|name| checkpoint.info(name));
        if tensors.into_iter().all(exact) { DType::F32 } else { DType::F16 }
    };
    let cache = match arguments.kv_dtype {
        CachePrecision::Auto => named(arguments.dtype).unwrap_or_else(stored),
        CachePrecision::F32 => DType::F32,
        CachePrecision::Bf16 => DType::BF16,
        CachePrecision::F16 => DType::F16,
        CachePrecision::Int8 => DType::I8,
    };
    Types { activations, cache }
}

/// The type that activations have.
pub fn activation_type(precision: Precision) -> DType {
    named(precision).unwrap_or(DType::F32)
}

/// `None` for auto.
fn named(precision: Precision) -> Option<DType> {
    match precision {
        Precision::Auto => None,
        Precision::F32 => Some(DType::F32),
        Precision::Bf16 => Some(DType::BF16),
        Precision::F16 => Some(DType::F16),
    }
}

/// Every engine; the processor's with so many threads, if they are told.
pub fn list(threads: Option<usize>) -> Result<Vec<Listed>> {
    let caps = ReferenceEngine.caps();
    let reference = Listed {
        engine: caps.name,
        device: "cpu".to_string(),
        description: caps.device,
        simd: "none".to_string(),
        cores: caps.threads,
    };
    let devices = cpu::list(threads)?.into_iter().chain(cuda::list()).chain(mlx::list()).chain(xla::list());
    Ok(devices.chain([reference]).collect())
}

/// What a plan cannot show op by op.
pub fn remarks(engine: EngineName, graph: &mlxcel_ir::Graph) -> Result<Vec<String>> {
    match engine {
        EngineName::Mlx => Ok(mlx::open(&mlx::MlxArgs::default(), None)?.remarks(graph)),
        EngineName::Cpu | EngineName::Cuda | EngineName::Xla | EngineName::Reference => Ok(vec![]),
    }
}
