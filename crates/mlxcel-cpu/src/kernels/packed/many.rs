//! Byte products of many tokens where there are no tiles: the same whole numbers as [`super::dots`] and the same order of
//! everything after them, so a token has the same result in either.
//!
//! Algorithm: codes of a block are unpacked to bytes in the first-level cache, once for all tokens. A few tokens at a time
//! are multiplied with the rows of one or two panels, as many as registers hold sums of; at the end of a group these are
//! scaled and added to the block's sum. Where bytes are multiplied in pairs, products of words take fewer instructions,
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

/// Whole numbers of every limb, those of neighbouring tokens beside each other.
type Dots<P, const N: usize, const PANELS: usize> = [[[<P as Part>::Sums; N]; PANELS]; TOKENS];

type Floats<P> = <<P as Part>::Floats as Simd>::F;

/// Tokens of so many bytes that are multiplied together.
const fn together<P: Part>(bytes: usize, size: u8) -> usize {
    P::MANY / limbs(bytes, size == WORDS)
}

/// Limbs of these tokens.
const fn lines<P: Part>(bytes: usize, size: u8) -> usize {
    together::<P>(bytes, size) * limbs(bytes, size == WORDS)
}

/// Bytes of the unpacked codes of a block at most.
const CODES: usize = BLOCK * ROWS * PANELS * 2;

/// Whole numbers of some tokens with some panels at any level.
type Waiting = [i32; TOKENS * PANELS * ROWS];

