//! The engine: what it is, what it runs itself, and how a graph becomes a program.

use std::sync::Arc;

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_engine::{Caps, Engine, EngineError, Feeds, FoldedWeights, Program, WeightSource, segments};
use mlxcel_ir::passes::{fold_weights, fuse_elementwise, join_linears, optimize};
use mlxcel_ir::{Bindings, DType, Graph, Op, Type, Value, decompose};

use crate::context::{Context, Facts, facts};
use crate::driver::{Driver, Loaded};
use crate::error::CudaError;
use crate::lower::decodes;
use crate::program::CudaProgram;
use crate::weights::{Progress, upload};

/// Tokens in a block of the KV cache.
const BLOCK_SIZE: usize = 16;

/// How the engine uses a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which device, in the driver's order.
    pub device: usize,
    /// Bytes of its memory that the engine may take; what is free less some headroom, if `None`.
    pub memory: Option<u64>,
    /// Whether a row's result never depends on the rows beside it, to the last bit: every sum has one order, whatever the
    /// number of rows. That leaves the kernels of many rows aside.
    pub exact: bool,
}

/// Runs graphs on an NVIDIA GPU.
pub struct CudaEngine {
    pub(crate) ctx: Arc<Context>,
    progress: Option<Progress>,
}

impl std::fmt::Debug for CudaEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.ctx.fmt(f)
    }
}

/// A device that the driver finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory: u64,
    pub multiprocessors: u32,
    /// Bytes in a second that the memory moves at most.
    pub bandwidth: u64,
    /// The newest CUDA that the driver supports, as 1000 times its major plus 10 times its minor number.
    pub driver_version: i32,
}

impl From<Facts> for Device {
    fn from(f: Facts) -> Self {
        Device {
            name: f.name,
            capability: f.capability,
            memory: f.memory,
            multiprocessors: f.multiprocessors,
            bandwidth: f.bandwidth,
            driver_version: f.driver_version,
        }
    }
}

impl Device {
    /// The device in words, by which what was measured of it is kept.
    pub fn words(&self) -> String {
        let gib = self.memory as f64 / (1u64 << 30) as f64;
        format!("{}, {gib:.0} GiB, sm_{}{}", self.name, self.capability.0, self.capability.1)
    }
}

/// Every device of this machine.
pub fn devices() -> Result<Vec<Device>, CudaError> {
    let driver = Loaded::open()?;
    (0..driver.device_count()?).map(|i| Ok(facts(&driver, i)?.into())).collect()
}

impl CudaEngine {
    /// Finds the driver and opens a device.
    pub fn new(options: CudaOptions) -> Result<Self, CudaError> {
        Self::with_driver(Box::new(Loaded::open()?), options)
    }

    pub(crate) fn with_driver(driver: Box<dyn Driver>, options: CudaOptions) -> Result<Self, CudaError> {
        let ctx = Arc::new(Context::open(driver, options)?);
        Ok(CudaEngine { ctx, progress: None })
    }

    /// Tells how far it is while the weights of a model come to the device.
    pub fn with_progress(self, progress: Progress) -> Self {
        CudaEngine { progress: Some(progress), ..self }
    }

    pub fn device(&self) -> Device {
        self.ctx.facts.clone().into()
    }

    /// Bytes that the engine may take, and those that it has.
    pub fn memory(&self) -> (u64, u64) {
        (self.ctx.limit, self.ctx.limit - self.ctx.free())
    }

    /// Runs, once, what of a graph depends on weights only. Rearranged rows stay as they are.
    fn fold(&self, load: &Graph, weights: &dyn WeightSource) -> Result<FoldedWeights, EngineError> {
        let mut found = segments(load, weights, &FoldedWeights::new())?;
        let mut folded = FoldedWeights::new();
        let mut computed: Vec<(&String, Value)> = vec![];
        for (name, v) in load.outputs() {
            match found.get(&v.node) {
                Some(rows) => {
                    folded.insert(name.clone(), rows.clone());
                }
                None => computed.push((name, *v)),
            }
        }
        if computed.is_empty() {
            return Ok(folded);
        }
        let ends: Vec<Value> = computed.iter().map(|(_, v)| *v).collect();
        let needed = crate::weights::needed(load, &ends, |_| false);
        found.retain(|node, _| needed[*node as usize]);
        let statics = upload(&self.ctx, load, &found, &ends, None)?;
        let mut program = CudaProgram::new(self.ctx.clone(), load.clone(), statics, &Bindings::new())?;
        let names: Vec<&str> = computed.iter().map(|(name, _)| name.as_str()).collect();
        let ticket = program.submit(&Feeds::new(), &names)?;
        for (name, host) in names.into_iter().zip(program.collect(ticket)?) {
            let parts = vec![Bytes::copied(&[host.bytes()])];
            let tensor = WeightTensor::new(host.dtype(), host.shape().to_vec(), parts)?;
            folded.insert(name.to_string(), vec![tensor]);
        }
        Ok(folded)
    }

