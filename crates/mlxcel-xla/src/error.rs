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
        "no PJRT plugin for '{device}' was found; looked for {looked}. {} its file with --xla-plugin or \
         MLXCEL_XLA_PLUGIN",
        package.map_or("Name".to_string(), |name| format!("Fetch one with `mlxcel engine install {name}`, or name"))
    )]
    NoPlugin { device: String, package: Option<&'static str>, looked: String },
    #[error("'{name}' is no device of XLA: choose cpu, cuda, rocm, tpu, vulkan or metal")]
    UnknownDevice { name: String },
    #[error(
        "'{text}' is no share of the device's memory: give MLXCEL_XLA_MEMORY a number above 0, at most 1, such as 0.5"
    )]
    MemoryShare { text: String },
    #[error(
        "the memory of '{device}' cannot be shared out: unset MLXCEL_XLA_MEMORY, which is for cuda and rocm"
    )]
    NoMemoryShare { device: String },
    #[error("'{name}' is no executor of XLA: choose pjrt or iree")]
    UnknownExecutor { name: String },
    #[error(
        "this build of mlxcel has no IREE: build it with --features iree, or use MLXCEL_XLA_EXECUTOR=pjrt"
    )]
    NoIree,
    #[error(
        "{device} is reached through IREE only: set MLXCEL_XLA_EXECUTOR=iree, in a build with --features iree"
    )]
    NeedsIree { device: String },
    #[error(
        "IREE's compiler was not found; looked for {looked}. Fetch it with `mlxcel engine install iree`, or \
         name its library, or iree-compile, with MLXCEL_XLA_IREE_COMPILE"
    )]
    NoCompiler { looked: String },
    #[error("{path} is no compiler of IREE: {reason}")]
    NotACompiler { path: PathBuf, reason: String },
    #[error(
        "{path} is IREE's compiler {found}; the runtime of this build is {ours}, and both must be of one version. \
         `mlxcel engine install iree` fetches the one that fits"
    )]
    CompilerVersion { path: PathBuf, found: String, ours: &'static str },
    #[error("this build's IREE has no driver for {device}; it has {has}{hint}")]
    NoDriver { device: String, has: String, hint: &'static str },
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
    #[error(
        "{path} is a plugin for {platform}, but the device is {device}: choose the plugin's with --device {platform} or \
         MLXCEL_XLA_DEVICE={platform}, or name a plugin for {device} with --xla-plugin or MLXCEL_XLA_PLUGIN"
    )]
    WrongPlugin { path: PathBuf, platform: String, device: String },
    #[error("{path} reads StableHLO from {from} to {to}; mlxcel writes {ours}")]
    StableHlo { path: PathBuf, from: String, to: String, ours: String },
    #[error("no {device} is visible: {reason}. See `mlxcel devices`; --device cpu runs on the processor")]
    NoDevice { device: String, reason: String },
    #[error("{doing} failed: {message}")]
    Pjrt { doing: &'static str, message: String },
    #[error("{doing} failed in IREE: {message}")]
    Iree { doing: &'static str, message: String },
    #[error("{found} results of a module came back; it has {expected}")]
    Results { found: usize, expected: usize },
    #[error("the module of {what} does not compile: {message}")]
    Compile { what: String, message: String },
    #[error("compiled modules cannot be kept in {path}, so that they are made anew at every start: {source}")]
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
