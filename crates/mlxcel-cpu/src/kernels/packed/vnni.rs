//! Byte products with AVX-512 VNNI.
//!
//! Algorithm: a vector holds four elements of sixteen rows; it is multiplied with the same four elements of a token,
//! once for each byte of them, and added to whole numbers. At the end of a group these sums become one, which is
//! scaled and added to the block's sum; at the end of a block that is scaled by the activations' scale and added to
//! the row's. Whole numbers are exact, so only the order of groups and blocks matters to a result, and it is one and
//! the same for any number of tokens and rows.
//!
//! Measured on one core of a Xeon with AVX-512 (2.2 GHz): 4-bit codes in groups of 32 stream at 20-28 GB/s for one
//! token of two bytes, 12 GB/s for four.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::activations::Activations;
use super::codes::{AHEAD, Bits, Factors, Lookup, Unit};
use super::format::{BLOCK, Codes, Format, ROWS, UNIT};

/// One panel with a few tokens.
pub(super) struct Product<'a> {
    pub(super) format: &'a Format,
    pub(super) panel: *const u8,
    pub(super) cols: usize,
    pub(super) x: &'a Activations<'a>,
    pub(super) first: usize,
}

/// Tokens of one product at most.
pub(super) const TOKENS: usize = 4;

impl Product<'_> {
    /// The sums of `tokens` tokens, each for all rows of the panel.
    ///
    /// # Safety
    /// The machine must have AVX-512 F, BW, VL, DQ and VNNI, the panel must be whole and the tokens there.
    pub(super) unsafe fn run(&self, tokens: usize, factors: &mut Factors) -> [[f32; ROWS]; TOKENS] {
        let work = (tokens, factors);
        // SAFETY: as the caller promises.
        unsafe {
            match self.format.codes {
                Codes::Two => self.by_tokens(&Bits::<2>, work),
                Codes::Three => self.by_tokens(&Bits::<3>, work),
                Codes::Four => self.by_tokens(&Bits::<4>, work),
                Codes::Five => self.by_tokens(&Bits::<5>, work),
                Codes::Six => self.by_tokens(&Bits::<6>, work),
                Codes::Eight => self.by_tokens(&Bits::<8>, work),
                Codes::Table(table) => self.by_tokens(&Lookup::new(table), work),
            }
        }
    }

    #[inline(always)]
    unsafe fn by_tokens(&self, unit: &impl Unit, work: (usize, &mut Factors)) -> [[f32; ROWS]; TOKENS] {
        let (tokens, factors) = work;
        let mut out = [[0.0; ROWS]; TOKENS];
        // SAFETY: as the caller of `run` promises. Absent tokens repeat the last; nobody reads their sums.
        unsafe {
            match (tokens, self.x.bytes) {
                (1, 2) => self.sums::<1, 2>(unit, (tokens, factors), &mut out),
                (1, _) => self.sums::<1, 3>(unit, (tokens, factors), &mut out),
                (_, 2) => self.sums::<TOKENS, 2>(unit, (tokens, factors), &mut out),
                _ => self.sums::<TOKENS, 3>(unit, (tokens, factors), &mut out),
            }
        }
        out
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
    unsafe fn sums<const T: usize, const BYTES: usize>(
        &self,
        unit: &impl Unit,
        (tokens, factors): (usize, &mut Factors),
        out: &mut [[f32; ROWS]; TOKENS],
    ) {
        let Product { format, cols, x, first, .. } = *self;
        let mut token = [first; T];
        for (t, token) in token.iter_mut().enumerate() {
            *token = first + t.min(tokens - 1);
        }
        let mut at = self.panel;
        let mut total = [_mm512_setzero_ps(); T];
        let (units, bytes) = (format.group / UNIT, format.codes.bytes());
        let mut start = 0;
        while start < cols {
            let groups = (cols - start).min(BLOCK) / format.group;
            // SAFETY: a panel is a sequence of blocks, each its scales and then the units of its codes; the tokens
            // have as many elements.
            unsafe {
                factors.read(format, at, groups);
                at = at.add(format.scale_bytes(groups));
                let mut part = [_mm512_setzero_ps(); T];
                for g in 0..groups {
                    let mut dots = [[_mm512_setzero_si512(); BYTES]; T];
                    for u in 0..units {
                        let codes = unit.load(at);
                        for line in 0..bytes.div_ceil(64) {
                            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD + line * 64).cast());
                        }
                        at = at.add(bytes);
                        for t in 0..T {
                            let limbs = x.limbs(token[t], start / format.group + g).add(u * UNIT);
                            for i in 0..4 {
                                for b in 0..BYTES {
                                    let four = limbs.add(b * x.stride() + i * 4).cast::<i32>();
                                    let four = _mm512_set1_epi32(four.read_unaligned());
                                    dots[t][b] = _mm512_dpbusd_epi32(dots[t][b], codes[i], four);
                                }
                            }
                        }
                    }
                    let scale = _mm512_load_ps(factors.scales[g].as_ptr());
                    let bias = _mm512_load_ps(factors.biases[g].as_ptr());
                    for t in 0..T {
                        let sum = _mm512_set1_ps(*x.sums(token[t], start / format.group + g));
                        part[t] = _mm512_fmadd_ps(joined(dots[t]), scale, part[t]);
                        part[t] = _mm512_fmadd_ps(sum, bias, part[t]);
                    }
                }
                for t in 0..T {
                    let scale = _mm512_set1_ps(*x.scales(token[t]).add(start / BLOCK));
                    total[t] = _mm512_fmadd_ps(part[t], scale, total[t]);
                }
            }
            start += BLOCK;
        }
        for t in 0..T {
            // SAFETY: a row of the result is a vector.
            unsafe { _mm512_storeu_ps(out[t].as_mut_ptr(), total[t]) };
        }
    }
}

/// The sums of a number's bytes as the sum of the number. Two bytes fit a whole number; the third is added as `f32`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn joined<const BYTES: usize>(dots: [__m512i; BYTES]) -> __m512 {
    let two = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(dots[0]), dots[1]));
    if BYTES == 2 {
        return two;
    }
    _mm512_fmadd_ps(two, _mm512_set1_ps(256.0), _mm512_cvtepi32_ps(dots[BYTES - 1]))
}