    /// Refuses before anything was loaded what cannot fit.
    fn check_room(&self, weights: u64, states: u64) -> Result<(), EngineError> {
        let (needed, free) = (weights.saturating_add(states), self.ctx.free());
        if needed <= free {
            return Ok(());
        }
        let what = format!("{weights} bytes of weights and {states} bytes of state");
        Err(EngineError::Device {
            engine: crate::NAME,
            source: Box::new(CudaError::OutOfMemory { what, needed, free, limit: self.ctx.limit }),
        })
    }
}

/// Bytes of all states together.
fn state_bytes(graph: &Graph, dims: &Bindings) -> u64 {
    let sizes = graph.states().map(|(_, node)| {
        let t = &node.types[0];
        let shape: Option<Vec<usize>> = t.shape.iter().map(|d| d.eval(dims)).collect();
        shape.and_then(|s| t.dtype.storage_bytes(&s)).unwrap_or(0) as u64
    });
    sizes.sum()
}

impl Engine for CudaEngine {
    fn caps(&self) -> Caps {
        Caps {
            name: crate::NAME,
            device: self.device().words(),
            block_size: BLOCK_SIZE,
            threads: 1,
            prefers_16_bits: true,
            step_tokens: Caps::GPU_STEP_TOKENS,
            exact_rows: true,
        }
    }

    fn native(&self, op: &Op, operands: &[Type]) -> bool {
        native(op, operands)
    }

    fn free_memory(&self) -> Option<u64> {
        Some(self.ctx.free())
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        self.ctx.enter()?;
        let apart = |op: &Op, x: &[Type]| *op != Op::Fused && native(op, x);
        let graph = optimize(&decompose(&optimize(graph)?, &apart)?)?;
        let parts = fold_weights(&join_linears(&graph)?)?;
        let folded = self.fold(&parts.load, weights)?;
        let graph = fuse_elementwise(&parts.graph)?;
        let found = segments(&graph, weights, &folded)?;
        let ends: Vec<Value> = graph.outputs().iter().chain(graph.updates()).map(|(_, v)| *v).collect();
        self.check_room(crate::weights::bytes(&graph, &found, &ends), state_bytes(&graph, dims))?;
        let statics = upload(&self.ctx, &graph, &found, &ends, self.progress.as_ref())?;
        drop(found);
        let mut program = CudaProgram::new(self.ctx.clone(), graph, statics, dims)?;
        program.rehearse()?;
        Ok(Box::new(program))
    }
}

/// What has a kernel. Doubles and 8-bit floats go through decompositions.
fn native(op: &Op, x: &[Type]) -> bool {
    let main = |i: usize| matches!(x[i].dtype, DType::F32 | DType::BF16 | DType::F16);
    let fixed = |i: usize, axis: usize| x[i].shape.get(axis).and_then(|d| d.as_fixed());
    let last = |i: usize| x[i].shape.last().and_then(|d| d.as_fixed());
    match op {
        Op::Linear { bias } => main(0) && decodes(x[1].dtype) && (!bias || main(2)),
        Op::ExpertLinear { bias } => main(0) && decodes(x[1].dtype) && (!bias || main(3)),
        Op::Embedding { dtype } => decodes(x[0].dtype) && dtype.is_float() && *dtype != DType::F64,
        Op::RmsNorm { weight, .. } => norm(x, usize::from(*weight)),
        Op::LayerNorm { weight, bias, .. } => norm(x, usize::from(*weight) + usize::from(*bias)),
        Op::AddRmsNorm { .. } => norm(x, 2),
        Op::Softmax { axis } => main(0) && axis + 1 == x[0].shape.len(),
        Op::Rope { .. } => main(0) && last(0).is_some() && last(2).is_some(),
        Op::SelectiveScan | Op::CausalConv => main(0),
        Op::PagedAttention(p) => {
            let cache = if p.value_dim.is_some() { 2 } else { 3 };
            let values = cache + usize::from(p.value_dim.is_none());
            let sinks = if p.value_dim.is_some() { 7 } else { 9 };
            let narrow = fixed(0, 2).is_some_and(|d| d <= crate::lower::HEAD_MAX)
                && fixed(cache, 3).is_some_and(|d| d <= crate::lower::HEAD_MAX)
                && fixed(values, 3).is_some_and(|d| d <= crate::lower::HEAD_MAX);
            main(0) && main(cache) && x[cache].dtype == x[values].dtype && narrow && (!p.sinks || main(sinks))
        }
        Op::Sample => main(0),
        Op::Activation(_) | Op::Fused | Op::ArgMax { .. } => true,
        _ => false,
    }
}

/// Norms hold a row in shared memory.
fn norm(x: &[Type], parameters: usize) -> bool {
    let main = |t: &Type| matches!(t.dtype, DType::F32 | DType::BF16 | DType::F16);
    let width = x[0].shape.last().and_then(|d| d.as_fixed());
    x[..=parameters].iter().all(main) && width.is_some_and(|w| w <= 16 << 10)
}
