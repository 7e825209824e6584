//! What can go wrong between a graph and a device.

use std::path::PathBuf;

use mlxcel_engine::EngineError;
use mlxcel_ir::IrError;

/// Why XLA could not be used, or a module not be made, compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum XlaError {
    #[error(transparent)]
    Graph(#[from] IrError),
    #[error("the xla engine cannot run {op} on {operands}")]
    Unsupported { op: String, operands: String },
    #[error("{ty} has a size that is not bound")]
    Unbound { ty: String },
    #[error(
        "no PJRT plugin for '{device}' was found; looked for {looked}. Fetch one with `cargo xtask fetch {package}`, \
         or name its file with --xla-plugin or MLXCEL_XLA_PLUGIN"
    )]
    NoPlugin { device: String, package: &'static str, looked: String },
    #[error("'{name}' is no device of XLA: choose cpu, cuda, rocm, tpu, vulkan or metal")]
    UnknownDevice { name: String },
    #[error("'{name}' is no executor of XLA: choose pjrt or iree")]
    UnknownExecutor { name: String },
    #[error(
        "this build of mlxcel has no IREE: build it with --features iree, or use MLXCEL_XLA_EXECUTOR=pjrt"
    )]
    NoIree,
    #[error("{device} is reached through IREE only, and this build has none: build with --features iree")]
    NeedsIree { device: String },
    #[error(
        "{path} could not be loaded: {reason}. The file may be damaged or for another system; fetch it again"
    )]
    Load { path: PathBuf, reason: String },
    #[error("{path} is no PJRT plugin: it has no GetPjrtApi")]
    NotAPlugin { path: PathBuf },
    #[error(
        "{path} speaks version {major}.{minor} of the PJRT interface; mlxcel speaks {ours}, and needs at least 0.{least}"
    )]
    ApiVersion { path: PathBuf, major: i32, minor: i32, ours: &'static str, least: i32 },
    #[error("{path} reads StableHLO from {from} to {to}; mlxcel writes {ours}")]
    StableHlo { path: PathBuf, from: String, to: String, ours: String },
    #[error("no {device} is visible: {reason}. See `mlxcel devices`; --device cpu runs on the processor")]
    NoDevice { device: String, reason: String },
    #[error("{doing} failed: {message}")]
    Pjrt { doing: &'static str, message: String },
    #[error("XLA does not compile the module of {what}: {message}")]
    Compile { what: String, message: String },
    #[error("the cache of executables at {path} cannot be written: {source}")]
    Cache { path: PathBuf, source: std::io::Error },
}

impl From<XlaError> for EngineError {
    fn from(e: XlaError) -> Self {
        match e {
            XlaError::Graph(e) => EngineError::Graph(e),
            XlaError::Unsupported { op, operands } => {
                EngineError::Unsupported { engine: crate::NAME, op, operands }
            }
            other => EngineError::Device { engine: crate::NAME, source: Box::new(other) },
        }
    }
}
