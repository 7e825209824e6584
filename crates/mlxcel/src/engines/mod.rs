//! The engines of this build: the only place that names them. What an engine is asked to do and cannot is refused
//! here, with what exists instead.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use mlxcel_engine::{Caps, Engine, ReferenceEngine};
use mlxcel_ir::DType;
use mlxcel_models::Types;
use mlxcel_weights::Checkpoint;

use crate::cli::{CachePrecision, Precision, TypeArgs};
use crate::parallel::{self, ParallelArgs};
use crate::rates::choose;
use crate::say;

pub mod cpu;
pub mod cuda;
pub mod mlx;
pub mod xla;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// What computes; `reference` is for checking the others on tiny models, `auto` is the fastest of those that
    /// `mlxcel devices --calibrate` has measured.
    #[arg(long, value_enum, env = "MLXCEL_BACKEND", hide_env = true, default_value_t)]
    pub engine: EngineName,
    /// Where it computes, one of those that `mlxcel devices` lists for the engine, or auto for the fastest of them
    /// [default: the engine's first].
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
    #[command(flatten)]
    pub parallel: ParallelArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    #[default]
    Cpu,
    Cuda,
    Mlx,
    Xla,
    Reference,
    /// The fastest, by what `mlxcel devices --calibrate` has measured.
    Auto,
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
    /// Bytes of memory, if the device has its own.
    pub memory: Option<u64>,
}

/// The engine that the arguments ask for.
pub fn open(arguments: &EngineArgs) -> Result<Box<dyn Engine>> {
    let arguments = &choose::resolve(arguments)?;
    let threads = arguments.threads.map(usize::from);
    say_what_is_unused(arguments);
    if let Some(shared) = parallel::open(arguments)? {
        return Ok(shared);
    }
    match arguments.engine {
        EngineName::Cpu => {
            only_the_processor(arguments)?;
            Ok(Box::new(cpu::open(&arguments.cpu, threads)?))
        }
        EngineName::Cuda => {
            let products = arguments.cpu.products;
            Ok(Box::new(cuda::open(&arguments.cuda, products, arguments.device.as_deref())?))
        }
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
        EngineName::Auto => bail!("no engine was chosen; name one with --engine"),
    }
}

/// Flags of one engine change nothing of another; variables, which stay set, are not spoken of.
fn say_what_is_unused(arguments: &EngineArgs) {
    let of_cpu = [
        ("--threads", arguments.threads.is_some()),
        ("--simd", arguments.cpu.simd.is_some()),
        ("--packed-cache", arguments.cpu.packed_cache.is_some()),
    ];
    let of_both = [("--products", arguments.cpu.products != cpu::ProductsName::default())];
    let of_cuda = [("--gpu-memory", arguments.cuda.gpu_memory.is_some())];
    let unused = |flags: &[(&str, bool)], engine: &str| {
        for (flag, _) in flags.iter().filter(|(_, given)| *given) {
            say(&format!("note: {flag} is for the {engine} engine and changes nothing here"));
        }
    };
    if !matches!(arguments.engine, EngineName::Cpu | EngineName::Reference) {
        unused(&of_cpu, "cpu");
    }
    if !matches!(arguments.engine, EngineName::Cpu | EngineName::Reference | EngineName::Cuda) {
        unused(&of_both, "cpu or cuda");
    }
    if arguments.engine != EngineName::Cuda {
        unused(&of_cuda, "cuda");
    }
}

/// The engine that is listed under a name.
pub fn name(listed: &str) -> Option<EngineName> {
    EngineName::from_str(listed, false).ok()
}

/// Engines of the processor have one device.
fn only_the_processor(arguments: &EngineArgs) -> Result<()> {
    match arguments.device.as_deref() {
        None | Some("cpu") => Ok(()),
        Some(device) => bail!("there is no device '{device}'; give --device one of: cpu"),
    }
}

/// The types that activations and cache have. On processors narrower activations cost exactness and time, while a
/// narrower cache is read faster and loses less than weights of 16 bits or fewer already did. An engine that multiplies
/// 16-bit numbers many times faster computes a model in the type it is stored in.
pub fn types(arguments: TypeArgs, caps: &Caps, checkpoint: &Checkpoint) -> Types {
    let activations = activation_type(arguments.dtype, caps, checkpoint);
    let stored = || match own_type(checkpoint) {
        own if caps.prefers_16_bits => own,
        DType::F32 => DType::F32,
        _ => DType::F16,
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
pub fn activation_type(precision: Precision, caps: &Caps, checkpoint: &Checkpoint) -> DType {
    named(precision).unwrap_or_else(|| if caps.prefers_16_bits { own_type(checkpoint) } else { DType::F32 })
}

/// The type that a model is meant to be computed in, by how it is stored: bf16 for packed weights too, which hold what
/// they stand for.
fn own_type(checkpoint: &Checkpoint) -> DType {
    let stored: BTreeSet<DType> =
        checkpoint.names().filter_map(|name| checkpoint.info(name)).map(|(dtype, _)| dtype).collect();
    let is_packed = stored.iter().any(|dtype| dtype.is_quant());
    match (stored.contains(&DType::BF16) || is_packed, stored.contains(&DType::F16)) {
        (true, _) => DType::BF16,
        (false, true) => DType::F16,
        (false, false) => DType::F32,
    }
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
        memory: None,
    };
    let devices = cpu::list(threads)?.into_iter().chain(cuda::list()).chain(mlx::list()).chain(xla::list());
    Ok(devices.chain([reference]).collect())
}

/// What a plan cannot show op by op.
pub fn remarks(arguments: &EngineArgs, graph: &mlxcel_ir::Graph) -> Result<Vec<String>> {
    match arguments.engine {
        EngineName::Mlx => Ok(mlx::open(&arguments.mlx, arguments.device.as_deref())?.remarks(graph)),
        EngineName::Cpu | EngineName::Cuda | EngineName::Xla | EngineName::Reference | EngineName::Auto => {
            Ok(vec![])
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const AUTO: TypeArgs = TypeArgs { dtype: Precision::Auto, kv_dtype: CachePrecision::Auto };

    fn types_of(variant: &str, arguments: TypeArgs, prefers_16_bits: bool) -> (DType, DType) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/llama").join(variant);
        let checkpoint = Checkpoint::open(&path).expect("the fixture is a checkpoint");
        let caps = Caps { prefers_16_bits, ..ReferenceEngine.caps() };
        let types = types(arguments, &caps, &checkpoint);
        (types.activations, types.cache)
    }

    #[test]
    fn an_engine_of_16_bits_computes_a_model_in_the_type_it_is_stored_in() {
        assert_eq!(types_of("bf16", AUTO, true), (DType::BF16, DType::BF16));
        assert_eq!(types_of("q4", AUTO, true), (DType::BF16, DType::BF16));
        assert_eq!(types_of("f32", AUTO, true), (DType::F32, DType::F32));
        assert_eq!(types_of("bf16", AUTO, false), (DType::F32, DType::F16));
        let asked = TypeArgs { dtype: Precision::F32, ..AUTO };
        assert_eq!(types_of("bf16", asked, true), (DType::F32, DType::F32));
    }
}
