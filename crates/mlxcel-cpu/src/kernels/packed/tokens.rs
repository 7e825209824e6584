//! Tokens as products in tiles read them: rows of `f32` rounded to `bf16`, or cut into two halves of it.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlxcel_engine::EngineError;

use super::tiles::{STEP, TILE, TOKENS};
use super::{Numbers, Packed};
use crate::context::Context;
use crate::memory::Scratch;

/// Activations in tiles: `[pair of tiles][step][2][16][32]`, padded with zeros to whole pairs. First come tokens in one
/// half, sixteen to a tile, then others in two, sixteen to a pair of tiles of which the second holds what is left.
pub(crate) struct Tokens<'a> {
    base: *mut u16,
    /// Tiles of tokens, a multiple of two.
    pub(super) tiles: usize,
    /// Those of tokens in one half.
    pub(super) rounded: usize,
    /// Elements of `k`, whole steps.
    pub(super) depth: usize,
    /// Lines of a tile that may hold tokens.
    pub(super) lines: usize,
    /// Which tokens they are: no others have it.
    pub(super) number: usize,
    _memory: Scratch<'a>,
}

// SAFETY: tokens are only read once they are made, and every line is written by one task.
unsafe impl Sync for Tokens<'_> {}

impl<'a> Tokens<'a> {
    /// Room for so many tokens in one half, and others in two.
    pub(super) fn room(
        ctx: &'a Context,
        cols: usize,
        (rounded, exact): (usize, usize),
    ) -> Result<Self, EngineError> {
        let depth = cols.next_multiple_of(STEP);
        let first = rounded.div_ceil(TOKENS).next_multiple_of(2);
        let tiles = first + 2 * exact.div_ceil(TOKENS);
        let lines = if tiles > 2 { TOKENS } else { rounded.max(exact).clamp(1, TOKENS) };
        let mut memory = ctx.pool.take(tiles * TOKENS * depth * 2)?;
        let base: *mut u16 = memory.buffer().ptr().cast();
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Ok(Tokens { base, tiles, rounded: first, depth, lines, number, _memory: memory })
    }

    /// From rows of `f32`: the first `rounded` tokens in one half, and those that `exact` numbers in two.
    ///
    /// # Safety
    /// The machine must have AVX-512 with `bf16`, and `row` give `cols` readable numbers for every token.
    pub(super) unsafe fn new(
        ctx: &'a Context,
        cols: usize,
        (rounded, exact): (usize, &[usize]),
        row: impl Fn(usize) -> *const f32 + Sync,
    ) -> Result<Self, EngineError> {
        let tokens = Self::room(ctx, cols, (rounded, exact.len()))?;
        // SAFETY: as the caller promises.
        unsafe {
            tokens.fill_rounded(ctx, rounded, &row, cols);
            tokens.fill_exact(ctx, exact, row, cols);
        }
        Ok(tokens)
    }

    /// Whether there are so many tiles for tokens in one half, and for others in two.
    pub(super) fn holds(&self, rounded: usize, exact: usize) -> bool {
        let first = rounded.div_ceil(TOKENS).next_multiple_of(2);
        (self.rounded, self.tiles) == (first, first + 2 * exact.div_ceil(TOKENS))
    }

    /// The first tokens, in one half. `row` is called once for each of them, and what it gives is read before the same thread
    /// calls it again.
    ///
    /// # Safety
    /// As for [`Self::new`].
    pub(super) unsafe fn fill_rounded(
        &self,
        ctx: &Context,
        rounded: usize,
        row: impl Fn(usize) -> *const f32 + Sync,
        cols: usize,
    ) {
        let line = |line: usize| (line < rounded).then(|| row(line));
        // SAFETY: as the caller promises.
        unsafe { self.fill(ctx, 0..self.rounded, line, cols) };
    }

    /// The tokens in two halves.
    ///
    /// # Safety
    /// As for [`Self::new`].
    pub(super) unsafe fn fill_exact(
        &self,
        ctx: &Context,
        exact: &[usize],
        row: impl Fn(usize) -> *const f32 + Sync,
        cols: usize,
    ) {
        let first = self.rounded * TOKENS;
        let token = |line: usize| {
            let (pair, slot) = ((line - first) / (2 * TOKENS), line % TOKENS);
            exact.get(pair * TOKENS + slot).map(|&token| row(token))
        };
        // SAFETY: as the caller promises.
        unsafe { self.fill(ctx, self.rounded..self.tiles, token, cols) };
    }

