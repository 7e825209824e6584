//! Byte products of many tokens where there are no tiles: the same whole numbers as [`super::dots`] and the same order of
//! everything after them, so a token has the same result in either.
//!
//! Algorithm: codes of a block are unpacked to bytes in the first-level cache, once for all tokens. A few tokens at a time
//! are multiplied with the rows of one or two panels, as many as registers hold sums of; those of all groups are left in the first-level
//! cache, then scaled and added to the block's sum. Where bytes are multiplied in pairs, products of words take fewer instructions,
//! but for tokens of one byte with codes below 128.
//!
//! Measured on one core of a Xeon with VNNI (in GOP/s): bare products 524, this loop alone 377, feed-forward blocks with all
//! that is beside it 205 beside other work.
//!
//! Layout: unpacked codes are `[elements / 4][panels][16 rows][4]`, or words as [`Loosely`] says; tokens that are multiplied
//! together lie in turn, four bytes of each.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::cell::RefCell;
use std::ops::Range;

use super::Job;
use super::activations::{Activations, limbs};
use super::codes::{Factors, Loosely, unpack};
use super::dots::joined;
use super::format::{BLOCK, Codes, Format, GROUPS, ROWS};
use super::part::{Part, Task, at, lanes};
use crate::kernels::prefetch;
use crate::memory::Aligned;
use crate::simd::Simd;

/// One or two panels with all tokens.
pub(super) struct Product<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) format: &'a Format,
    pub(super) x: &'a Activations<'a>,
    /// Of the job's panels, at most as many as the level multiplies together.
    pub(super) panels: Range<usize>,
}

/// Panels of one product at most, at any level.
const PANELS: usize = 2;
/// Limbs of tokens that are multiplied together at most, at any level.
const TOKENS: usize = 8;

/// Codes below sixteen, whose products may be added as pairs; those below 128; all others; and words.
const TINY: u8 = 0;
const SMALL: u8 = 1;
const LARGE: u8 = 2;
const WORDS: u8 = 3;
/// Fours of tiny codes whose products with signed bytes fit sixteen bits, in pairs.
const RUN: usize = 8;

/// Tokens of so many bytes that are multiplied together.
const fn together<P: Part>(bytes: usize, size: u8) -> usize {
    P::MANY / limbs(bytes, size == WORDS)
}

/// Bytes of the unpacked codes of a block at most.
const CODES: usize = BLOCK * ROWS * PANELS * 2;

/// A block's codes and scales, and the sums of all tokens. In this order, so that vectors begin with lines of the cache.
#[repr(C, align(64))]
pub(super) struct Room {
    /// Bytes or words.
    codes: [u8; CODES],
    /// Whole numbers of every group, as [`dots`] puts them.
    dots: [[i32; TOKENS * PANELS * ROWS]; GROUPS],
    factors: [Factors; PANELS],
    /// `[tokens][panels][rows]`.
    sums: Aligned<f32>,
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        codes: [0; CODES],
        dots: [[0; TOKENS * PANELS * ROWS]; GROUPS],
        factors: [const { Factors::new() }; PANELS],
        sums: Aligned::default(),
    }));
}

impl Room {
    /// Calls `work` with the thread's.
    pub(super) fn with<R>(work: impl FnOnce(&mut Room) -> R) -> R {
        ROOM.with_borrow_mut(|room| work(room))
    }
}

impl Product<'_> {
    /// Puts the sums of every token with every panel.
    ///
    /// # Safety
    /// The machine must have the job's level, and it byte products; the tokens must lie together as the level wants it.
    pub(super) unsafe fn run(&self, room: &mut Room) {
        let Job { packed, x, ctx, .. } = *self.job;
        let (cols, together, count) = (packed.cols, self.x.width(), self.panels.len());
        let tiles = x.tokens.div_ceil(together);
        room.sums.resize(tiles * together * count * ROWS);
        room.sums.fill(0.0);
        let first = self.job.panels.start + self.panels.start;
        let mut panels: [_; PANELS] = std::array::from_fn(|i| packed.panel(first + i.min(count - 1)));
        for start in (0..cols).step_by(BLOCK) {
            let (len, is_last) = (BLOCK.min(cols - start), start + BLOCK >= cols);
            let bytes = self.format.block_bytes(len);
            for (i, panel) in panels.iter_mut().enumerate().take(count) {
                let to = room.codes[i * 4 * ROWS..].as_mut_ptr();
                let loosely = Loosely { to, apart: count, as_words: self.x.has_words() };
                // SAFETY: a panel is a sequence of blocks, and there is room for the codes of all panels.
                unsafe { unpack(ctx.level, self.format, (*panel, len), (&mut room.factors[i], loosely)) };
                // The next panels of a task lie behind these.
                let others = if is_last { (count - 1) * packed.panel_bytes } else { 0 };
                *panel = panel.wrapping_add(bytes + others);
            }
            let ahead = Ahead { panels, count, bytes: bytes.div_ceil(tiles).next_multiple_of(64) };
            let stretch = Stretch { start, len, is_last };
            // SAFETY: as the caller promises.
            unsafe { self.block(stretch, tiles, ahead, room) };
        }
    }

    /// # Safety
    /// As for [`Self::run`]; the room holds this part of the panels.
    unsafe fn block(&self, stretch: Stretch, tiles: usize, ahead: Ahead, room: &mut Room) {
        let level = self.job.ctx.level;
        // SAFETY: as the caller promises.
        unsafe {
            match self.x.bytes {
                1 => at(level, Block::<1> { product: self, stretch, tiles, ahead, room }),
                2 => at(level, Block::<2> { product: self, stretch, tiles, ahead, room }),
                _ => at(level, Block::<3> { product: self, stretch, tiles, ahead, room }),
            }
        }
    }
}

