//! The engines of this build: the only place that names them. What an engine is asked to do and cannot is refused
//! here, with what exists instead.

use anyhow::{Result, bail};
use mlxcel_cpu::{CpuEngine, CpuOptions, Products, SimdLevel};
use mlxcel_engine::{Engine, ReferenceEngine};
use mlxcel_ir::DType;
use mlxcel_models::Types;
use mlxcel_weights::Checkpoint;

use crate::cli::{EngineArgs, EngineName, Precision, ProductsName, SimdName, TypeArgs};

/// The devices that engines of this build can run on.
const DEVICES: [&str; 1] = ["cpu"];

/// One engine on one device, as `mlxcel devices` lists it.
pub struct Listed {
    pub engine: &'static str,
    pub device: &'static str,
    /// The device in words.
    pub description: String,
    /// The instructions that the engine's kernels use.
    pub simd: String,
    /// How many cores the engine uses unless told otherwise.
    pub cores: usize,
}

/// The engine that the arguments ask for.
pub fn open(arguments: &EngineArgs) -> Result<Box<dyn Engine>> {
    if !DEVICES.contains(&arguments.device.as_str()) {
        let there_is = DEVICES.join(", ");
        bail!("there is no device '{}'; give --device one of: {there_is}", arguments.device);
    }
    match (arguments.engine, arguments.threads, arguments.simd) {
        (EngineName::Cpu, ..) => Ok(Box::new(CpuEngine::new(options(arguments))?)),
        (EngineName::Reference, None | Some(1), None) => Ok(Box::new(ReferenceEngine)),
        (EngineName::Reference, ..) => {
            bail!(
                "the reference engine has one thread and no SIMD; leave out --threads and --simd or give --engine cpu"
            )
        }
    }
}

fn options(arguments: &EngineArgs) -> CpuOptions {
    let level = arguments.simd.map(|name| match name {
        SimdName::Baseline => SimdLevel::Baseline,
        SimdName::Avx2 => SimdLevel::Avx2,
        SimdName::Avx512 => SimdLevel::Avx512,
        SimdName::Avx512Vnni => SimdLevel::Avx512Vnni,
        SimdName::Amx => SimdLevel::Amx,
        SimdName::Neon => SimdLevel::Neon,
    });
    let products = match arguments.products {
        ProductsName::Fast => Products::Fast,
        ProductsName::Exact => Products::Exact,
    };
    CpuOptions { threads: arguments.threads.map(usize::from), level, products }
}

/// The engine of a name, as it comes.
pub fn by_name(name: EngineName) -> Result<Box<dyn Engine>> {
    let device = DEVICES[0].to_string();
    open(&EngineArgs { engine: name, device, threads: None, products: ProductsName::default(), simd: None })
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
    let cache = named(arguments.kv_dtype).or(named(arguments.dtype)).unwrap_or_else(stored);
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
    let listed = |engine: &dyn Engine, simd: String| {
        let caps = engine.caps();
        Listed { engine: caps.name, device: DEVICES[0], description: caps.device, simd, cores: caps.threads }
    };
    Ok(vec![
        listed(&cpu(threads)?, SimdLevel::best().to_string()),
        listed(&ReferenceEngine, "none".to_string()),
    ])
}

/// The engine that runs on the processor; as many threads as it has cores, unless told otherwise.
pub fn cpu(threads: Option<usize>) -> Result<CpuEngine> {
    Ok(CpuEngine::new(CpuOptions { threads, ..CpuOptions::default() })?)
}