    /// Some tiles, line by line: zeros where there is no row, unless no tile has the line.
    ///
    /// # Safety
    /// As for [`Self::new`].
    unsafe fn fill(
        &self,
        ctx: &Context,
        tiles: Range<usize>,
        row: impl Fn(usize) -> Option<*const f32> + Sync,
        cols: usize,
    ) {
        let (first, lines) = (tiles.start * TOKENS, tiles.len() * TOKENS);
        let per_task = ctx.threads.lines_per_task(lines, self.depth).next_multiple_of(TOKENS);
        ctx.threads.each(lines.div_ceil(per_task), |task| {
            for line in first + task * per_task..first + ((task + 1) * per_task).min(lines) {
                if line % TOKENS >= self.lines {
                    continue;
                }
                let tile = line / TOKENS;
                let half = if tile < self.rounded { 0 } else { tile % 2 };
                let x = row(line).map_or((std::ptr::null(), 0), |row| (row, cols));
                // SAFETY: a line of a tile lies within the memory and is written by one task; the row has the elements.
                unsafe { convert(x, self.depth, half, self.line(tile, 0).add(line % TOKENS * STEP)) };
            }
        });
    }

    /// The pair of tiles from `tile` on, from element `start` of `k` on.
    pub(super) fn pair(&self, tile: usize, start: usize) -> *const u16 {
        self.line(tile, start).cast_const()
    }

    /// The first line of a tile, from element `start` of `k` on; the next ones follow a step's elements later.
    pub(super) fn line(&self, tile: usize, start: usize) -> *mut u16 {
        let place = tile / 2 * 2 * TOKENS * self.depth + tile % 2 * TILE;
        self.base.wrapping_add(place + start / STEP * 2 * TILE + start % STEP)
    }
}

/// One line of a tile at all steps of `depth` elements: the numbers of the row, and zeros behind its end. The second
/// half is what the first left.
///
/// # Safety
/// The row must have its numbers, and the line of every step be writable, two tiles further on each time from `to` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn convert((x, cols): (*const f32, usize), depth: usize, half: usize, to: *mut u16) {
    for at in (0..depth).step_by(16) {
        let count = cols.saturating_sub(at).min(16);
        let mask = ((1u32 << count) - 1) as __mmask16;
        // SAFETY: masked-out lanes are not read; every step has a line of 32 places.
        unsafe {
            let v = _mm512_maskz_loadu_ps(mask, x.wrapping_add(at));
            let first: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(v));
            let bits = if half == 0 {
                first
            } else {
                let widened = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(first)));
                std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(_mm512_sub_ps(v, widened)))
            };
            _mm256_storeu_si256(to.add(at / STEP * 2 * TILE + at % STEP).cast(), bits);
        }
    }
}

impl Packed {
    /// Tokens as products with these weights read them: all rounded, and those of `exact` in two halves if they take tiles. `make`
    /// is called once for every token, and gives its row, which is read before the same thread makes another one; `made` gives
    /// rows of exact tokens after that. `None` where tokens go no such way.
    ///
    /// # Safety
    /// All rows must have as many readable numbers as there are columns.
    pub(crate) unsafe fn lay<'a>(
        &self,
        ctx: &'a Context,
        (tokens, exact): (usize, &[usize]),
        make: impl Fn(usize) -> *const f32 + Sync,
        made: impl Fn(usize) -> *const f32 + Sync,
    ) -> Result<Option<Tokens<'a>>, EngineError> {
        if !ctx.level.has_tiles() || !self.cols.is_multiple_of(STEP) {
            return Ok(None);
        }
        let in_halves = if self.numbers == Numbers::Halves { exact } else { &[] };
        let laid = Tokens::room(ctx, self.cols, (tokens, in_halves.len()))?;
        // SAFETY: the level has the features, and the caller promises the rest.
        unsafe {
            laid.fill_rounded(ctx, tokens, make, self.cols);
            laid.fill_exact(ctx, in_halves, made, self.cols);
        }
        Ok(Some(laid))
    }
}
