//! Writes checkpoints: safetensors files and GGUF files, from rows that are made when they are needed, so that a model
//! need never be in memory. Which tensors a file has, and in what type, is decided by those above; so is where the
//! file lies and when it counts as finished.

mod gguf;
mod random;
mod safetensors;
mod stream;

pub use gguf::{gguf_type, write_gguf};
pub use random::RandomRows;
pub use safetensors::{Stored, arrays, write_safetensors};

use mlxcel_ir::DType;

use crate::error::{Result, WeightsError};
use crate::quant::can_encode;
use crate::tensor::{WeightTensor, part_sizes};

/// The rows of a tensor, in `f32`, made on demand and from several threads.
pub trait Rows: Send + Sync {
    /// As many whole rows as `out` holds, from `first` on.
    fn fill(&self, first: usize, out: &mut [f32]);

    /// Rows that are cheapest made together: `first` is always a multiple of it.
    fn together(&self) -> usize {
        1
    }

    /// The tensor itself, where its rows are those of a stored one, unchanged and in their order.
    fn stored(&self) -> Option<&WeightTensor> {
        None
    }
}

/// A tensor to be written.
pub struct NewTensor {
    pub name: String,
    pub dtype: DType,
    /// Row-major, as the reader gives it.
    pub shape: Vec<usize>,
    pub rows: Box<dyn Rows>,
}

impl NewTensor {
    /// Bytes of all its arrays; an error where the type cannot hold the shape or has no encoder.
    pub fn bytes(&self) -> Result<u64> {
        let copied = self.rows.stored().is_some_and(|t| t.dtype == self.dtype);
        let sizes = part_sizes(self.dtype, &self.shape).filter(|_| copied || can_encode(self.dtype));
        let refuse = || WeightsError::CannotStore {
            tensor: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
        };
        Ok(sizes.ok_or_else(refuse)?.iter().map(|&bytes| bytes as u64).sum())
    }
}

/// Is told of every piece that was written, and may end the writing.
pub trait Watch {
    /// `false` ends the writing with [`WeightsError::Stopped`].
    fn wrote(&mut self, bytes: u64) -> bool;
}

/// Watches nothing.
impl Watch for () {
    fn wrote(&mut self, _bytes: u64) -> bool {
        true
    }
}
