//! The engine: what it is, how a graph becomes a program, and the modules that a program would run.

use std::sync::Arc;

use mlxcel_engine::buckets::{Buckets, Ladder};
use mlxcel_engine::{Caps, Engine, EngineError, Program, WeightSource};
use mlxcel_ir::passes::{Folded, fold_weights, join_linears, optimize};
use mlxcel_ir::{Bindings, Graph, Op, Type};

use crate::emit::{EmitOptions, Module, emit};
use crate::error::XlaError;
use crate::executor::Executor;
use crate::lower::{StepKind, join_inputs, lower, select_outputs};
use crate::program::XlaProgram;

/// Tokens in a block of the KV cache.
const BLOCK_SIZE: usize = 16;

/// The least context that steps are compiled for, in blocks.
const PAGES_LEAST: usize = 16;

/// How steps are cut and padded. More buckets waste less and compile more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XlaOptions {
    pub buckets: Buckets,
}

impl Default for XlaOptions {
    fn default() -> Self {
        let buckets = Buckets {
            sequences: Ladder { least: 1 },
            tokens: Ladder { least: 32 },
            pages: Ladder { least: PAGES_LEAST },
            sequences_max: 256,
        };
        XlaOptions { buckets }
    }
}

/// Runs graphs through XLA. A clone shares the device.
#[derive(Clone)]
pub struct XlaEngine {
    executor: Arc<dyn Executor>,
    options: XlaOptions,
}

impl XlaEngine {
    pub fn new(executor: Arc<dyn Executor>, options: XlaOptions) -> Self {
        XlaEngine { executor, options }
    }
}

/// The module that a step of these sizes and outputs runs.
pub fn module(
    graph: &Graph,
    sizes: &Bindings,
    outputs: &[&str],
    kind: StepKind,
    options: EmitOptions,
) -> Result<Module, XlaError> {
    let graph = lower(&select_outputs(graph, outputs)?, sizes, kind)?;
    if !options.joined_inputs {
        return emit(&graph, options);
    }
    let (graph, joined) = join_inputs(&graph)?;
    Ok(Module { joined, ..emit(&graph, options)? })
}

impl Engine for XlaEngine {
    fn caps(&self) -> Caps {
        let threads = if self.executor.is_cpu() {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        } else {
            1
        };
        let prefers_16_bits = !self.executor.is_cpu();
        let device = self.executor.device();
        Caps {
            name: crate::NAME,
            device,
            block_size: BLOCK_SIZE,
            threads,
            prefers_16_bits,
            step_tokens: Caps::STEP_TOKENS,
            // On accelerators XLA chooses how to multiply by the number of rows.
            exact_rows: self.executor.is_cpu(),
        }
    }

    fn native(&self, op: &Op, _: &[Type]) -> bool {
        matches!(op, Op::PagedAttention(_) | Op::ArgMax { .. } | Op::ExpertLinear { .. } | Op::Sample)
    }

    fn free_memory(&self) -> Option<u64> {
        self.executor.free_memory()
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        let graph = optimize(graph)?;
        // On the processor weights are used where they lie; an accelerator gains more from fewer, larger products.
        let is_packed = graph.weights().any(|(_, node)| node.types[0].dtype.is_quant());
        let parts = if self.executor.is_cpu() || is_packed {
            Folded { graph, load: Graph::default() }
        } else {
            fold_weights(&join_linears(&graph)?)?
        };
        Ok(Box::new(XlaProgram::new(self.executor.clone(), self.options, parts, (weights, dims))?))
    }
}
