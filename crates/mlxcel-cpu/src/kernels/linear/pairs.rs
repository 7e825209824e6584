//! Rows of `bf16` where they lie, for machines that multiply pairs of such numbers (AVX512-BF16) and have no tiles: twice as many
//! at a time as of `f32`. Rounded tokens are the nearest `bf16` numbers; others come in two halves, the nearest `bf16` and the
//! nearest one of what is left, as with tiles.
//!
//! Algorithm and order are those of [`super::tile`], with a pair of elements in the place of one, and of each pair of vectors the
//! first half before the second.
//!
//! Measured on two cores of a Zen 5: bare products 2.0 times as fast as those of `f32`, whole prompts 700 to 720 GFLOP/s where
//! widened rows made 370 to 410.
//!
//! Checked against `f32` tokens with the same rows.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;
use std::ops::Range;

use mlxcel_engine::EngineError;
use mlxcel_ir::DType;

use super::panel::Panel;
use super::tile::{Lines, Numbers, Product, Steps};
use super::{Halves, Job};
use crate::context::Context;
use crate::memory::Scratch;
use crate::simd::{Avx512, Simd, SimdLevel};
use crate::view::Shared;
use crate::weight::Rows;

/// Elements of a vector: rows are whole ones.
const STEP: usize = 32;
/// Whether rows that are not packed are multiplied in pairs.
pub(crate) fn suit(level: SimdLevel, dtype: DType, cols: usize) -> bool {
    level == SimdLevel::Avx512Bf16 && dtype == DType::BF16 && cols.is_multiple_of(STEP) && cols > 0
}

/// All tokens of a panel in `bf16`: `[token][steps of 32][halves][32]`.
pub(crate) struct Paired<'a> {
    lines: Lines<u16>,
    tokens: usize,
    halves: Halves,
    _memory: Scratch<'a>,
}

// SAFETY: tokens are only read once they are made.
unsafe impl Sync for Paired<'_> {}

impl<'a> Paired<'a> {
    /// For rows that suit.
    pub(super) fn new(
        ctx: &'a Context,
        panel: &Panel<'_>,
        rows: &Rows<'_>,
        halves: Halves,
    ) -> Result<Self, EngineError> {
        assert!(suit(ctx.level, rows.dtype, rows.cols), "rows of pairs");
        let tokens = panel.tokens;
        let stride = halves as usize * rows.cols;
        let mut memory = ctx.pool.take(tokens * stride * size_of::<u16>())?;
        let first: *mut u16 = memory.buffer().ptr().cast();
        let to = Shared(first);
        let per_task = ctx.threads.lines_per_task(tokens, stride);
        ctx.threads.each(tokens.div_ceil(per_task), |task| {
            for t in task * per_task..((task + 1) * per_task).min(tokens) {
                // SAFETY: a line has as many numbers as a row of the panel, one task writes it, and the level has the
                // instructions.
                unsafe { lay(panel.row(t, 0), rows.cols, halves, to.at(t * stride)) };
            }
        });
        Ok(Paired { lines: Lines { first, stride }, tokens, halves, _memory: memory })
    }

