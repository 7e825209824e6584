//! The engine: what it is, what it runs itself, and how a graph becomes a program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mlxcel_engine::{Caps, Engine, EngineError, Program, Seat, Sharing, WeightSource};
use mlxcel_ir::passes::{fold_weights, join_linears, optimize};
use mlxcel_ir::{Bindings, DType, Graph, Op, Type, decompose};

use crate::error::MlxError;
use crate::library::{Api, DeviceInfo, Home};
use crate::options::{Device, Mode, Options};
use crate::program::MlxProgram;
use crate::repack::Stored;
use crate::statics::Parts;
use crate::weights::{Once, Uploads};
use crate::{NAME, group, library};

/// Tokens in a block of the KV cache. MLX has no kernel for paged caches: what attention reads is gathered by blocks.
const BLOCK_SIZE: usize = 16;

/// Runs graphs on MLX.
#[derive(Debug)]
pub struct MlxEngine {
    api: Arc<Api>,
    home: Home,
    device: Device,
    mode: Mode,
    uploads: Uploads,
    traces: Arc<AtomicU64>,
    in_group: AtomicBool,
}

impl MlxEngine {
    /// Loads MLX and the shim, and finds the device.
    pub fn open(options: Options) -> Result<Self, MlxError> {
        let api = library::Api::load(&options.home)?;
        let has_gpu = api.device_count(Device::Gpu.code()) > 0;
        let device = match options.device {
            Some(Device::Gpu) if !has_gpu => return Err(MlxError::NoGpu { home: options.home.mlx }),
            Some(device) => device,
            None if has_gpu => Device::Gpu,
            None => Device::Cpu,
        };
        Ok(MlxEngine {
            api,
            in_group: AtomicBool::new(false),
            home: options.home,
            device,
            mode: options.mode,
            uploads: Uploads::default(),
            traces: Arc::default(),
        })
    }

    /// The version of the MLX that is loaded.
    pub fn version(&self) -> String {
        self.api.version()
    }

    pub fn home(&self) -> &Home {
        &self.home
    }

    pub fn device(&self) -> Device {
        self.device
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn device_info(&self) -> DeviceInfo {
        self.api.device_info(self.device.code())
    }

    /// How often MLX has traced a step of this engine's programs; never, unless the mode is compiled.
    pub fn traces(&self) -> u64 {
        self.traces.load(Ordering::Relaxed)
    }

    /// Forgets the most bytes that were in use.
    pub fn reset_peak(&self) {
        self.api.forget_peak();
    }

    /// What a person who reads a plan should know: how steps of this graph run, and which weights MLX's kernels cannot
    /// hold.
    pub fn remarks(&self, graph: &Graph) -> Vec<String> {
        let mut remarks = vec![match self.mode {
            Mode::Lazy => "a step is built whole and evaluated once".to_string(),
            Mode::Eager => "every op is evaluated by itself".to_string(),
            Mode::Compiled if has_control(graph) => {
                "branches and loops run on the host, over compiled bodies".to_string()
            }
            Mode::Compiled => "a step is traced once for each bucket of sizes and replayed".to_string(),
        }];
        if self.mode == Mode::Compiled && self.device == Device::Cpu {
            remarks.push("compiled steps are simplified but not fused on the processor".to_string());
        }
        let is_wide = |t: &Type| t.dtype == DType::F64;
        if self.device == Device::Gpu && graph.nodes().iter().flat_map(|n| &n.types).any(is_wide) {
            remarks.push("doubles are computed on the processor: MLX's GPUs have none".to_string());
        }
        for (_, node) in graph.weights() {
            let dtype = node.types[0].dtype;
            let remark =
                format!("{dtype} weights are multiplied out in the step: MLX has no kernel for their groups");
            if matches!(Stored::of(dtype), Stored::Grouped { .. }) && !remarks.contains(&remark) {
                remarks.push(remark);
            }
        }
        remarks
    }

    /// Bytes that MLX has in use in this process, and the most it ever had.
    pub fn memory(&self) -> (u64, u64) {
        self.api.memory()
    }
}

impl Engine for MlxEngine {
    fn caps(&self) -> Caps {
        let DeviceInfo { name, .. } = self.device_info();
        let name = if name.is_empty() { "processor".to_string() } else { name };
        let device = format!("{name}, MLX {}, {}, {}", self.version(), self.device, self.mode);
        let is_gpu = self.device == Device::Gpu;
        Caps {
            name: NAME,
            device,
            block_size: BLOCK_SIZE,
            threads: 1,
            prefers_16_bits: is_gpu,
            step_tokens: if is_gpu { Caps::GPU_STEP_TOKENS } else { Caps::STEP_TOKENS },
            // On GPUs MLX chooses how to multiply by the number of rows.
            exact_rows: !is_gpu,
        }
    }

