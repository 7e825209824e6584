//! The XLA engine: graphs as StableHLO, compiled and run by whatever executor a device has. The emitter knows every
//! primitive; what composites become before is in `lower`; PJRT plugins and IREE's compiler are opened at run time. No
//! model is known here.

mod cache;
mod elf;
mod emit;
mod engine;
mod error;
mod executor;
#[cfg(test)]
mod faults;
mod find;
#[cfg(feature = "iree")]
pub mod iree;
mod k_blocks;
mod library;
mod lower;
mod pack;
pub mod pjrt;
mod program;

pub use cache::Complain;
pub use emit::{Argument, EmitOptions, Module, emit};
pub use engine::{XlaEngine, XlaOptions, module};
pub use error::XlaError;
pub use executor::{Buffer, DeviceArray, Effort, Executable, Executor};
pub use find::{Device, ExecutorName, Search, iree_compiler, plugin};
pub use lower::StepKind;
pub use pack::Keeping;

/// The engine's name in messages and on the command line.
pub const NAME: &str = "xla";
