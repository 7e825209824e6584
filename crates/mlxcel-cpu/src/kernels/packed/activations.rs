//! Activations as whole numbers: a block of [`BLOCK`] elements shares one scale, and each number is cut into signed
//! bytes, the highest first, that byte products can take. Three bytes are as exact as `f32`; two are enough for
//! numbers that were `bf16`. One is for tokens that may be rounded: there every group of the weights has a scale of its
//! own, since one for a block cost SmolLM2 1.6 % of its perplexity. Where bytes are multiplied in pairs, most numbers are cut into
//! signed words of sixteen bits instead, whose products are as cheap: two bytes are one word, three a word and a byte that
//! takes another. They are the same numbers.
//!
//! The rounding is relative to the largest element of those that share a scale, whatever row it is in and whatever is
//! computed beside it.
#![allow(unsafe_code)]

use std::ops::Range;

use mlxcel_engine::EngineError;

use super::dots;
use super::format::{BLOCK, Format, UNIT};
use super::part::{Part, Shape, Task, at};
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
    /// Bytes or words.
    limbs: *const i8,
    /// `[tokens / width][groups][width]`, scaled where a group has a scale.
    sums: *const f32,
    /// `[tokens / width][parts][width]`.
    scales: *const f32,
    _memory: Scratch<'a>,
}

/// How the bytes of tokens lie that are multiplied together, or the words, of each four of which the first and the third are
/// neighbours, the second and the fourth.
#[derive(Clone, Copy)]
struct Lie {
    /// Tokens that lie together.
    width: usize,
    /// Whether the limbs of one place of a group's numbers are one run, and those of `width` tokens a tile:
    /// `[tokens / width][groups][limbs][width][group]`. Otherwise as many as have four bytes lie in turn:
    /// `[tokens / width][groups][group / four][limbs][width][four]`.
    is_in_runs: bool,
    has_words: bool,
}

impl Lie {
    /// What suits the kernel for so many tokens.
    fn of(level: SimdLevel, format: &Format, (tokens, bytes): (usize, usize)) -> Self {
        let shape = Shape::of(level);
        if tokens <= dots::TOKENS {
            return Lie { width: 1, is_in_runs: true, has_words: shape.in_pairs };
        }
        if level.has_tiles() {
            return Lie { width: TILE, is_in_runs: true, has_words: false };
        }
        let has_words = shape.in_pairs && !(bytes == 1 && format.codes.are_small());
        Lie { width: shape.many / limbs(bytes, has_words), is_in_runs: false, has_words }
    }

    /// Bytes of a limb.
    fn size(self) -> usize {
        if self.has_words { 2 } else { 1 }
    }
}

/// How many limbs a number of so many bytes has.
pub(super) const fn limbs(bytes: usize, are_words: bool) -> usize {
    if are_words { bytes.div_ceil(2) } else { bytes }
}

// SAFETY: activations are only read once they are made.
unsafe impl Sync for Activations<'_> {}

impl<'a> Activations<'a> {
    /// From rows of `f32` that `row` gives, as `bytes` bytes of `cols` elements, a multiple of the format's groups.
    ///
    /// # Safety
    /// The context's level must have byte products, and `row` give `cols` readable numbers for every token.
    pub(super) unsafe fn new(
        ctx: &'a Context,
        format: &Format,
        [tokens, cols, bytes]: [usize; 3],
        row: impl Fn(usize) -> *const f32 + Sync,
    ) -> Result<Self, EngineError> {
        let group = format.group;
        let groups = cols / group;
        let shared = if bytes == 1 { group } else { BLOCK };
        let parts = cols.div_ceil(shared);
        let lie = Lie::of(ctx.level, format, (tokens, bytes));
        let width = lie.width;
        let number = limbs(bytes, lie.has_words) * lie.size();
        // Tokens that fill the last tile are anything: nobody reads their results.
        let room = tokens.next_multiple_of(width);
        let sums_at = (room * cols * number).next_multiple_of(64);
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
                let of_token = if lie.is_in_runs { group * lie.size() } else { 4 };
                let limbs = first * cols * number + nth * of_token;
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

    /// The highest limbs of a token's group, which must be the first of those that lie together unless they lie in runs; the
    /// next limbs of a run follow [`Self::stride`] bytes later, the next group as many times that as a number has limbs.
    #[inline(always)]
    pub(super) fn limbs(&self, token: usize, group: usize) -> *const i8 {
        let width = self.width();
        let tile = token / width * self.groups + group;
        let limbs = limbs(self.bytes, self.has_words());
        self.limbs.wrapping_add((tile * limbs * width + token % width) * self.group * self.lie.size())
    }

    /// Bytes of one place of a group's limbs, of all tokens that lie together.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.width() * self.group * self.lie.size()
    }

