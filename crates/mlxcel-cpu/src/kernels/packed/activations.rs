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
use super::{bytes, vnni};
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
    groups: usize,
    blocks: usize,
    /// Elements that share a scale of the weights.
    group: usize,
    /// Tokens that lie together.
    width: usize,
    /// `[tokens / width][groups][bytes][width][group]`: the bytes of one place of a group's numbers are one run, and
    /// those of `width` tokens a tile.
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
        let width = if tokens > vnni::TOKENS { bytes::TOKENS } else { 1 };
        // Tokens that fill the last tile are anything: nobody reads their results.
        let room = tokens.next_multiple_of(width);
        let sums_at = (room * cols * bytes).next_multiple_of(64);
        let scales_at = sums_at + (room * groups * 4).next_multiple_of(64);
        let mut memory = ctx.pool.take(scales_at + room * blocks * 4)?;
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
                    let limbs = t / width * width * cols * bytes + t % width * group;
                    let parts = parts.at(limbs, t * groups, t * blocks);
                    if bytes == 2 {
                        parts.fill::<2>(row(t), cols, (group, width))
                    } else {
                        parts.fill::<3>(row(t), cols, (group, width))
                    }
                }
            }
        });
        let Parts { limbs, sums, scales } = parts;
        Ok(Activations { bytes, groups, blocks, group, width, limbs, sums, scales, _memory: memory })
    }

    /// The highest bytes of a token's group; the next ones follow [`Self::stride`] bytes later.
    #[inline(always)]
    pub(super) fn limbs(&self, token: usize, group: usize) -> *const i8 {
        let tile = token / self.width * self.groups + group;
        self.limbs.wrapping_add((tile * self.bytes * self.width + token % self.width) * self.group)
    }

    /// Bytes from one byte of a number to its next.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.width * self.group
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
    /// The arrays must have these places.
    unsafe fn at(&self, limbs: usize, sums: usize, scales: usize) -> Parts {
        // SAFETY: as the caller promises.
        unsafe {
            Parts { limbs: self.limbs.add(limbs), sums: self.sums.add(sums), scales: self.scales.add(scales) }
        }
    }

    /// # Safety
    /// The machine must have the features, `x` `cols` numbers, and the places room for them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn fill<const BYTES: usize>(&self, x: *const f32, cols: usize, (group, width): (usize, usize)) {
        let stride = width * group;
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
                    let limbs = self.limbs.add(at / group * BYTES * stride);
                    let stop = at + group;
                    while at < stop {
                        let q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x.add(at)), inverse));
                        sum = _mm512_add_epi32(sum, q);
                        store::<BYTES>(limbs.add(at % group), stride, q);
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

/// Sixteen numbers: their highest bytes, and `stride` bytes later each time the next ones.
///
/// # Safety
/// Sixteen bytes must be writable at each of the `BYTES` places.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn store<const BYTES: usize>(to: *mut i8, stride: usize, mut q: __m512i) {
    for byte in (0..BYTES).rev() {
        // SAFETY: as the caller promises.
        unsafe { _mm_storeu_si128(to.add(byte * stride).cast(), _mm512_cvtepi32_epi8(q)) };
        // What is left is a multiple of 256, since the byte was signed.
        q = _mm512_srai_epi32::<8>(_mm512_add_epi32(q, _mm512_set1_epi32(128)));
    }
}
