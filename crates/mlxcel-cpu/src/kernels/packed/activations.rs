//! Activations as whole numbers: a block of [`BLOCK`] elements shares one scale, and each number is cut into signed
//! bytes, the highest first, that byte products can take. Three bytes are as exact as `f32`; two are enough for
//! numbers that were `bf16`. One is for tokens that may be rounded: there every group of the weights has a scale of its
//! own, since one for a block cost SmolLM2 1.6 % of its perplexity.
//!
//! The rounding is relative to the largest element of those that share a scale, whatever row it is in and whatever is
//! computed beside it.
#![allow(unsafe_code)]

use std::ops::Range;

use mlxcel_engine::EngineError;

use super::format::{BLOCK, UNIT};
use super::part::{Part, Task, at};
use super::{dots, many};
use crate::context::Context;
use crate::memory::Scratch;
use crate::simd::SimdLevel;

/// Tokens that lie together where there are tiles.
pub(super) const TILE: usize = 16;

/// The largest whole number that is used: its bytes are signed, with room for what rounding adds.
fn largest(bytes: usize) -> f32 {
    (127 << (8 * (bytes - 1))) as f32
}

/// Rows of whole numbers, with the sums of their groups and the scales of their blocks.
pub(super) struct Activations<'a> {
    /// Bytes of a number.
    pub(super) bytes: usize,
    groups: usize,
    /// Scales of a token.
    parts: usize,
    /// Elements that share a scale of the weights.
    group: usize,
    lie: Lie,
    limbs: *const i8,
    /// `[tokens / width][groups][width]`, scaled where a group has a scale.
    sums: *const f32,
    /// `[tokens / width][parts][width]`.
    scales: *const f32,
    _memory: Scratch<'a>,
}

/// How the bytes of tokens lie that are multiplied together.
#[derive(Clone, Copy)]
enum Lie {
    /// `[tokens / width][groups][bytes][width][group]`: the bytes of one place of a group's numbers are one run, and
    /// those of `width` tokens a tile.
    Runs(usize),
    /// `[tokens / width][groups][group / 4][bytes][width][4]`.
    Fours(usize),
}

impl Lie {
    /// What suits the kernel for so many tokens.
    fn of(level: SimdLevel, tokens: usize, bytes: usize) -> Self {
        match tokens > dots::TOKENS {
            false => Lie::Runs(1),
            true if level.has_tiles() => Lie::Runs(TILE),
            true => Lie::Fours(many::tokens_together(level, bytes)),
        }
    }

    /// Tokens that lie together.
    fn width(self) -> usize {
        match self {
            Lie::Runs(width) | Lie::Fours(width) => width,
        }
    }
}

// SAFETY: activations are only read once they are made.
unsafe impl Sync for Activations<'_> {}

