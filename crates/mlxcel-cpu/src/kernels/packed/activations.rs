//! Activations as whole numbers: a block of [`BLOCK`] elements shares one scale, and each number is cut into signed
//! bytes, the highest first, that byte products can take. Three bytes are as exact as `f32`; two are enough for
//! numbers that were `bf16`.
//!
//! The rounding is relative to the largest element of a block, whatever row it is in and whatever is computed beside
//! it.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use mlxcel_engine::EngineError;

use super::format::BLOCK;
use crate::context::Context;
use crate::memory::Scratch;

/// The largest whole number that is used: its bytes are signed, with room for what rounding adds.
fn largest(bytes: usize) -> f32 {
    (127 << (8 * (bytes - 1))) as f32
}

/// Rows of whole numbers, with the sums of their groups and the scales of their blocks.
pub(super) struct Activations<'a> {
    /// Bytes of a number.
    pub(super) bytes: usize,
    cols: usize,
    groups: usize,
    blocks: usize,
    /// `[tokens][cols / 4][bytes]` of four.
    limbs: *const i8,
    /// `[tokens][groups]`.
    sums: *const f32,
    /// `[tokens][blocks]`.
    scales: *const f32,
    _memory: Scratch<'a>,
}

// SAFETY: activations are only read once they are made.
unsafe impl Sync for Activations<'_> {}

impl<'a> Activations<'a> {
    /// From rows of `f32` that `row` gives, in two or three bytes; `cols` is a multiple of `group`.
    ///
    /// # Safety
    /// The machine must have AVX-512 F, BW, VL and DQ, and `row` must give `cols` readable numbers for every token.
    pub(super) unsafe fn new(
        ctx: &'a Context,
        [tokens, cols, group, bytes]: [usize; 4],
        row: impl Fn(usize) -> *const f32 + Sync,
    ) -> Result<Self, EngineError> {
        let (groups, blocks) = (cols / group, cols.div_ceil(BLOCK));
        let sums_at = (tokens * cols * bytes).next_multiple_of(64);
        let scales_at = sums_at + (tokens * groups * 4).next_multiple_of(64);
        let mut memory = ctx.pool.take(scales_at + tokens * blocks * 4)?;
        let base = memory.buffer().ptr();
        let parts = Parts {
            limbs: base.cast(),
            // SAFETY: the buffer was taken with room for all three arrays.
            sums: unsafe { base.add(sums_at) }.cast(),
            // SAFETY: as above.
            scales: unsafe { base.add(scales_at) }.cast(),
        };
        let per_task = ctx.threads.lines_per_task(tokens, cols);
        ctx.threads.each(tokens.div_ceil(per_task), |task| {
            for t in task * per_task..((task + 1) * per_task).min(tokens) {
                // SAFETY: the arrays have a place of its own for every token; the features are promised.
                unsafe {
                    let parts = parts.at(t, [cols * bytes, groups, blocks]);
                    if bytes == 2 {
                        parts.fill::<2>(row(t), cols, group)
                    } else {
                        parts.fill::<3>(row(t), cols, group)
                    }
                }
            }
        });
        let Parts { limbs, sums, scales } = parts;
        Ok(Activations { bytes, cols, groups, blocks, limbs, sums, scales, _memory: memory })
    }

    /// The bytes of a token from a multiple of four elements on.
    #[inline(always)]
    pub(super) fn limbs(&self, token: usize, at: usize) -> *const i8 {
        self.limbs.wrapping_add((token * self.cols + at) * self.bytes)
    }

    #[inline(always)]
    pub(super) fn sums(&self, token: usize, group: usize) -> *const f32 {
        self.sums.wrapping_add(token * self.groups + group)
    }

    #[inline(always)]
    pub(super) fn scales(&self, token: usize) -> *const f32 {
        self.scales.wrapping_add(token * self.blocks)
    }
}

/// Where the numbers of a token go.
#[derive(Clone, Copy)]
struct Parts {
    limbs: *mut i8,
    sums: *mut f32,
    scales: *mut f32,
}

// SAFETY: every task writes the places of its own tokens.
unsafe impl Send for Parts {}
// SAFETY: as above.
unsafe impl Sync for Parts {}

impl Parts {
    /// # Safety
    /// The arrays must have room for token `t`.
    unsafe fn at(&self, t: usize, [limbs, groups, blocks]: [usize; 3]) -> Parts {
        // SAFETY: as the caller promises.
        unsafe {
            Parts {
                limbs: self.limbs.add(t * limbs),
                sums: self.sums.add(t * groups),
                scales: self.scales.add(t * blocks),
            }
        }
    }

    /// # Safety
    /// The machine must have the features, `x` `cols` numbers, and the places room for them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn fill<const BYTES: usize>(&self, x: *const f32, cols: usize, group: usize) {
        // SAFETY: as the caller promises; groups are whole units of 16 elements and divide blocks.
        unsafe {
            let mut block = 0;
            while block * BLOCK < cols {
                let start = block * BLOCK;
                let end = (start + BLOCK).min(cols);
                let scale = top(x.add(start), end - start) / largest(BYTES);
                *self.scales.add(block) = scale;
                let inverse = _mm512_set1_ps(if scale > 0.0 { 1.0 / scale } else { 0.0 });
                let mut at = start;
                while at < end {
                    let mut sum = _mm512_setzero_si512();
                    let stop = at + group;
                    while at < stop {
                        let q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x.add(at)), inverse));
                        sum = _mm512_add_epi32(sum, q);
                        store::<BYTES>(self.limbs.add(at * BYTES), q);
                        at += 16;
                    }
                    *self.sums.add(at / group - 1) = _mm512_reduce_add_epi32(sum) as f32;
                }
                block += 1;
            }
        }
    }
}

/// The largest magnitude; not a number if one of the elements is not finite, so that no result pretends to be.
///
/// # Safety
/// `len` numbers, a multiple of 16, must be readable at `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn top(x: *const f32, len: usize) -> f32 {
    let mut top = _mm512_setzero_ps();
    let mut odd = 0;
    let mut at = 0;
    while at < len {
        // SAFETY: as the caller promises.
        let v = _mm512_abs_ps(unsafe { _mm512_loadu_ps(x.add(at)) });
        odd |= _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(v, _mm512_set1_ps(f32::INFINITY));
        top = _mm512_max_ps(v, top);
        at += 16;
    }
    if odd != 0 { f32::NAN } else { _mm512_reduce_max_ps(top) }
}

/// Sixteen numbers, four at a time: the highest bytes of four, the next ones, the lowest.
///
/// # Safety
/// `16 * BYTES` bytes must be writable at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn store<const BYTES: usize>(to: *mut i8, mut q: __m512i) {
    let mut fours = [[0i32; 4]; BYTES];
    for byte in (0..BYTES).rev() {
        // SAFETY: an array of four numbers is a vector.
        unsafe { _mm_storeu_si128(fours[byte].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q)) };
        // What is left is a multiple of 256, since the byte was signed.
        q = _mm512_srai_epi32::<8>(_mm512_add_epi32(q, _mm512_set1_epi32(128)));
    }
    for (byte, fours) in fours.iter().enumerate() {
        for (i, four) in fours.iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { to.cast::<i32>().add(i * BYTES + byte).write_unaligned(*four) };
        }
    }
}