/// A block's codes and scales, and the sums of all tokens. In this order, so that vectors begin with lines of the cache.
#[repr(C, align(64))]
pub(super) struct Room {
    /// Bytes or words.
    codes: [u8; CODES],
    /// Whole numbers of every group that waits.
    waiting: [Waiting; GROUPS],
    factors: [Factors; PANELS],
    /// `[tokens][panels][rows]`.
    sums: Aligned<f32>,
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        codes: [0; CODES],
        waiting: [[0; TOKENS * PANELS * ROWS]; GROUPS],
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
        let (tokens, lines) = const { (together::<P>(BYTES, SIZE), lines::<P>(BYTES, SIZE)) };
        let (first, groups) = (start / format.group, len / format.group);
        let stride = x.stride() * const { limbs(BYTES, SIZE == WORDS) };
        // Four bytes of a number each.
        let fours = format.group * if SIZE == WORDS { 2 } else { 1 } / 4;
        for tile in 0..self.tiles {
            let token = tile * tokens;
            let limbs = x.limbs(token, first);
            let next = x.limbs(token + tokens, first);
            self.ahead.fetch();
            let mut part = [[[P::Floats::splat(0.0); TOKENS]; N]; PANELS];
            for g in 0..groups {
                prefetch(next.wrapping_add(g * stride).cast(), stride);
                // SAFETY: as the caller promises; whole numbers have a place for every group.
                unsafe {
                    let codes = self.room.codes.as_ptr().add(g * fours * 4 * ROWS * PANELS);
                    let from = (codes, limbs.add(g * stride));
                    if SIZE == TINY {
                        in_pairs::<P, N, PANELS, BYTES>(fours, from, &mut *self.waiting::<P, N, PANELS>(g));
                        continue;
                    }
                    let dots = dots::<P, N, PANELS, BYTES, SIZE>(fours, from);
                    if P::IN_PAIRS {
                        let waiting = &mut *self.waiting::<P, N, PANELS>(g);
                        waiting[..lines].copy_from_slice(&dots[..lines]);
                    } else {
                        self.scale::<P, N, PANELS, SIZE>(
                            (token, first, g..g + 1),
                            &raw const dots,
                            &mut part,
                        );
                    }
                }
            }
            if P::IN_PAIRS {
                // SAFETY: as the caller promises; the whole numbers of all groups wait.
                unsafe {
                    let dots = self.waiting::<P, N, PANELS>(0);
                    self.scale::<P, N, PANELS, SIZE>((token, first, 0..groups), dots, &mut part);
                }
            }
            let scales = (BYTES > 1).then(|| x.scales(token, start / BLOCK));
            // SAFETY: there is room for the sums of all tiles.
            unsafe { self.add::<P, N, PANELS, SIZE>(token, scales, &part) };
            if self.stretch.is_last {
                self.put(token..token + tokens);
            }
        }
    }

    /// Where the whole numbers of a group wait until all groups have theirs, where bytes are multiplied in pairs: many more
    /// registers are needed there to multiply, and none are left for the sums of the block meanwhile.
    #[inline(always)]
    fn waiting<P: Part, const N: usize, const PANELS: usize>(
        &mut self,
        group: usize,
    ) -> *mut Dots<P, N, PANELS> {
        const { assert!(size_of::<Dots<P, N, PANELS>>() <= size_of::<Waiting>()) };
        self.room.waiting.as_mut_ptr().cast::<Dots<P, N, PANELS>>().wrapping_add(group)
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

    /// Adds the products of some groups, whose whole numbers follow each other, to the sums of the block.
    ///
    /// # Safety
    /// As for [`Product::run`]; the whole numbers must be readable.
    #[inline(always)]
    unsafe fn scale<P: Part, const N: usize, const PANELS: usize, const SIZE: u8>(
        &self,
        (token, first, groups): (usize, usize, Range<usize>),
        dots: *const Dots<P, N, PANELS>,
        part: &mut [[[Floats<P>; TOKENS]; N]; PANELS],
    ) {
        let (x, width, from) = (self.product.x, self.product.x.width(), groups.start);
        let sums = x.sums(token, first + from);
        let scales = (BYTES == 1).then(|| x.scales(token, first + from));
        for p in 0..PANELS {
            for n in 0..N {
                let factors = &self.room.factors[p];
                for g in groups.clone() {
                    // SAFETY: a group has a scale and a bias for every row, and numbers for every token.
                    unsafe {
                        let scale = P::Floats::load(factors.scales[g].as_ptr().add(n * lanes::<P>()));
                        let bias = P::Floats::load(factors.biases[g].as_ptr().add(n * lanes::<P>()));
                        let dots = &*dots.add(g - from);
                        for t in 0..const { together::<P>(BYTES, SIZE) } {
                            let mut limbs = [P::zero(); BYTES];
                            for l in 0..const { self::limbs(BYTES, SIZE == WORDS) } {
                                limbs[l] = dots[l * const { together::<P>(BYTES, SIZE) } + t][p][n];
                            }
                            let mut dot = joined::<P, BYTES>(limbs, SIZE == WORDS);
                            if let Some(scales) = scales {
                                let of_token = *scales.add((g - from) * width + t);
                                dot = P::Floats::mul(dot, P::Floats::splat(of_token));
                            }
                            let sum = P::Floats::splat(*sums.add((g - from) * width + t));
                            part[p][n][t] = P::Floats::fma(dot, scale, part[p][n][t]);
                            part[p][n][t] = P::Floats::fma(sum, bias, part[p][n][t]);
                        }
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
    unsafe fn add<P: Part, const N: usize, const PANELS: usize, const SIZE: u8>(
        &mut self,
        token: usize,
        scales: Option<*const f32>,
        part: &[[[Floats<P>; TOKENS]; N]; PANELS],
    ) {
        for t in 0..const { together::<P>(BYTES, SIZE) } {
            for p in 0..PANELS {
                for n in 0..N {
                    // SAFETY: as the caller promises.
                    unsafe {
                        let scale = P::Floats::splat(scales.map_or(1.0, |scales| *scales.add(t)));
                        let place = ((token + t) * PANELS + p) * ROWS + n * lanes::<P>();
                        let sum = self.room.sums.as_mut_ptr().add(place);
                        let total = P::Floats::fma(part[p][n][t], scale, P::Floats::load(sum));
                        P::Floats::store(sum, total);
                    }
                }
            }
        }
    }
}

/// The whole numbers of a group that has so many times four bytes of codes.
///
/// # Safety
/// The codes of the group must be readable, and the tokens' limbs of it.
#[inline(always)]
unsafe fn dots<P: Part, const N: usize, const PANELS: usize, const BYTES: usize, const SIZE: u8>(
    fours: usize,
    from: (*const u8, *const i8),
) -> Dots<P, N, PANELS> {
    // SAFETY: as the caller promises.
    unsafe {
        let (mut dots, mut start) = ([[[P::zero(); N]; PANELS]; TOKENS], 0);
        // Whole runs have a length that the compiler knows.
        while start + RUN <= fours {
            dots = run::<P, N, PANELS, BYTES, SIZE>(dots, start..start + RUN, from);
            start += RUN;
        }
        if start < fours {
            dots = run::<P, N, PANELS, BYTES, SIZE>(dots, start..fours, from);
        }
        dots
    }
}

/// The same of tiny codes, put where they wait.
///
/// # Safety
/// As for [`dots`].
#[inline(always)]
unsafe fn in_pairs<P: Part, const N: usize, const PANELS: usize, const BYTES: usize>(
    fours: usize,
    from: (*const u8, *const i8),
    to: &mut Dots<P, N, PANELS>,
) {
    let mut start = 0;
    while start < fours {
        // SAFETY: as the caller promises.
        unsafe {
            let none = [[[P::zero(); N]; PANELS]; TOKENS];
            let pairs = match start + RUN <= fours {
                true => run::<P, N, PANELS, BYTES, TINY>(none, start..start + RUN, from),
                false => run::<P, N, PANELS, BYTES, TINY>(none, start..fours, from),
            };
            for line in 0..const { lines::<P>(BYTES, TINY) } {
                for p in 0..PANELS {
                    for n in 0..N {
                        let before = if start == 0 { P::zero() } else { to[line][p][n] };
                        to[line][p][n] = P::with_pairs(before, pairs[line][p][n]);
                    }
                }
            }
        }
        start += RUN;
    }
}

/// Adds the products of some fours of a group.
///
/// # Safety
/// As for [`dots`].
#[inline(always)]
unsafe fn run<P: Part, const N: usize, const PANELS: usize, const BYTES: usize, const SIZE: u8>(
    mut sums: Dots<P, N, PANELS>,
    fours: Range<usize>,
    (codes, limbs): (*const u8, *const i8),
) -> Dots<P, N, PANELS> {
    for i in fours {
        // SAFETY: as the caller promises.
        unsafe {
            let mut these = [[P::load(codes); N]; PANELS];
            for p in 0..PANELS {
                for n in 0..N {
                    these[p][n] = P::load(codes.add((i * PANELS + p) * 4 * ROWS + n * 4 * lanes::<P>()));
                }
            }
            for line in 0..const { lines::<P>(BYTES, SIZE) } {
                let four = limbs.add((i * const { lines::<P>(BYTES, SIZE) } + line) * 4);
                for p in 0..PANELS {
                    for n in 0..N {
                        let (before, codes) = (sums[line][p][n], these[p][n]);
                        sums[line][p][n] = match SIZE {
                            TINY => P::dot_in_pairs(before, codes, four),
                            SMALL => P::dot::<true>(before, codes, four),
                            WORDS => P::dot_of_words(before, codes, four),
                            _ => P::dot::<false>(before, codes, four),
                        };
                    }
                }
            }
        }
    }
    sums
}
