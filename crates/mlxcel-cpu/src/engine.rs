//! The engine: what it is, what it runs itself, and how a graph becomes a program.

use std::path::PathBuf;
use std::sync::Arc;

use mlxcel_engine::{Caps, Engine, EngineError, Program, WeightSource, segments};
use mlxcel_ir::passes::{fold_weights, fuse_elementwise, join_linears, optimize};
use mlxcel_ir::{Bindings, DType, Graph, Op, Type, Value, decompose};

use crate::context::{Context, Products};
use crate::kept::{Complain, Keeper};
use crate::kernels::linear::k_step;
use crate::memory::{Pool, Slabs};
use crate::program::CpuProgram;
use crate::simd::SimdLevel;
use crate::threads::Threads;
use crate::{folding, statics};

/// Tokens in a block of the KV cache: one tile of keys.
const BLOCK_SIZE: usize = 16;

/// How the engine uses the machine.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// As many as the machine offers, if `None`.
    pub threads: Option<usize>,
    /// The fastest instructions of the machine, if `None`.
    pub level: Option<SimdLevel>,
    pub products: Products,
    /// The folder below which packed weights of files are kept, so that the next start need not pack them; they are in
    /// memory only, if `None`.
    pub packed: Option<PathBuf>,
    /// Hears why they are not.
    pub complain: Option<Complain>,
}

/// Runs graphs on the processor.
#[derive(Debug)]
pub struct CpuEngine {
    pub(crate) ctx: Arc<Context>,
    device: String,
    keeper: Option<Keeper>,
}

impl CpuEngine {
    /// Fails if the machine lacks the level that was asked for, or threads cannot be started.
    pub fn new(options: CpuOptions) -> Result<Self, EngineError> {
        let level = options.level.unwrap_or_else(SimdLevel::best);
        let model = model_name();
        if !level.is_available() {
            let op = format!("{level} instructions");
            return Err(EngineError::Unsupported { engine: crate::NAME, op, operands: model });
        }
        let threads = Threads::new(options.threads)?;
        let count = threads.count();
        let (pool, slabs) = (Pool::default(), Slabs::new(usize::MAX));
        let ctx = Context { level, threads, pool, slabs, products: options.products };
        let device = format!("{model}, {count} thread{}, {level}", if count == 1 { "" } else { "s" });
        let keeper = options.packed.map(|root| Keeper::new(root, options.complain));
        Ok(CpuEngine { ctx: Arc::new(ctx), device, keeper })
    }
}

/// The processor's name on Linux, the architecture elsewhere.
fn model_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|l| l.starts_with("model name"));
    let name = line.and_then(|l| l.split_once(':')).map(|(_, name)| name.trim().to_string());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

impl Engine for CpuEngine {
    fn caps(&self) -> Caps {
        let threads = self.ctx.threads.count();
        Caps {
            name: crate::NAME,
            device: self.device.clone(),
            block_size: BLOCK_SIZE,
            threads,
            prefers_16_bits: false,
            step_tokens: Caps::STEP_TOKENS,
            exact_rows: true,
        }
    }

    fn native(&self, op: &Op, operands: &[Type]) -> bool {
        native(op, operands)
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        // Residual norms are joined while they are still norms; what decompositions leave behind goes afterwards.
        // A region fused by someone else may have several results; it is taken apart and fused anew.
        let apart = |op: &Op, x: &[Type]| *op != Op::Fused && native(op, x);
        let graph = optimize(&decompose(&optimize(graph)?, &apart)?)?;
        let parts = fold_weights(&join_linears(&graph)?)?;
        let folded = folding::fold(&self.ctx, &parts.load, weights)?;
        let graph = fuse_elementwise(&parts.graph)?;
        let segments = segments(&graph, weights, &folded)?;
        let ends: Vec<Value> = graph.outputs().iter().chain(graph.updates()).map(|(_, v)| *v).collect();
        let mut statics = statics::matrices(&graph, segments, &ends)?;
        statics.pack(&self.ctx, self.keeper.as_ref())?;
        Ok(Box::new(CpuProgram::new(self.ctx.clone(), graph, statics, dims)?))
    }
}

/// What has a kernel. Doubles go through decompositions, whose primitives compute in `f64`.
fn native(op: &Op, x: &[Type]) -> bool {
    let narrow = |i: usize| x[i].dtype.is_float() && x[i].dtype != DType::F64;
    match op {
        Op::Linear { .. } | Op::ExpertLinear { .. } => narrow(0) && decodes(x[1].dtype),
        Op::Embedding { .. } => decodes(x[0].dtype),
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::AddRmsNorm { .. } | Op::Softmax { .. } => narrow(0),
        Op::Rope { .. } | Op::Attention(_) | Op::SelectiveScan | Op::CausalConv => narrow(0),
        Op::PagedAttention(p) => {
            let cache = if p.value_dim.is_some() { 2 } else { 3 };
            let kept = |i: usize| narrow(i) || x[i].dtype == DType::I8;
            narrow(0) && kept(cache) && kept(cache + p.value_dim.is_none() as usize)
        }
        Op::Activation(_) | Op::Fused | Op::TopK { .. } | Op::ArgMax { .. } | Op::Sample => true,
        _ => false,
    }
}

/// Whether rows of this type are read as `f32` without loss, in blocks that fit the kernels.
fn decodes(dtype: DType) -> bool {
    let float = dtype.is_float() && dtype != DType::F64;
    (float || dtype.is_quant()) && k_step(dtype).is_some()
}