    /// One product, as the level's dispatch would run it with `f32` tokens.
    pub(super) fn multiply<E: Fn(usize, usize, f32)>(&self, product: Product<'_, E>) {
        let Job { panel, rows, .. } = product.job;
        let is_whole = panel.tokens <= self.tokens && self.halves as usize * rows.cols == self.lines.stride;
        assert!(is_whole, "the tokens of the product");
        // SAFETY: tokens were only laid because the level has the instructions; lines and rows are whole vectors.
        unsafe {
            match self.halves {
                Halves::One => in_pairs::<E, 1>(product, self.lines),
                Halves::Two => in_pairs::<E, 2>(product, self.lines),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn in_pairs<E: Fn(usize, usize, f32), const HALVES: usize>(product: Product<'_, E>, x: Lines<u16>) {
    // SAFETY: as the caller promises.
    unsafe {
        match product.job.panel.tokens {
            1 => few::<E, HALVES, 1>(&product, x),
            2 => few::<E, HALVES, 2>(&product, x),
            3 => few::<E, HALVES, 3>(&product, x),
            4 => few::<E, HALVES, 4>(&product, x),
            _ => product.in_blocks::<Avx512, Pairs<HALVES>>(&Steps::of_pairs(HALVES), x),
        }
    }
}

/// Few tokens: a row's way is from memory to the sum. Four neighbouring rows are read in turn, which leaves a sum time, while the
/// next four are asked for.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn few<E: Fn(usize, usize, f32), const HALVES: usize, const TOKENS: usize>(
    product: &Product<'_, E>,
    x: Lines<u16>,
) {
    let Job { rows, first, .. } = *product.job;
    let Range { start, end } = product.range;
    let ahead = 4 * rows.cols * size_of::<u16>();
    for row in (start..end).step_by(4) {
        // Those that are not there repeat the last.
        let four = [row, row + 1, row + 2, row + 3].map(|row| row.min(end - 1));
        let weights = four.map(|row| rows.parts(first + row)[0].as_ptr());
        let mut sums = [[_mm512_setzero_ps(); TOKENS]; 4];
        for at in (0..rows.cols).step_by(STEP) {
            // SAFETY: rows and lines are whole vectors; asking for an address is no access.
            unsafe {
                let w = weights.map(|row| {
                    let from = row.add(at * 2);
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ahead).cast());
                    Pairs::<HALVES>::row(from.cast())
                });
                for t in 0..TOKENS {
                    let x = Pairs::<HALVES>::token(x.first.add(t * x.stride + at * HALVES));
                    for r in 0..4 {
                        sums[r][t] = Pairs::<HALVES>::multiplied(x, w[r], sums[r][t]);
                    }
                }
            }
        }
        for t in 0..TOKENS {
            let totals = Avx512::sums([0, 1, 2, 3].map(|r| sums[r][t]));
            for (row, total) in four.into_iter().zip(totals) {
                (product.emit)(t, row, total);
            }
        }
    }
}

/// # Safety
/// `count` numbers, whole vectors, must be readable at `from`, and the line writable at `to`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn lay(from: *const f32, count: usize, halves: Halves, mut to: *mut u16) {
    for at in (0..count).step_by(STEP) {
        // SAFETY: as the caller promises.
        unsafe {
            let [low, high] = [_mm512_loadu_ps(from.add(at)), _mm512_loadu_ps(from.add(at + STEP / 2))];
            let first = _mm512_cvtne2ps_pbh(high, low);
            to.cast::<__m512bh>().write_unaligned(first);
            to = to.add(STEP);
            if halves == Halves::Two {
                let first: [__m256i; 2] = std::mem::transmute(first);
                let left = |x, first| {
                    let widened = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(first));
                    _mm512_sub_ps(x, _mm512_castsi512_ps(widened))
                };
                let rest = _mm512_cvtne2ps_pbh(left(high, first[1]), left(low, first[0]));
                to.cast::<__m512bh>().write_unaligned(rest);
                to = to.add(STEP);
            }
        }
    }
}

struct Pairs<const HALVES: usize>;

impl<const HALVES: usize> Numbers<Avx512> for Pairs<HALVES> {
    type Number = u16;
    type Row = __m512bh;
    type Token = [__m512bh; HALVES];
    const COUNT: usize = STEP;
    const PARTS: usize = HALVES;

    #[inline(always)]
    unsafe fn row(from: *const u16) -> __m512bh {
        // SAFETY: as the caller promises.
        unsafe { from.cast::<__m512bh>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn token(from: *const u16) -> [__m512bh; HALVES] {
        // SAFETY: as the caller promises.
        unsafe { from.cast::<[__m512bh; HALVES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn multiplied(x: [__m512bh; HALVES], w: __m512bh, mut sum: __m512) -> __m512 {
        for x in x {
            // SAFETY: the caller has the instructions.
            sum = unsafe { _mm512_dpbf16_ps(sum, x, w) };
        }
        sum
    }
}
