//! What can go wrong at the seam.

use mlxcel_ir::IrError;
use mlxcel_ir::interp::EvalError;
use mlxcel_weights::WeightsError;

/// Why an engine could not compile a graph or run a step.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Graph(#[from] IrError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error("the {engine} engine cannot run {op} on {operands}")]
    Unsupported { engine: &'static str, op: String, operands: String },
    #[error("input '{name}' was not fed")]
    MissingFeed { name: String },
    #[error("input '{name}' is declared as {declared} but was fed {found}")]
    FeedType { name: String, declared: String, found: String },
    #[error("weight '{name}' is declared as {declared} but the checkpoint has {found}")]
    WeightType { name: String, declared: String, found: String },
    #[error("the graph has no output '{name}'")]
    UnknownOutput { name: String },
    #[error("dimension {dim} of {what} is not bound")]
    Unbound { what: String, dim: String },
    #[error("state entry {index} of '{axis}' does not exist: there are {count}")]
    StateIndex { axis: String, index: u32, count: usize },
    #[error("no step with ticket {ticket} is in flight")]
    UnknownTicket { ticket: u64 },
    #[error("{bytes} bytes for {what} could not be allocated")]
    OutOfMemory { what: String, bytes: usize },
    /// The device or the library that runs it refused something; `source` says what.
    #[error("{source}")]
    Device { engine: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the engine's thread pool could not be started: {source}")]
    Threads { source: std::io::Error },
}
