//! Byte products of few tokens: with one instruction for four elements where the machine has it, with a few otherwise.
//!
//! Algorithm: a vector holds four elements of sixteen rows; it is multiplied with the same four elements of a token,
//! once for each limb of them, a byte or a word, and added to whole numbers. At the end of a group these sums become one, which is
//! scaled and added to the block's sum; at the end of a block that is scaled by the activations' scale and added to
//! the row's; a token of one byte has a scale for every group instead. Whole numbers are exact, so only the order of groups and blocks matters to a result, and it is one and
//! the same for any number of tokens and rows, at every level.
//!
//! Measured on one core of a Xeon with AVX-512 (2.2 GHz): 4-bit codes in groups of 32 stream at 20-28 GB/s for one
//! token of two bytes, 12 GB/s for four.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::cell::RefCell;
use std::ops::Range;
use std::sync::LazyLock;

use super::activations::{Activations, limbs};
use super::codes::{Bits, Factors, Rare, Table, Unit};
use super::format::{BLOCK, Codes, Format, ROWS, UNIT};
use super::part::{Part, Task, at, lanes};
use crate::kernels::prefetch;
use crate::simd::{Simd, SimdLevel};

/// A few panels with a few tokens.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) level: SimdLevel,
    pub(super) format: &'a Format,
    pub(super) panels: Panels,
    pub(super) cols: usize,
    pub(super) x: &'a Activations<'a>,
    pub(super) first: usize,
}

/// Panels that are multiplied in turn, at equal distances. They are said like this, since to read addresses that were just
/// written one by one would wait for them.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub(super) first: *const u8,
    /// Bytes from one to the next.
    pub(super) apart: usize,
    /// At most [`STREAMS`].
    pub(super) count: usize,
}

impl Panels {
    fn at(&self, panel: usize) -> *const u8 {
        self.first.wrapping_add(panel * self.apart)
    }
}

/// Tokens of one product at most.
pub(super) const TOKENS: usize = 4;
/// Panels of one product at most.
pub(super) const STREAMS: usize = 8;

/// How panels are read that are multiplied in turn.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    /// Panels of one product at most.
    pub(super) streams: usize,
    /// How far ahead of its use memory is asked for, in bytes of all panels together.
    ahead: usize,
}

impl Reading {
    const DEFAULT: Reading = Reading { streams: STREAMS, ahead: 16 * 1024 };
    /// Two threads of a Zen 5 read up to 80 GB/s in one place each, 70 in two, and in four or eight between 29 and 52, depending on
    /// what their neighbours did.
    const AMD: Reading = Reading { streams: 1, ahead: 8 * 1024 };

    /// What suits this machine.
    pub(super) fn of_machine() -> Self {
        static FOUND: LazyLock<Reading> =
            LazyLock::new(|| if is_amd() { Reading::AMD } else { Reading::DEFAULT });
        *FOUND
    }
}

fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = std::arch::x86_64::__cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The sums of every token, each for all rows of a panel.
type Sums = [[f32; ROWS]; TOKENS];

type Floats<P> = <<P as Part>::Floats as Simd>::F;

/// What products are computed in, one after the other. A thread keeps it, since to clear it would take a small task's time.
pub(super) struct Room {
    factors: Factors,
    sums: [Sums; STREAMS],
    /// The first of the panels that were multiplied last.
    last: *const u8,
}

thread_local! {
    static ROOM: RefCell<Room> = const {
        let sums = [[[0.0; ROWS]; TOKENS]; STREAMS];
        RefCell::new(Room { factors: Factors::new(), sums, last: std::ptr::null() })
    };
}

impl Room {
    /// Calls `work` with the thread's.
    pub(super) fn with<R>(work: impl FnOnce(&mut Room) -> R) -> R {
        ROOM.with_borrow_mut(work)
    }
}

