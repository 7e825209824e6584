//! Byte products of few tokens: with one instruction for four elements where the machine has it, with a few otherwise.
//!
//! Algorithm: a vector holds four elements of sixteen rows; it is multiplied with the same four elements of a token,
//! once for each byte of them, and added to whole numbers. At the end of a group these sums become one, which is
//! scaled and added to the block's sum; at the end of a block that is scaled by the activations' scale and added to
//! the row's; a token of one byte has a scale for every group instead. Whole numbers are exact, so only the order of groups and blocks matters to a result, and it is one and
//! the same for any number of tokens and rows, at every level.
//!
//! Measured on one core of a Xeon with AVX-512 (2.2 GHz): 4-bit codes in groups of 32 stream at 20-28 GB/s for one
//! token of two bytes, 12 GB/s for four.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use super::activations::Activations;
use super::codes::{AHEAD, Bits, Factors, Rare, Table, Unit};
use super::format::{BLOCK, Codes, Format, ROWS, UNIT};
use super::part::{Part, Task, at, lanes};
use crate::kernels::prefetch;
use crate::simd::{Simd, SimdLevel};

/// One panel with a few tokens.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) level: SimdLevel,
    pub(super) format: &'a Format,
    pub(super) panel: *const u8,
    pub(super) cols: usize,
    pub(super) x: &'a Activations<'a>,
    pub(super) first: usize,
}

/// Tokens of one product at most.
pub(super) const TOKENS: usize = 4;

/// What a product is computed into.
type Room<'a> = (&'a mut Factors, &'a mut [[f32; ROWS]; TOKENS]);

impl Product<'_> {
    /// The sums of `tokens` tokens, each for all rows of the panel.
    ///
    /// # Safety
    /// The machine must have the level, and it byte products; the panel must be whole and the tokens there.
    pub(super) unsafe fn run(&self, tokens: usize, factors: &mut Factors) -> [[f32; ROWS]; TOKENS] {
        let mut out = [[0.0; ROWS]; TOKENS];
        let room = (factors, &mut out);
        // SAFETY: as the caller promises.
        unsafe {
            match self.format.codes {
                Codes::Four => self.with(Bits::<4>, tokens, room),
                Codes::Six => self.with(Bits::<6>, tokens, room),
                Codes::Eight => self.with(Bits::<8>, tokens, room),
                Codes::Table(table) if table.iter().any(|&entry| entry >= 128) => {
                    self.with(Table(table), tokens, room)
                }
                codes => self.with(Rare(codes), tokens, room),
            }
        }
        out
    }

    /// # Safety
    /// As for [`Self::run`].
    unsafe fn with<U: Unit>(&self, unit: U, tokens: usize, room: Room<'_>) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.x.bytes {
                1 => at(self.level, Few::<U, 1> { product: *self, unit, tokens, room }),
                2 => at(self.level, Few::<U, 2> { product: *self, unit, tokens, room }),
                _ => at(self.level, Few::<U, 3> { product: *self, unit, tokens, room }),
            }
        }
    }
}

/// A few tokens, cut into as many at a time as a level has registers for.
struct Few<'a, U, const BYTES: usize> {
    product: Product<'a>,
    unit: U,
    tokens: usize,
    room: Room<'a>,
}

