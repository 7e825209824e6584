//! Tokens as the product kernel reads them: rows of `f32`, padded with zeros to whole vectors.
#![allow(unsafe_code)]

use std::ops::Range;

use mlxcel_engine::EngineError;
use mlxcel_ir::DType;

use crate::context::Context;
use crate::kernels::packed::Tokens;
use crate::lanes::Lane;
use crate::memory::Scratch;
use crate::simd::LANES_MAX;
use crate::view::View;

/// How many `bf16` numbers stand for an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Halves {
    One = 1,
    Two = 2,
}

/// Rows of numbers in memory that outlives the panel. Every token is exact unless it is said otherwise.
pub(crate) struct Panel<'a> {
    base: *const f32,
    /// Numbers from one row to the next.
    stride: usize,
    pub(crate) tokens: usize,
    /// Whether all numbers are `bf16` ones.
    pub(crate) is_bf16: bool,
    /// Runs of tokens that are computed as exactly as the engine can, if others need not be.
    pub(crate) exact: Option<Vec<Range<usize>>>,
    /// All tokens as tiles have them, if they are: then only rows of exact ones have numbers.
    pub(crate) tiles: Option<Tokens<'a>>,
    _copy: Option<Scratch<'a>>,
}

// SAFETY: a panel is only read once it is made.
unsafe impl Sync for Panel<'_> {}

/// Rows are padded to a multiple of the widest vector.
pub(super) fn padded(k: usize) -> usize {
    k.next_multiple_of(LANES_MAX)
}

impl<'a> Panel<'a> {
    /// The view as `[tokens, k]`: where it lies if it is `f32` in whole vectors, a copy otherwise.
    pub(crate) fn new(
        ctx: &'a Context,
        view: &View<'a>,
        [tokens, k]: [usize; 2],
    ) -> Result<Self, EngineError> {
        let flat = view.layout.reshape(&[tokens, k]);
        if let Some(l) = flat
            && view.dtype == DType::F32
            && k == padded(k)
            && k > 0
            && l.strides[1] == 1
        {
            return Ok(Panel {
                base: view.elements_of::<f32>().as_ptr(),
                stride: l.strides[0],
                tokens,
                is_bf16: false,
                exact: None,
                tiles: None,
                _copy: None,
            });
        }
        let dense;
        let (view, layout) = match flat {
            Some(l) => (*view, l),
            None => {
                dense = ctx.dense(view)?;
                (dense.view, crate::layout::Layout::contiguous(&[tokens, k]))
            }
        };
        let panel = Self::copied(ctx, tokens, k, |t, row| {
            f32::load(view.dtype, view.bytes(), (t * layout.strides[0], layout.strides[1]), row);
        })?;
        Ok(Panel { is_bf16: view.dtype == DType::BF16, ..panel })
    }

    /// The rows of the last axis of `view` that `places` number, in row-major order of the other axes.
    pub(crate) fn gathered(ctx: &'a Context, view: &View<'a>, places: &[usize]) -> Result<Self, EngineError> {
        let l = &view.layout;
        let (chosen, k) = (l.shape[1], l.shape[2]);
        let panel = Self::copied(ctx, places.len(), k, |t, row| {
            let at = places[t] / chosen * l.strides[0] + places[t] % chosen * l.strides[1];
            f32::load(view.dtype, view.bytes(), (at, l.strides[2]), row);
        })?;
        Ok(Panel { is_bf16: view.dtype == DType::BF16, ..panel })
    }

    fn copied(
        ctx: &'a Context,
        tokens: usize,
        k: usize,
        fill: impl Fn(usize, &mut [f32]),
    ) -> Result<Self, EngineError> {
        let stride = padded(k);
        let mut scratch = ctx.pool.take(tokens * stride * size_of::<f32>())?;
        let base: *mut f32 = scratch.buffer().ptr().cast();
        // SAFETY: the scratch buffer has at least this many aligned bytes, initialised and exclusively ours.
        let rows = unsafe { std::slice::from_raw_parts_mut(base, tokens * stride) };
        for (t, row) in rows.chunks_mut(stride.max(1)).enumerate() {
            fill(t, &mut row[..k]);
            row[k..].fill(0.0);
        }
        Ok(Panel { base, stride, tokens, is_bf16: false, exact: None, tiles: None, _copy: Some(scratch) })
    }

    /// Lets all tokens but those be rounded.
    pub(crate) fn rounded(self, is_exact: impl Fn(usize) -> bool) -> Self {
        let mut runs: Vec<Range<usize>> = vec![];
        for t in (0..self.tokens).filter(|&t| is_exact(t)) {
            match runs.last_mut().filter(|run| run.end == t) {
                Some(run) => run.end += 1,
                None => runs.push(t..t + 1),
            }
        }
        Panel { exact: Some(runs), ..self }
    }

    /// Some of the tokens.
    pub(crate) fn part(&self, tokens: Range<usize>) -> Panel<'_> {
        assert!(tokens.end <= self.tokens, "{tokens:?} of {}", self.tokens);
        let base = self.base.wrapping_add(tokens.start * self.stride);
        let (stride, is_bf16) = (self.stride, self.is_bf16);
        Panel { base, stride, tokens: tokens.len(), is_bf16, exact: None, tiles: None, _copy: None }
    }

    /// Numbers from `k` on of a row; the row has whole vectors to read.
    #[inline(always)]
    pub(crate) fn row(&self, token: usize, k: usize) -> *const f32 {
        debug_assert!(token < self.tokens, "token {token} of {}", self.tokens);
        self.base.wrapping_add(token * self.stride + k)
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }
}
