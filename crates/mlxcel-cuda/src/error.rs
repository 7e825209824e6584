//! What can go wrong with a driver, a device or a kernel.

use mlxcel_engine::EngineError;

/// Why the engine could not be opened or a call of the driver failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    #[error(
        "there is no NVIDIA driver on this machine: {library} could not be loaded ({reason}); install the driver, or use \
         another engine"
    )]
    NoDriver { library: &'static str, reason: String },
    #[error(
        "the NVIDIA driver is too old: it supports CUDA {}.{}; install a driver for CUDA 13.0 or later (580 and up)",
        version / 1000, version % 1000 / 10
    )]
    OldDriver { version: i32 },
    #[error("the NVIDIA driver finds no device")]
    NoDevice,
    #[error("there is no CUDA device {index}: the driver finds {count}")]
    UnknownDevice { index: usize, count: usize },
    #[error(
        "{name} has compute capability {}.{}: the engine needs 8.0 or later", capability.0, capability.1
    )]
    OldDevice { name: String, capability: (i32, i32) },
    #[error("the driver's {call} failed: {name} ({code})")]
    Call { call: &'static str, code: i32, name: String },
    #[error(
        "NCCL, by which GPUs share a model, is not on this machine: {library} could not be loaded ({reason}); install it \
         (pip: nvidia-nccl-cu13, Debian: libnccl2) where the loader finds it, for example by LD_LIBRARY_PATH"
    )]
    NoNccl { library: &'static str, reason: String },
    #[error("this process belongs to another group already; start it anew")]
    OtherGroup,
    #[error("the first member's invitation is none of NCCL's; run the same version of mlxcel on all members")]
    BadInvitation,
    #[error("the graph is a part of a model, and this engine has joined no group that has the others")]
    NoGroup,
    #[error("tensors of {dtype} cannot be exchanged between GPUs")]
    NotExchanged { dtype: mlxcel_ir::DType },
    #[error("the kernels of this build are damaged: {reason}")]
    Kernels { reason: String },
    #[error(
        "{needed} bytes are needed for {what}, but {free} of the {limit} bytes given to the engine are free"
    )]
    OutOfMemory { what: String, needed: u64, free: u64, limit: u64 },
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

impl CudaError {
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::Call { code: OUT_OF_MEMORY, .. } | CudaError::OutOfMemory { .. })
    }
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::OutOfMemory { what, needed, .. } => {
                EngineError::OutOfMemory { what, bytes: usize::try_from(needed).unwrap_or(usize::MAX) }
            }
            other => EngineError::Device { engine: crate::NAME, source: Box::new(other) },
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, CudaError>;