impl<'a> Activations<'a> {
    /// From rows of `f32` that `row` gives, in two or three bytes; `cols` is a multiple of `group`.
    ///
    /// # Safety
    /// The context's level must have byte products, and `row` give `cols` readable numbers for every token.
    pub(super) unsafe fn new(
        ctx: &'a Context,
        [tokens, cols, group, bytes]: [usize; 4],
        row: impl Fn(usize) -> *const f32 + Sync,
    ) -> Result<Self, EngineError> {
        let groups = cols / group;
        let shared = if bytes == 1 { group } else { BLOCK };
        let parts = cols.div_ceil(shared);
        let lie = Lie::of(ctx.level, tokens, bytes);
        let width = lie.width();
        // Tokens that fill the last tile are anything: nobody reads their results.
        let room = tokens.next_multiple_of(width);
        let sums_at = (room * cols * bytes).next_multiple_of(64);
        let scales_at = sums_at + (room * groups * 4).next_multiple_of(64);
        let mut memory = ctx.pool.take(scales_at + room * parts * 4)?;
        let base = memory.buffer().ptr();
        let places = Parts {
            limbs: base.cast(),
            // SAFETY: the buffer was taken with room for all three arrays.
            sums: unsafe { base.add(sums_at) }.cast(),
            // SAFETY: as above.
            scales: unsafe { base.add(scales_at) }.cast(),
        };
        let per_task = ctx.threads.lines_per_task(tokens, cols);
        ctx.threads.each(tokens.div_ceil(per_task), |task| {
            let tokens = task * per_task..((task + 1) * per_task).min(tokens);
            let place = |t: usize| {
                let (first, nth) = (t / width * width, t % width);
                let of_token = if let Lie::Runs(_) = lie { group } else { 4 };
                let limbs = first * cols * bytes + nth * of_token;
                // SAFETY: the arrays have a place of its own for every token.
                unsafe { places.at(limbs, first * groups + nth, first * parts + nth) }
            };
            let lines = Lines { tokens, cols, bytes, tile: (group, lie), row: &row, place };
            // SAFETY: as the caller promises.
            unsafe { at(ctx.level, lines) };
        });
        let Parts { limbs, sums, scales } = places;
        Ok(Activations { bytes, groups, parts, group, lie, limbs, sums, scales, _memory: memory })
    }

    /// The highest bytes of a token's group, which must be the first of those that lie together unless they lie in runs; the
    /// next bytes of a run follow [`Self::stride`] bytes later, the next group as many times that as a number has bytes.
    #[inline(always)]
    pub(super) fn limbs(&self, token: usize, group: usize) -> *const i8 {
        let width = self.width();
        let tile = token / width * self.groups + group;
        self.limbs.wrapping_add((tile * self.bytes * width + token % width) * self.group)
    }

    /// Bytes of one place of a group's numbers, of all tokens that lie together.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.width() * self.group
    }

    /// The sum of a token's group; that of the next group follows [`Self::width`] numbers later, and those of tokens that
    /// lie together beside it.
    #[inline(always)]
    pub(super) fn sums(&self, token: usize, group: usize) -> *const f32 {
        let width = self.width();
        let tile = token / width * self.groups + group;
        self.sums.wrapping_add(tile * width + token % width)
    }

    /// Tokens that lie together.
    #[inline(always)]
    pub(super) fn width(&self) -> usize {
        self.lie.width()
    }

    /// A scale of a token: of a block, or of a group if numbers have one byte. Those of tokens that lie together follow.
    #[inline(always)]
    pub(super) fn scales(&self, token: usize, part: usize) -> *const f32 {
        let width = self.width();
        self.scales.wrapping_add((token / width * self.parts + part) * width + token % width)
    }
}

/// Some tokens on their way to whole numbers.
struct Lines<'a, R, P> {
    tokens: Range<usize>,
    cols: usize,
    bytes: usize,
    /// Elements that share a scale of the weights, and how tokens lie together.
    tile: (usize, Lie),
    row: &'a R,
    place: P,
}