impl Product<'_> {
    /// The sums of `tokens` tokens with every panel.
    ///
    /// # Safety
    /// The machine must have the level, and it byte products; the panels must be whole and the tokens there.
    pub(super) unsafe fn run<'r>(&self, tokens: usize, room: &'r mut Room) -> &'r [Sums] {
        // The same panels are there, and the next ones were asked for.
        let next = room.last.wrapping_add(self.format.panel_bytes(self.cols));
        if ![room.last, next].contains(&self.panels.first) {
            self.begin();
        }
        room.last = self.panels.first;
        room.sums[..self.panels.count].iter_mut().for_each(|sums| sums[..tokens].fill([0.0; ROWS]));
        // SAFETY: as the caller promises.
        unsafe {
            match self.format.codes {
                Codes::Four => self.with(Bits::<4>, tokens, &mut *room),
                Codes::Six => self.with(Bits::<6>, tokens, &mut *room),
                Codes::Eight => self.with(Bits::<8>, tokens, &mut *room),
                codes @ Codes::Table(table) if !codes.are_small() => {
                    self.with(Table(table), tokens, &mut *room)
                }
                codes => self.with(Rare(codes), tokens, &mut *room),
            }
        }
        &room.sums[..self.panels.count]
    }

    /// Asks for what is multiplied before anything that is asked for beside products comes, from all panels in turn. A
    /// small product takes a twelfth less with it.
    fn begin(&self) {
        for line in (0..self.ahead()).step_by(64) {
            for panel in 0..self.panels.count {
                prefetch(self.panels.at(panel).wrapping_add(line), 64);
            }
        }
    }

    /// How far ahead of its use a panel's memory is asked for: what lies nearer than a block would be multiplied before
    /// its turn comes.
    fn ahead(&self) -> usize {
        (Reading::of_machine().ahead / self.panels.count)
            .max(self.format.block_bytes(BLOCK).next_multiple_of(64))
    }

    /// # Safety
    /// As for [`Self::run`].
    unsafe fn with<U: Unit>(&self, unit: U, tokens: usize, room: &mut Room) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.x.bytes {
                1 => at(self.level, Few::<U, 1> { product: self, unit, tokens, room }),
                2 => at(self.level, Few::<U, 2> { product: self, unit, tokens, room }),
                _ => at(self.level, Few::<U, 3> { product: self, unit, tokens, room }),
            }
        }
    }
}

/// A few tokens, cut into as many at a time as a level has registers for.
struct Few<'a, U, const BYTES: usize> {
    /// Not a copy, which would wait for what was just written to be there.
    product: &'a Product<'a>,
    unit: U,
    tokens: usize,
    room: &'a mut Room,
}

impl<U: Unit, const BYTES: usize> Task for Few<'_, U, BYTES> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<P: Part, const N: usize>(self) {
        let Few { product, unit, tokens, room } = self;
        // SAFETY: as the caller of `Product::run` promises.
        unsafe {
            if tokens == 1 && BYTES > 1 {
                return product.sums::<U, P, N, 1, BYTES>(unit, 0..1, room);
            }
            // Absent tokens repeat the last; nobody reads their sums.
            if P::TOKENS == TOKENS || limbs(BYTES, P::IN_PAIRS) == 1 {
                return product.sums::<U, P, N, TOKENS, BYTES>(unit, 0..tokens, room);
            }
            for start in (0..tokens).step_by(2) {
                product.sums::<U, P, N, 2, BYTES>(unit, start..tokens, &mut *room);
            }
        }
    }
}

