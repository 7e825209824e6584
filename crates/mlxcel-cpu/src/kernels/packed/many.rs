//! Byte products of many tokens where there are no tiles: the same whole numbers as [`super::dots`] and the same order of
//! everything after them, so a token has the same result in either.
//!
//! Algorithm: codes of a block are unpacked to bytes in the first-level cache, once for all tokens. A few tokens at a time
//! are multiplied with the rows of one or two panels, as many as registers hold sums of; at the end of a group these are
//! scaled and added to the block's sum.
//!
//! Measured on one core of a Xeon with VNNI (in GOP/s): bare products 524, this loop alone 377, feed-forward blocks with all
//! that is beside it 205 beside other work.
//!
//! Layout: unpacked codes are `[elements / 4][panels][16 rows][4]`; tokens that are multiplied together lie in turn, four
//! bytes of each.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::cell::RefCell;
use std::ops::Range;

use super::Job;
use super::activations::Activations;
use super::codes::{Factors, unpack};
use super::dots::joined;
use super::format::{BLOCK, Codes, Format, ROWS};
use super::part::{Part, Task, at, lanes};
use crate::kernels::prefetch;
use crate::memory::Aligned;
use crate::simd::{Simd, SimdLevel};

/// One or two panels with all tokens.
pub(super) struct Product<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) format: &'a Format,
    pub(super) x: &'a Activations<'a>,
    /// Of the job's panels, at most as many as [`panels_together`].
    pub(super) panels: Range<usize>,
}

/// Panels of one product at most, at any level.
const PANELS: usize = 2;
/// Tokens of one byte that are multiplied together at most, at any level.
const TOKENS: usize = 8;

/// Codes below sixteen, whose products may be added as pairs; those below 128; and all others.
const TINY: u8 = 0;
const SMALL: u8 = 1;
const LARGE: u8 = 2;
/// Fours of tiny codes whose products with signed bytes fit sixteen bits, in pairs.
const RUN: usize = 8;

/// Panels that are multiplied together at this level.
pub(super) fn panels_together(level: SimdLevel) -> usize {
    // SAFETY: it only tells a number.
    unsafe { at(level, Together) }.1
}

/// Tokens of so many bytes that are multiplied together at this level.
pub(super) fn tokens_together(level: SimdLevel, bytes: usize) -> usize {
    // SAFETY: it only tells a number.
    unsafe { at(level, Together) }.0 / bytes
}

struct Together;

impl Task for Together {
    type Output = (usize, usize);

    #[inline(always)]
    unsafe fn run<P: Part, const N: usize>(self) -> (usize, usize) {
        (P::MANY, P::PANELS)
    }
}

/// Whole numbers of every token, panel and byte.
type Dots<P, const N: usize, const PANELS: usize, const BYTES: usize> =
    [[[[<P as Part>::Sums; N]; BYTES]; PANELS]; TOKENS];

type Floats<P> = <<P as Part>::Floats as Simd>::F;

