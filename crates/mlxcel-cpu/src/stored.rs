//! A tensor in memory of the engine's own: constants, and weights that had to be joined. Written once, when it is
//! made.
#![allow(unsafe_code)]

use mlxcel_engine::EngineError;
use mlxcel_ir::{DType, HostTensor};

use crate::layout::Layout;
use crate::memory::Buffer;
use crate::view::View;

/// Aligned, row-major, and read-only from now on.
#[derive(Debug)]
pub(crate) struct Stored {
    buffer: Buffer,
    dtype: DType,
    layout: Layout,
}

impl Stored {
    /// The pieces end to end. Panics if they are not what type and shape need.
    pub(crate) fn new(dtype: DType, shape: &[usize], pieces: &[&[u8]]) -> Result<Self, EngineError> {
        let bytes = pieces.iter().map(|p| p.len()).sum();
        assert_eq!(dtype.storage_bytes(shape), Some(bytes), "pieces of another size");
        let mut buffer = Buffer::zeroed(bytes, "constants and weights")?;
        let mut rest = buffer.bytes_mut();
        for piece in pieces {
            let (head, tail) = rest.split_at_mut(piece.len());
            head.copy_from_slice(piece);
            rest = tail;
        }
        Ok(Stored { buffer, dtype, layout: Layout::contiguous(shape) })
    }

    pub(crate) fn of_host(t: &HostTensor) -> Result<Self, EngineError> {
        Self::new(t.dtype(), t.shape(), &[t.bytes()])
    }

    pub(crate) fn view(&self) -> View<'_> {
        // SAFETY: the buffer is as large as the layout, aligned, borrowed for the view's life, and never written.
        unsafe { View::new(self.buffer.ptr(), self.dtype, self.layout) }
    }
}
