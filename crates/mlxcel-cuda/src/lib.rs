//! The CUDA engine: kernels compiled ahead of time and embedded in this crate, run through the NVIDIA driver alone, which
//! is looked for when the engine is opened. Nothing here links to CUDA. Which model runs is not known here.

mod bucket;
mod calibrate;
mod code;
mod context;
mod driver;
mod engine;
mod error;
mod exchange;
mod images;
mod lower;
mod memory;
mod params;
mod program;
mod tape;
mod view;
mod weights;

// NCCL has no Windows.
#[cfg(not(windows))]
mod nccl;

#[cfg(test)]
mod fake;

pub use calibrate::Ceilings;
pub use engine::{CudaEngine, CudaOptions, Device, devices};
pub use error::CudaError;
pub use images::SOURCES_DIGEST;
pub use weights::Progress;

/// The engine's name in messages.
const NAME: &str = "cuda";

/// The error for an op that cannot be run.
fn unsupported(op: &mlxcel_ir::Op, operands: &[mlxcel_ir::Type]) -> mlxcel_engine::EngineError {
    let operands = operands.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
    mlxcel_engine::EngineError::Unsupported { engine: NAME, op: op.name(), operands }
}