    fn native(&self, op: &Op, operands: &[Type]) -> bool {
        native(op, operands)
    }

    /// MLX does not tell what others take of a GPU, nor does it use the last of it well.
    fn free_memory(&self) -> Option<u64> {
        let all = self.device_info().memory.filter(|_| self.device == Device::Gpu)?;
        Some((all / 10 * 9).saturating_sub(self.api.memory().0))
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        let graph = optimize(&decompose(&optimize(graph)?, &native)?)?;
        self.check(&graph)?;
        let folded = fold_weights(&join_linears(&graph)?)?;
        let source = Once::new(weights);
        let parts = Parts {
            api: &self.api,
            uploads: &self.uploads,
            traces: &self.traces,
            device: self.device,
            mode: self.mode,
            source: &source,
        };
        Ok(Box::new(MlxProgram::new(&parts, folded, dims)?))
    }
}

impl Sharing for MlxEngine {
    fn likeness(&self) -> String {
        format!("{} {}", self.mode, self.version())
    }

    fn join(&self, seat: &Seat, _: &[u8]) -> Result<(), EngineError> {
        group::join(&self.api, seat, self.device)
            .map_err(|error| EngineError::Device { engine: NAME, source: Box::new(error) })?;
        self.in_group.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl MlxEngine {
    /// There is nobody to exchange with outside of a group.
    fn check(&self, graph: &Graph) -> Result<(), EngineError> {
        for node in graph.nodes() {
            if node.op.is_exchange() && !self.in_group.load(Ordering::Relaxed) {
                let operands = node.types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
                return Err(EngineError::Unsupported { engine: NAME, op: node.op.name(), operands });
            }
            node.regions.iter().try_for_each(|r| self.check(r))?;
        }
        Ok(())
    }
}

/// What MLX has a kernel for, or the shim a lowering that is better than the decomposition. Doubles go through
/// decompositions, since MLX's fused kernels compute in `f32`.
fn native(op: &Op, x: &[Type]) -> bool {
    let is_f8 = |d: DType| matches!(d, DType::F8E4M3 | DType::F8E5M2);
    let real = |i: usize| x[i].dtype.is_float() && !is_f8(x[i].dtype);
    let narrow = |i: usize| real(i) && x[i].dtype != DType::F64;
    match op {
        Op::Activation(_) => narrow(0),
        Op::Linear { .. } | Op::ExpertLinear { .. } => narrow(0) && x[1].dtype != DType::F64,
        Op::Embedding { .. } => !is_f8(x[0].dtype),
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::AddRmsNorm { .. } | Op::Softmax { .. } => narrow(0),
        Op::Rope { .. } => narrow(0) && x[2].shape.len() == 1,
        Op::Attention(_) | Op::SelectiveScan | Op::CausalConv => narrow(0),
        Op::PagedAttention(p) => narrow(0) && narrow(if p.value_dim.is_some() { 2 } else { 3 }),
        Op::ArgMax { .. } => real(0),
        Op::Sample => true,
        // Of two numbers a transform is their sum and difference.
        Op::Fft { .. } | Op::Rfft | Op::Irfft { .. } => narrow(0) && !is_tiny(&x[0]),
        _ => false,
    }
}

fn has_control(graph: &Graph) -> bool {
    graph.nodes().iter().any(|n| !n.regions.is_empty() && n.op != Op::Fused)
}

fn is_tiny(t: &Type) -> bool {
    t.shape.last().and_then(|d| d.as_fixed()).is_none_or(|n| n <= 2)
}
