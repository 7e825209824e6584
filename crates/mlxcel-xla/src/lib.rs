//! The XLA engine: graphs as StableHLO, compiled and run by whatever executor a device has. The emitter knows every
//! primitive; what composites become before is in `lower`; PJRT plugins are opened at run time. No model is known here.

mod emit;
mod engine;
mod error;
mod executor;
mod find;
mod lower;
mod pack;
pub mod pjrt;
mod program;

pub use emit::{Argument, EmitOptions, Module, emit};
pub use engine::{XlaEngine, XlaOptions, module};
pub use error::XlaError;
pub use executor::{Buffer, DeviceArray, Executable, Executor};
pub use find::{Device, ExecutorName, Search, plugin};
pub use lower::StepKind;

/// The engine's name in messages and on the command line.
pub const NAME: &str = "xla";