impl<U: Unit, const BYTES: usize> Task for Few<'_, U, BYTES> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<P: Part, const N: usize>(self) {
        let Few { product, unit, tokens, room: (factors, out) } = self;
        // SAFETY: as the caller of `Product::run` promises.
        unsafe {
            if tokens == 1 && BYTES > 1 {
                return product.sums::<U, P, N, 1, BYTES>(unit, 0..1, (factors, out));
            }
            // Absent tokens repeat the last; nobody reads their sums.
            if P::TOKENS == TOKENS || BYTES == 1 {
                return product.sums::<U, P, N, TOKENS, BYTES>(unit, 0..tokens, (factors, out));
            }
            for start in (0..tokens).step_by(2) {
                product.sums::<U, P, N, 2, BYTES>(unit, start..tokens, (&mut *factors, &mut *out));
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
        tokens: std::ops::Range<usize>,
        (factors, out): Room<'_>,
    ) {
        let Product { format, cols, x, first, .. } = *self;
        let zeros = [P::Floats::splat(0.0); N];
        let mut token = [first; T];
        for t in 0..T {
            token[t] = first + (tokens.start + t).min(tokens.end - 1);
        }
        // Where each token's elements of the next group and their sum lie: to find them anew takes a division.
        let mut limbs = token.map(|t| x.limbs(t, 0));
        let mut sums = token.map(|t| x.sums(t, 0));
        let mut from = self.panel;
        let mut total = [zeros; T];
        let bytes = format.group / UNIT * unit.bytes();
        let (all, each) = (cols / format.group, BLOCK / format.group);
        for (block, first) in (0..all).step_by(each).enumerate() {
            let groups = each.min(all - first);
            // SAFETY: a panel is a sequence of blocks, each its scales and then the units of its codes; the tokens
            // have as many elements.
            unsafe {
                factors.read::<P::Floats>(format, from, groups);
                prefetch(from.wrapping_add(AHEAD), format.scale_bytes(groups));
                from = from.add(format.scale_bytes(groups));
                let mut part = [zeros; T];
                for g in 0..groups {
                    let group = first + g;
                    let dots = self.dots::<U, P, N, T, BYTES>(unit, from, limbs);
                    from = from.add(bytes);
                    limbs = limbs.map(|at| at.wrapping_add(BYTES * x.stride()));
                    for n in 0..N {
                        let row = n * lanes::<P>();
                        let scale = P::Floats::load(factors.scales[g].as_ptr().add(row));
                        let bias = P::Floats::load(factors.biases[g].as_ptr().add(row));
                        for t in 0..T {
                            let sum = P::Floats::splat(*sums[t]);
                            let mut dot = joined::<P, N, BYTES>(&dots[t], n);
                            if BYTES == 1 {
                                dot = P::Floats::mul(dot, P::Floats::splat(*x.scales(token[t]).add(group)));
                            }
                            part[t][n] = P::Floats::fma(dot, scale, part[t][n]);
                            part[t][n] = P::Floats::fma(sum, bias, part[t][n]);
                        }
                    }
                    sums = sums.map(|at| at.wrapping_add(x.width()));
                }
                for t in 0..T {
                    let scale = if BYTES == 1 { 1.0 } else { *x.scales(token[t]).add(block) };
                    for n in 0..N {
                        total[t][n] = P::Floats::fma(part[t][n], P::Floats::splat(scale), total[t][n]);
                    }
                }
            }
        }
        for t in 0..T.min(tokens.len()) {
            for n in 0..N {
                // SAFETY: a row of the result has a number for every row of the panel.
                unsafe {
                    P::Floats::store(out[tokens.start + t].as_mut_ptr().add(n * lanes::<P>()), total[t][n]);
                }
            }
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
    ) -> [[[P::Sums; N]; BYTES]; T] {
        let (bytes, stride) = (unit.bytes(), self.x.stride());
        // SAFETY: as the caller promises: the units of the group are there, and the tokens' elements of it.
        unsafe {
            let mut dots = [[[P::zero(); N]; BYTES]; T];
            for u in 0..self.format.group / UNIT {
                let at = from.add(u * bytes);
                let codes = unit.load::<P, N>(at);
                prefetch(at.wrapping_add(AHEAD), bytes);
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
}

/// The sums of a number's bytes as the sum of the number. Two bytes fit a whole number; the third is added as `f32`.
#[inline(always)]
unsafe fn joined<P: Part, const N: usize, const BYTES: usize>(
    dots: &[[P::Sums; N]; BYTES],
    n: usize,
) -> <P::Floats as Simd>::F {
    // SAFETY: the caller has the instructions.
    unsafe {
        if BYTES == 1 {
            return P::floats(dots[0][n]);
        }
        let two = P::floats(P::joined(dots[0][n], dots[1][n]));
        if BYTES == 2 {
            return two;
        }
        P::Floats::fma(two, P::Floats::splat(256.0), P::floats(dots[BYTES - 1][n]))
    }
}
