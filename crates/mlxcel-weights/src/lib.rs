//! Weights as they lie in files: safetensors and GGUF, read memory-mapped and written, and the packed formats that
//! quantised checkpoints use. A [`Checkpoint`] gives tensors by name, without copying them; [`quant`] turns
//! any of them into numbers and back; [`mod@write`] makes files. This crate knows no model: which names exist and what they mean is decided above
//! it.

#[cfg(target_endian = "big")]
compile_error!("weights are used as they lie in the file, which is little-endian");

mod bytes;
mod checkpoint;
mod config;
mod error;
pub mod gguf;
pub mod index;
mod mapped;
mod packed;
pub mod quant;
pub mod safetensors;
mod tensor;
pub mod write;

pub use bytes::Bytes;
pub use checkpoint::{Checkpoint, Kind};
pub use config::{Packing, QuantConfig};
pub use error::WeightsError;
pub use gguf::{GgufArray, GgufMetadata, GgufValue};
pub use mapped::Origin;
pub use mlxcel_platform::mapping::install_truncation_guard;
pub use quant::RowDecoder;
pub use tensor::{TensorInfo, WeightTensor};