/// A block of a row.
#[derive(Clone, Copy)]
struct Stretch {
    start: usize,
    len: usize,
    is_last: bool,
}

/// The next block of the panels, which is asked for while this one is multiplied.
struct Ahead {
    panels: [*const u8; PANELS],
    count: usize,
    bytes: usize,
}

impl Ahead {
    #[inline(always)]
    fn fetch(&mut self) {
        for panel in &mut self.panels[..self.count] {
            prefetch(*panel, self.bytes);
            *panel = panel.wrapping_add(self.bytes);
        }
    }
}

/// All tokens with a block of some panels.
struct Block<'a, const BYTES: usize> {
    product: &'a Product<'a>,
    stretch: Stretch,
    tiles: usize,
    ahead: Ahead,
    room: &'a mut Room,
}

impl<const BYTES: usize> Task for Block<'_, BYTES> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<P: Part, const N: usize>(self) {
        // SAFETY: as the caller of `Product::run` promises.
        unsafe {
            if P::PANELS == 2 && self.product.panels.len() == 2 {
                self.any_size::<P, N, 2>();
            } else {
                self.any_size::<P, N, 1>();
            }
        }
    }
}

impl<const BYTES: usize> Block<'_, BYTES> {
    /// # Safety
    /// As for [`Product::run`].
    #[inline(always)]
    unsafe fn any_size<P: Part, const N: usize, const PANELS: usize>(self) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.product.format.codes {
                _ if P::IN_PAIRS && self.product.x.has_words() => self.tiles::<P, N, PANELS, WORDS>(),
                Codes::Two | Codes::Three | Codes::Four if P::IN_PAIRS => self.tiles::<P, N, PANELS, TINY>(),
                codes if P::TELLS_SIZES && !codes.are_small() => self.tiles::<P, N, PANELS, LARGE>(),
                _ => self.tiles::<P, N, PANELS, SMALL>(),
            }
        }
    }

    /// # Safety
    /// As for [`Product::run`].
    #[inline(always)]
    unsafe fn tiles<P: Part, const N: usize, const PANELS: usize, const SIZE: u8>(mut self) {
        let Block { product: Product { x, format, .. }, stretch: Stretch { start, len, .. }, .. } = self;
        let tokens = const { together::<P>(BYTES, SIZE) };
        let (first, groups) = (start / format.group, len / format.group);
        let stride = x.stride() * const { limbs(BYTES, SIZE == WORDS) };
        // Four bytes of a number each.
        let fours = format.group * if SIZE == WORDS { 2 } else { 1 } / 4;
        for tile in 0..self.tiles {
            let token = tile * tokens;
            let limbs = x.limbs(token, first);
            let next = x.limbs(token + tokens, first);
            self.ahead.fetch();
            for g in 0..groups {
                prefetch(next.wrapping_add(g * stride).cast(), stride);
                // SAFETY: as the caller promises; there is room for the sums of every group.
                unsafe {
                    let codes = self.room.codes.as_ptr().add(g * fours * 4 * ROWS * PANELS);
                    let to = self.room.dots[g].as_mut_ptr().cast();
                    dots::<P, N, PANELS, BYTES, SIZE>(fours, (codes, limbs.add(g * stride)), to);
                }
            }
            // SAFETY: as the caller promises.
            unsafe { self.scale::<P, N, PANELS, SIZE>(token, first..first + groups) };
            if self.stretch.is_last {
                self.put(token..token + tokens);
            }
        }
    }

    /// Puts the sums of some tokens.
    #[inline(always)]
    fn put(&self, tokens: Range<usize>) {
        let Product { job, panels, .. } = self.product;
        let sums = self.room.sums.as_chunks().0;
        for t in tokens.start..tokens.end.min(job.x.tokens) {
            for (i, panel) in panels.clone().enumerate() {
                job.put(t, panel, &sums[t * panels.len() + i]);
            }
        }
    }

    /// Adds the products of all groups of the block to the sums of the tokens from `token` on.
    ///
    /// # Safety
    /// As for [`Product::run`].
    #[inline(always)]
    unsafe fn scale<P: Part, const N: usize, const PANELS: usize, const SIZE: u8>(
        &mut self,
        token: usize,
        groups: Range<usize>,
    ) {
        let (x, width) = (self.product.x, self.product.x.width());
        let sums = x.sums(token, groups.start);
        let scales = x.scales(token, if BYTES == 1 { groups.start } else { self.stretch.start / BLOCK });
        for p in 0..PANELS {
            let Factors { scales: of_rows, biases } = &self.room.factors[p];
            for n in 0..N {
                let row = n * lanes::<P>();
                // SAFETY: a group has a scale and a bias for every row, and numbers for every token, which have room for their sums.
                unsafe {
                    let mut part = [P::Floats::splat(0.0); TOKENS];
                    for g in 0..groups.len() {
                        let dots = self.room.dots[g].as_ptr().cast::<P::Sums>().add((p * N + n) * P::MANY);
                        let scale = P::Floats::load(of_rows[g].as_ptr().add(row));
                        let bias = P::Floats::load(biases[g].as_ptr().add(row));
                        for t in 0..const { together::<P>(BYTES, SIZE) } {
                            let mut limbs = [*dots.add(t); BYTES];
                            for l in 1..const { self::limbs(BYTES, SIZE == WORDS) } {
                                limbs[l] = *dots.add(l * const { together::<P>(BYTES, SIZE) } + t);
                            }
                            let mut dot = joined::<P, BYTES>(limbs, SIZE == WORDS);
                            if BYTES == 1 {
                                dot = P::Floats::mul(dot, P::Floats::splat(*scales.add(g * width + t)));
                            }
                            let sum = P::Floats::splat(*sums.add(g * width + t));
                            part[t] = P::Floats::fma(dot, scale, part[t]);
                            part[t] = P::Floats::fma(sum, bias, part[t]);
                        }
                    }
                    for t in 0..const { together::<P>(BYTES, SIZE) } {
                        let scale = P::Floats::splat(if BYTES == 1 { 1.0 } else { *scales.add(t) });
                        let sum = self.room.sums.as_mut_ptr().add(((token + t) * PANELS + p) * ROWS + row);
                        let total = P::Floats::fma(part[t], scale, P::Floats::load(sum));
                        P::Floats::store(sum, total);
                    }
                }
            }
        }
    }
}