impl Product<'_> {
    /// The sums of `T` tokens from the range's first on.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn sums<U: Unit, P: Part, const N: usize, const T: usize, const BYTES: usize>(
        &self,
        unit: U,
        tokens: Range<usize>,
        room: &mut Room,
    ) {
        let Product { format, panels, cols, x, first, .. } = *self;
        let mut token = [first; T];
        for t in 0..T {
            token[t] = first + (tokens.start + t).min(tokens.end - 1);
        }
        let mut from: [_; STREAMS] = std::array::from_fn(|panel| panels.at(panel));
        let (all, each) = (cols / format.group, BLOCK / format.group);
        let ahead = self.ahead();
        for (block, first) in (0..all).step_by(each).enumerate() {
            let groups = first..all.min(first + each);
            // To find where a token's elements and sums of a group lie takes divisions; those of the next one are near.
            let places = token.map(|t| (x.limbs(t, groups.start), x.sums(t, groups.start)));
            // A token of one byte has a scale for every group instead.
            // SAFETY: tokens have a scale for every block.
            let scales = token.map(|t| if BYTES == 1 { 1.0 } else { unsafe { *x.scales(t, block) } });
            let mut coming = Coming::new(&from, (panels.count, ahead));
            for (from, out) in from.iter_mut().zip(&mut room.sums).take(panels.count) {
                // SAFETY: a panel is a sequence of blocks; the tokens have as many elements.
                unsafe {
                    let part = self.block::<U, P, N, T, BYTES>(
                        unit,
                        (from, groups.clone()),
                        (token, places),
                        &mut room.factors,
                        &mut coming,
                    );
                    for t in 0..T.min(tokens.len()) {
                        let scale = P::Floats::splat(scales[t]);
                        for n in 0..N {
                            let sum = out[tokens.start + t].as_mut_ptr().add(n * lanes::<P>());
                            let total = P::Floats::fma(part[t][n], scale, P::Floats::load(sum));
                            P::Floats::store(sum, total);
                        }
                    }
                }
            }
        }
    }

    /// The sums of a block of some groups that begins at `from`, which is moved to its end.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn block<U: Unit, P: Part, const N: usize, const T: usize, const BYTES: usize>(
        &self,
        unit: U,
        (from, groups): (&mut *const u8, Range<usize>),
        (token, places): ([usize; T], [(*const i8, *const f32); T]),
        factors: &mut Factors,
        coming: &mut Coming,
    ) -> [[Floats<P>; N]; T] {
        let Product { format, x, .. } = *self;
        let mut limbs = places.map(|(limbs, _)| limbs);
        let mut sums = places.map(|(_, sums)| sums);
        let bytes = format.group / UNIT * unit.bytes();
        let stride = x.stride() * self::limbs(BYTES, P::IN_PAIRS);
        // SAFETY: a block is its scales and then the units of its codes.
        unsafe {
            let mut part = [[P::Floats::splat(0.0); N]; T];
            factors.read::<P::Floats>(format, *from, groups.len());
            coming.fetch(format.scale_bytes(groups.len()));
            *from = from.add(format.scale_bytes(groups.len()));
            for ((scales, biases), group) in factors.scales.iter().zip(&factors.biases).zip(groups) {
                let dots = self.dots::<U, P, N, T, BYTES>(unit, *from, limbs, coming);
                *from = from.add(bytes);
                limbs = limbs.map(|at| at.wrapping_add(stride));
                for n in 0..N {
                    let row = n * lanes::<P>();
                    let scale = P::Floats::load(scales.as_ptr().add(row));
                    let bias = P::Floats::load(biases.as_ptr().add(row));
                    for t in 0..T {
                        let sum = P::Floats::splat(*sums[t]);
                        let mut limbs = [P::zero(); BYTES];
                        for l in 0..BYTES {
                            limbs[l] = dots[t][l][n];
                        }
                        let mut dot = joined::<P, BYTES>(limbs, P::IN_PAIRS);
                        if BYTES == 1 {
                            dot = P::Floats::mul(dot, P::Floats::splat(*x.scales(token[t], group)));
                        }
                        part[t][n] = P::Floats::fma(dot, scale, part[t][n]);
                        part[t][n] = P::Floats::fma(sum, bias, part[t][n]);
                    }
                }
                sums = sums.map(|at| at.wrapping_add(x.width()));
            }
            part
        }
    }

    /// The whole numbers of a group whose units begin at `from`, and the tokens' elements of it at `limbs`.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn dots<U: Unit, P: Part, const N: usize, const T: usize, const BYTES: usize>(
        &self,
        unit: U,
        from: *const u8,
        limbs: [*const i8; T],
        coming: &mut Coming,
    ) -> [[[P::Sums; N]; BYTES]; T] {
        let (bytes, stride) = (unit.bytes(), self.x.stride());
        // SAFETY: as the caller promises: the units of the group are there, and the tokens' elements of it.
        unsafe {
            let mut dots = [[[P::zero(); N]; BYTES]; T];
            for u in 0..self.format.group / UNIT {
                let at = from.add(u * bytes);
                let codes = unit.load::<P, N>(at);
                coming.fetch(bytes);
                if P::IN_PAIRS {
                    self.add_words::<P, N, T, BYTES>(&mut dots, codes, limbs.map(|at| at.add(2 * u * UNIT)));
                    continue;
                }
                for t in 0..T {
                    let limbs = limbs[t].add(u * UNIT);
                    for i in 0..4 {
                        for b in 0..BYTES {
                            let four = limbs.add(b * stride + i * 4);
                            for n in 0..N {
                                let sums = dots[t][b][n];
                                dots[t][b][n] = match U::SMALL {
                                    true => P::dot::<true>(sums, codes[i][n], four),
                                    false => P::dot::<false>(sums, codes[i][n], four),
                                };
                            }
                        }
                    }
                }
            }
            dots
        }
    }

    /// Adds the products of a unit with tokens whose limbs are words.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn add_words<P: Part, const N: usize, const T: usize, const BYTES: usize>(
        &self,
        dots: &mut [[[P::Sums; N]; BYTES]; T],
        codes: [[P::Bytes; N]; 4],
        limbs: [*const i8; T],
    ) {
        for i in 0..4 {
            for n in 0..N {
                // SAFETY: as the caller promises.
                unsafe {
                    for (half, words) in P::words(codes[i][n]).into_iter().enumerate() {
                        for t in 0..T {
                            for l in 0..self::limbs(BYTES, true) {
                                let two = limbs[t].add(l * self.x.stride() + (i * 2 + half) * 4);
                                dots[t][l][n] = P::dot_of_words(dots[t][l][n], words, two);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What is asked for while a block of every panel is multiplied: as much as it has, from all panels in turn. Memory that
/// is read in several places at a time comes faster than in one.
struct Coming {
    at: [*const u8; STREAMS],
    next: usize,
    count: usize,
}

impl Coming {
    #[inline(always)]
    fn new(from: &[*const u8; STREAMS], (count, ahead): (usize, usize)) -> Self {
        Coming { at: from.map(|at| at.wrapping_add(ahead)), next: 0, count }
    }

    #[inline(always)]
    fn fetch(&mut self, bytes: usize) {
        // The remainder is the number itself, and spares a check.
        let at = &mut self.at[self.next % STREAMS];
        prefetch(*at, bytes);
        *at = at.wrapping_add(bytes);
        self.next = if self.next + 1 == self.count { 0 } else { self.next + 1 };
    }
}

/// The sums of a number's limbs as the sum of the number. Two bytes fit a whole number; the third is added as `f32`.
#[inline(always)]
pub(super) unsafe fn joined<P: Part, const BYTES: usize>(
    dots: [P::Sums; BYTES],
    are_words: bool,
) -> Floats<P> {
    // SAFETY: the caller has the instructions.
    unsafe {
        let two = match are_words || BYTES == 1 {
            true => P::floats(dots[0]),
            false => P::floats(P::joined(dots[0], dots[1 % BYTES])),
        };
        if BYTES < 3 {
            return two;
        }
        P::Floats::fma(two, P::Floats::splat(256.0), P::floats(dots[limbs(BYTES, are_words) - 1]))
    }
}