impl<R: Fn(usize) -> *const f32, P: Fn(usize) -> Parts> Task for Lines<'_, R, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Part, const N: usize>(self) {
        for t in self.tokens {
            let (to, from) = ((self.place)(t), (self.row)(t));
            // SAFETY: as the caller of `Activations::new` promises.
            unsafe {
                match self.bytes {
                    1 => to.fill::<1>(from, self.cols, self.tile),
                    2 => to.fill::<2>(from, self.cols, self.tile),
                    _ => to.fill::<3>(from, self.cols, self.tile),
                }
            }
        }
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
    /// `x` must have `cols` numbers, and the places room for them.
    #[inline(always)]
    unsafe fn fill<const BYTES: usize>(&self, x: *const f32, cols: usize, (group, lie): (usize, Lie)) {
        let width = lie.width();
        // SAFETY: as the caller promises; groups are whole units of elements and divide blocks. No number is larger than the
        // largest after division by the scale, and those of a block that has others are no numbers.
        unsafe {
            let shared = if BYTES == 1 { group } else { BLOCK };
            let mut fours = [[0; BLOCK]; BYTES];
            for (part, start) in (0..cols).step_by(shared).enumerate() {
                let x = std::slice::from_raw_parts(x.add(start), shared.min(cols - start));
                let scale = top(x) / largest(BYTES);
                *self.scales.add(part * width) = scale;
                // A scale with fewer bits than others says nothing of what it scales, which is nothing beside anything else.
                let inverse = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
                for (g, x) in x.chunks_exact(group).enumerate() {
                    let at = start / group + g;
                    let limbs = self.limbs.add(at * BYTES * width * group);
                    let mut sums = [0; UNIT];
                    for (u, x) in x.as_chunks::<UNIT>().0.iter().enumerate() {
                        let mut q = [0; UNIT];
                        for i in 0..UNIT {
                            q[i] = whole(x[i] * inverse);
                            sums[i] += q[i];
                        }
                        match lie {
                            Lie::Runs(_) => store::<BYTES>(limbs.add(u * UNIT), width * group, q),
                            Lie::Fours(_) => {
                                store::<BYTES>(fours.as_mut_ptr().cast::<i8>().add(u * UNIT), BLOCK, q)
                            }
                        }
                    }
                    if let Lie::Fours(_) = lie {
                        scatter(limbs, width * 4, fours.each_ref().map(|fours| &fours[..group]));
                    }
                    let sum = sums.iter().sum::<i32>() as f32;
                    *self.sums.add(at * width) = if BYTES == 1 { sum * scale } else { sum };
                }
            }
        }
    }
}

/// The nearest whole number, of whatever is no number 0.
///
/// # Safety
/// A number must be one of `i32`.
#[inline(always)]
unsafe fn whole(x: f32) -> i32 {
    let rounded = if x.is_nan() { 0.0 } else { x.round_ties_even() };
    // SAFETY: as the caller promises; a cast that checks it again would go number by number.
    unsafe { rounded.to_int_unchecked() }
}

/// The largest magnitude; not a number if one of the elements is not finite, so that no result pretends to be.
#[inline(always)]
fn top(x: &[f32]) -> f32 {
    // Magnitudes are ordered as their bits are, and nothing finite is beyond infinity.
    let mut tops = [0; UNIT];
    for x in x.as_chunks::<UNIT>().0 {
        for i in 0..UNIT {
            tops[i] = x[i].abs().to_bits().max(tops[i]);
        }
    }
    let top = f32::from_bits(tops.into_iter().max().unwrap_or(0));
    if top.is_finite() { top } else { f32::NAN }
}

/// The first four of the highest bytes, `stride` bytes later each time those of the next ones, and so on with the next
/// four.
///
/// # Safety
/// Four bytes must be writable at each of these places.
#[inline(always)]
unsafe fn scatter<const BYTES: usize>(to: *mut i8, stride: usize, limbs: [&[i8]; BYTES]) {
    for (byte, limbs) in limbs.into_iter().enumerate() {
        for (i, four) in limbs.as_chunks::<4>().0.iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { to.add((i * BYTES + byte) * stride).cast::<[i8; 4]>().write_unaligned(*four) };
        }
    }
}

/// A unit of numbers: their highest bytes, and `stride` bytes later each time the next ones.
///
/// # Safety
/// A unit of bytes must be writable at each of the `BYTES` places.
#[inline(always)]
unsafe fn store<const BYTES: usize>(to: *mut i8, stride: usize, mut q: [i32; UNIT]) {
    for byte in (0..BYTES).rev() {
        let mut low = [0; UNIT];
        for i in 0..UNIT {
            low[i] = q[i] as i8;
            // What is left is a multiple of 256, since the byte was signed.
            q[i] = (q[i] + 128) >> 8;
        }
        // SAFETY: as the caller promises.
        unsafe { to.add(byte * stride).cast::<[i8; UNIT]>().write_unaligned(low) };
    }
}