    /// Whether limbs are words.
    pub(super) fn has_words(&self) -> bool {
        self.lie.has_words
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
        self.lie.width
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
                match (self.bytes, self.tile.1.has_words) {
                    (1, false) => to.fill::<i8, 1, 1>(from, self.cols, self.tile),
                    (2, false) => to.fill::<i8, 2, 2>(from, self.cols, self.tile),
                    (_, false) => to.fill::<i8, 3, 3>(from, self.cols, self.tile),
                    (1, true) => to.fill::<i16, 1, 1>(from, self.cols, self.tile),
                    (2, true) => to.fill::<i16, 2, 1>(from, self.cols, self.tile),
                    (_, true) => to.fill::<i16, 3, 2>(from, self.cols, self.tile),
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
    unsafe fn fill<L: Limb, const BYTES: usize, const LIMBS: usize>(
        &self,
        x: *const f32,
        cols: usize,
        (group, lie): (usize, Lie),
    ) {
        let width = lie.width;
        // SAFETY: as the caller promises; groups are whole units of elements and divide blocks. No number is larger than the
        // largest after division by the scale, and those of a block that has others are no numbers.
        unsafe {
            let shared = if BYTES == 1 { group } else { BLOCK };
            let mut fours = [[L::default(); BLOCK]; LIMBS];
            for (part, start) in (0..cols).step_by(shared).enumerate() {
                let x = std::slice::from_raw_parts(x.add(start), shared.min(cols - start));
                let scale = top(x) / largest(BYTES);
                *self.scales.add(part * width) = scale;
                // A scale with fewer bits than others says nothing of what it scales, which is nothing beside anything else.
                let inverse = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
                for (g, x) in x.chunks_exact(group).enumerate() {
                    let at = start / group + g;
                    let limbs = self.limbs.cast::<L>().add(at * LIMBS * width * group);
                    let mut sums = [0; UNIT];
                    for (u, x) in x.as_chunks::<UNIT>().0.iter().enumerate() {
                        let mut q = [0; UNIT];
                        for i in 0..UNIT {
                            q[i] = whole(x[i] * inverse);
                            sums[i] += q[i];
                        }
                        match lie.is_in_runs {
                            true => store::<L, LIMBS>(limbs.add(u * UNIT), width * group, q),
                            false => {
                                store::<L, LIMBS>(fours.as_mut_ptr().cast::<L>().add(u * UNIT), BLOCK, q)
                            }
                        }
                    }
                    if !lie.is_in_runs {
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

/// A signed byte or word of a number.
trait Limb: Copy + Default {
    /// Which of four limbs lie beside each other.
    const ORDER: [usize; 4];
    fn of(x: i32) -> Self;
}

impl Limb for i8 {
    const ORDER: [usize; 4] = [0, 1, 2, 3];

    #[inline(always)]
    fn of(x: i32) -> i8 {
        x as i8
    }
}

impl Limb for i16 {
    const ORDER: [usize; 4] = [0, 2, 1, 3];

    #[inline(always)]
    fn of(x: i32) -> i16 {
        x as i16
    }
}

/// The first four bytes of the highest limbs, `stride` bytes later each time those of the next ones, and so on with the next
/// four bytes.
///
/// # Safety
/// Four bytes must be writable at each of these places.
#[inline(always)]
unsafe fn scatter<L: Limb, const LIMBS: usize>(to: *mut L, stride: usize, limbs: [&[L]; LIMBS]) {
    for (nth, limbs) in limbs.into_iter().enumerate() {
        for i in 0..size_of_val(limbs) / 4 {
            // SAFETY: as the caller promises.
            unsafe {
                let four = limbs.as_ptr().cast::<[u8; 4]>().add(i).read_unaligned();
                to.cast::<u8>().add((i * LIMBS + nth) * stride).cast::<[u8; 4]>().write_unaligned(four);
            }
        }
    }
}

/// A unit of numbers: their highest limbs, and `stride` limbs later each time the next ones, which are bytes.
///
/// # Safety
/// A unit of limbs must be writable at each of the `LIMBS` places.
#[inline(always)]
unsafe fn store<L: Limb, const LIMBS: usize>(to: *mut L, stride: usize, mut q: [i32; UNIT]) {
    for limb in (0..LIMBS).rev() {
        let mut low = [L::default(); UNIT];
        for i in 0..UNIT {
            let x = q[i / 4 * 4 + L::ORDER[i % 4]];
            low[i] = L::of(if limb == 0 { x } else { x as i8 as i32 });
        }
        for x in &mut q {
            // What is left is a multiple of 256, since the byte was signed.
            *x = (*x + 128) >> 8;
        }
        // SAFETY: as the caller promises.
        unsafe { to.add(limb * stride).cast::<[L; UNIT]>().write_unaligned(low) };
    }
}