/// A block's codes and scales, and the sums of all tokens.
#[repr(align(64))]
pub(super) struct Room {
    codes: [u8; BLOCK * ROWS * PANELS],
    factors: [Factors; PANELS],
    /// `[tokens][panels][rows]`.
    sums: Aligned<f32>,
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        codes: [0; BLOCK * ROWS * PANELS],
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
                let to = (&mut room.factors[i], room.codes[i * 4 * ROWS..].as_mut_ptr());
                // SAFETY: a panel is a sequence of blocks, and there is room for the codes of all panels.
                unsafe { unpack(ctx.level, self.format, (*panel, len), (to, count)) };
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
                Codes::Two | Codes::Three | Codes::Four if P::HAS_PAIRS => self.tiles::<P, N, PANELS, TINY>(),
                Codes::Eight | Codes::Table(_) if P::TELLS_SIZES => self.tiles::<P, N, PANELS, LARGE>(),
                _ => self.tiles::<P, N, PANELS, SMALL>(),
            }
        }
    }

    /// # Safety
    /// As for [`Product::run`].
    #[inline(always)]
    unsafe fn tiles<P: Part, const N: usize, const PANELS: usize, const SIZE: u8>(mut self) {
        let Block { product: Product { x, format, .. }, stretch: Stretch { start, len, .. }, .. } = self;
        let tokens = const { P::MANY / BYTES };
        let (first, groups) = (start / format.group, len / format.group);
        for tile in 0..self.tiles {
            let token = tile * tokens;
            let limbs = x.limbs(token, first);
            let next = x.limbs(token + tokens, first);
            self.ahead.fetch();
            let mut part = [[[P::Floats::splat(0.0); N]; PANELS]; TOKENS];
            for g in 0..groups {
                let at = g * BYTES * x.stride();
                prefetch(next.wrapping_add(at).cast(), BYTES * x.stride());
                // SAFETY: as the caller promises.
                unsafe {
                    let codes = self.room.codes.as_ptr().add(g * format.group * ROWS * PANELS);
                    let dots = dots::<P, N, PANELS, BYTES, SIZE>(format.group / 4, codes, limbs.add(at));
                    let scales = (BYTES == 1).then(|| x.scales(token, first + g));
                    self.scale::<P, N, PANELS>(&dots, (g, scales, x.sums(token, first + g)), &mut part);
                }
            }
            let scales = (BYTES > 1).then(|| x.scales(token, start / BLOCK));
            // SAFETY: there is room for the sums of all tiles.
            unsafe { self.add::<P, N, PANELS>(token, scales, &part) };
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

    /// Adds the products of a group to the sums of the block.
    ///
    /// # Safety
    /// As for [`Product::run`].
    #[inline(always)]
    unsafe fn scale<P: Part, const N: usize, const PANELS: usize>(
        &self,
        dots: &Dots<P, N, PANELS, BYTES>,
        (g, scales, sums): (usize, Option<*const f32>, *const f32),
        part: &mut [[[Floats<P>; N]; PANELS]; TOKENS],
    ) {
        for p in 0..PANELS {
            for n in 0..N {
                let factors = &self.room.factors[p];
                // SAFETY: a group has a scale and a bias for every row, and numbers for every token.
                unsafe {
                    let scale = P::Floats::load(factors.scales[g].as_ptr().add(n * lanes::<P>()));
                    let bias = P::Floats::load(factors.biases[g].as_ptr().add(n * lanes::<P>()));
                    for t in 0..const { P::MANY / BYTES } {
                        let mut dot = joined::<P, N, BYTES>(&dots[t][p], n);
                        if let Some(scales) = scales {
                            dot = P::Floats::mul(dot, P::Floats::splat(*scales.add(t)));
                        }
                        let sum = P::Floats::splat(*sums.add(t));
                        part[t][p][n] = P::Floats::fma(dot, scale, part[t][p][n]);
                        part[t][p][n] = P::Floats::fma(sum, bias, part[t][p][n]);
                    }
                }
            }
        }
    }

    /// Adds the sums of a block, scaled where tokens have scales for blocks.
    ///
    /// # Safety
    /// As for [`Product::run`].
    #[inline(always)]
    unsafe fn add<P: Part, const N: usize, const PANELS: usize>(
        &mut self,
        token: usize,
        scales: Option<*const f32>,
        part: &[[[Floats<P>; N]; PANELS]; TOKENS],
    ) {
        for t in 0..const { P::MANY / BYTES } {
            for p in 0..PANELS {
                for n in 0..N {
                    // SAFETY: as the caller promises.
                    unsafe {
                        let scale = P::Floats::splat(scales.map_or(1.0, |scales| *scales.add(t)));
                        let place = ((token + t) * PANELS + p) * ROWS + n * lanes::<P>();
                        let sum = self.room.sums.as_mut_ptr().add(place);
                        let total = P::Floats::fma(part[t][p][n], scale, P::Floats::load(sum));
                        P::Floats::store(sum, total);
                    }
                }
            }
        }
    }
}

/// The whole numbers of a group of so many times four elements.
///
/// # Safety
/// The codes of the group must be readable, and the tokens' bytes of it.
#[inline(always)]
unsafe fn dots<P: Part, const N: usize, const PANELS: usize, const BYTES: usize, const SIZE: u8>(
    fours: usize,
    codes: *const u8,
    limbs: *const i8,
) -> Dots<P, N, PANELS, BYTES> {
    // SAFETY: as the caller promises.
    unsafe {
        let mut dots = [[[[P::zero(); N]; BYTES]; PANELS]; TOKENS];
        let mut start = 0;
        // Whole runs have a length that the compiler knows.
        while start + RUN <= fours {
            dots = run::<P, N, PANELS, BYTES, SIZE>(dots, start..start + RUN, codes, limbs);
            start += RUN;
        }
        if start < fours {
            dots = run::<P, N, PANELS, BYTES, SIZE>(dots, start..fours, codes, limbs);
        }
        dots
    }
}

/// Adds the products of at most [`RUN`] fours.
///
/// # Safety
/// As for [`dots`].
#[inline(always)]
unsafe fn run<P: Part, const N: usize, const PANELS: usize, const BYTES: usize, const SIZE: u8>(
    mut dots: Dots<P, N, PANELS, BYTES>,
    fours: Range<usize>,
    codes: *const u8,
    limbs: *const i8,
) -> Dots<P, N, PANELS, BYTES> {
    let tokens = const { P::MANY / BYTES };
    // SAFETY: as the caller promises.
    unsafe {
        let mut run = if SIZE == TINY { [[[[P::zero(); N]; BYTES]; PANELS]; TOKENS] } else { dots };
        for i in fours {
            let mut these = [[P::load(codes); N]; PANELS];
            for p in 0..PANELS {
                for n in 0..N {
                    let at = (i * PANELS + p) * 4 * ROWS + n * 4 * lanes::<P>();
                    these[p][n] = P::load(codes.add(at));
                }
            }
            for t in 0..tokens {
                for b in 0..BYTES {
                    let four = limbs.add(((i * BYTES + b) * tokens + t) * 4);
                    for p in 0..PANELS {
                        for n in 0..N {
                            let (sums, codes) = (run[t][p][b][n], these[p][n]);
                            run[t][p][b][n] = match SIZE {
                                TINY => P::dot_in_pairs(sums, codes, four),
                                SMALL => P::dot::<true>(sums, codes, four),
                                _ => P::dot::<false>(sums, codes, four),
                            };
                        }
                    }
                }
            }
        }
        if SIZE != TINY {
            return run;
        }
        for t in 0..tokens {
            for p in 0..PANELS {
                for b in 0..BYTES {
                    for n in 0..N {
                        dots[t][p][b][n] = P::with_pairs(dots[t][p][b][n], run[t][p][b][n]);
                    }
                }
            }
        }
        dots
    }
}
