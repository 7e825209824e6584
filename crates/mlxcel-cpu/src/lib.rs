//! The CPU engine: graphs compiled to plans over threaded SIMD kernels that read weights as they lie in the
//! checkpoint. It knows the seam and the graph; it knows no model, no scheduler and no other engine.

mod calibrate;
mod context;
mod engine;
mod folding;
mod kept;
mod kernels;
mod lanes;
mod layout;
mod math;
mod memory;
mod plan;
mod program;
mod roles;
mod run;
mod simd;
mod statics;
mod stored;
mod threads;
mod view;
mod weight;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Op, Type};

pub use calibrate::Calibration;
pub use context::Products;
pub use engine::{CpuEngine, CpuOptions};
pub use kept::{Complain, KeptError};
pub use simd::SimdLevel;

#[cfg(test)]
emulator::lend!(SimdLevel::suppose);

/// The engine's name in messages and capabilities.
const NAME: &str = "cpu";

fn unsupported(op: &Op, operands: &[Type]) -> EngineError {
    let operands: Vec<String> = operands.iter().map(|t| t.to_string()).collect();
    EngineError::Unsupported { engine: NAME, op: op.name(), operands: operands.join(", ") }
}
