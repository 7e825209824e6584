//! The MLX engine: lowers graphs to arrays of Apple's MLX, on the processor, on CUDA and on Metal.
//!
//! A step is encoded as a stream of words (`lower`) that a small C++ library, the shim, turns into MLX's graph: one call
//! for each step. Shim and MLX are loaded when an engine is opened (`library`); nothing links to them. A program lives on
//! a thread of its own (`owner`), since MLX's streams belong to threads. This crate knows nothing of models, packages or
//! where they come from: a caller says where MLX lies.

mod engine;
mod error;
mod group;
mod handle;
mod library;
mod lower;
mod options;
mod owner;
mod program;
mod repack;
mod statics;
mod weights;

pub use engine::MlxEngine;
pub use error::MlxError;
pub use library::{DeviceInfo, Home};
pub use options::{Device, Mode, Options};

/// The engine's name in messages and on the command line.
pub const NAME: &str = "mlx";
