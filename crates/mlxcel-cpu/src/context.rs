//! What every kernel is given besides its operands: the threads, the instruction set and memory for short-lived
//! copies.

use mlxcel_engine::EngineError;

use crate::kernels::copy;
use crate::layout::Layout;
use crate::memory::{Pool, Scratch, Slabs};
use crate::simd::SimdLevel;
use crate::threads::Threads;
use crate::view::View;
use crate::weight::Matrix;

/// The machine as kernels see it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) level: SimdLevel,
    pub(crate) threads: Threads,
    pub(crate) pool: Pool,
    pub(crate) slabs: Slabs,
    pub(crate) products: Products,
}

/// How activations meet weights of 16 bits and fewer, where the processor has instructions for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// As exact as `f32` activations and decoded weights in `f32`.
    #[default]
    Exact,
    /// Tokens that other known tokens follow are multiplied in `bf16`, and attend in it where the cache has 16 bits; the
    /// last known token of a sequence, from which the next is drawn, is multiplied with activations of 16 bits.
    Fast,
}

/// An operand: a view, and the packed or segmented form where it is a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) view: View<'a>,
    pub(crate) matrix: Option<&'a Matrix>,
}

/// A row-major form of a view: itself, or a copy that lives as long as this.
pub(crate) struct Dense<'a> {
    pub(crate) view: View<'a>,
    _copy: Option<Scratch<'a>>,
}

impl Context {
    /// The view with its elements in row-major order, copied only if they are not.
    #[allow(unsafe_code)]
    pub(crate) fn dense<'a>(&'a self, view: &View<'a>) -> Result<Dense<'a>, EngineError> {
        if view.layout.is_contiguous() {
            let layout = Layout::contiguous(view.shape());
            return Ok(Dense { view: view.with_layout(0, layout), _copy: None });
        }
        let mut scratch = self.pool.take(view.elements() * view.size())?;
        let base = scratch.buffer().ptr();
        // SAFETY: the scratch buffer is as large as the copy, aligned, and exclusively ours until it is dropped.
        let mut out = unsafe { crate::view::Out::new(base, view.dtype, view.layout.shape) };
        copy::strided(self, view, &mut out);
        Ok(Dense { view: out.view(), _copy: Some(scratch) })
    }
}