/// The whole numbers of a group that has so many times four bytes of codes: `[panels][parts][limbs][tokens]`, of which a part
/// has [`Part::MANY`] places.
///
/// # Safety
/// The codes of the group must be readable, and the tokens' limbs of it; the sums must be writable.
#[inline(always)]
unsafe fn dots<P: Part, const N: usize, const PANELS: usize, const BYTES: usize, const SIZE: u8>(
    fours: usize,
    (mut codes, mut limbs): (*const u8, *const i8),
    to: *mut P::Sums,
) {
    let lines = const { together::<P>(BYTES, SIZE) * self::limbs(BYTES, SIZE == WORDS) };
    let at_once = if SIZE == TINY { RUN } else { fours };
    let mut start = 0;
    while start < fours {
        // SAFETY: as the caller promises.
        unsafe {
            let mut run = [[[P::zero(); N]; PANELS]; TOKENS];
            for _ in start..fours.min(start + at_once) {
                let mut these = [[P::load(codes); N]; PANELS];
                for p in 0..PANELS {
                    for n in 0..N {
                        these[p][n] = P::load(codes.add(p * 4 * ROWS + n * 4 * lanes::<P>()));
                    }
                }
                for line in 0..lines {
                    let four = limbs.add(line * 4);
                    for p in 0..PANELS {
                        for n in 0..N {
                            let (sums, codes) = (run[line][p][n], these[p][n]);
                            run[line][p][n] = match SIZE {
                                TINY => P::dot_in_pairs(sums, codes, four),
                                SMALL => P::dot::<true>(sums, codes, four),
                                WORDS => P::dot_of_words(sums, codes, four),
                                _ => P::dot::<false>(sums, codes, four),
                            };
                        }
                    }
                }
                codes = codes.add(PANELS * 4 * ROWS);
                limbs = limbs.add(lines * 4);
            }
            for line in 0..lines {
                for p in 0..PANELS {
                    for n in 0..N {
                        let to = to.add((p * N + n) * P::MANY + line);
                        let run = run[line][p][n];
                        *to = match SIZE == TINY {
                            true => P::with_pairs(if start == 0 { P::zero() } else { *to }, run),
                            false => run,
                        };
                    }
                }
            }
        }
        start += at_once;
    }
}
