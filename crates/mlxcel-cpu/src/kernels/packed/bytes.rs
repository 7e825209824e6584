//! Byte products of many tokens with AMX tiles: the same whole numbers as [`super::dots`] and the same order of
//! everything after them, so a token has the same result in either.
//!
//! Algorithm: codes of a block are unpacked to bytes in the first-level cache. A tile of sixteen tokens is multiplied
//! with a group of sixteen rows, once for each byte of the activations; the sums leave the tiles at the end of the
//! group, since the next one has other scales, and are scaled and added in registers.
//!
//! Layout: a tile of tokens is `[16][group]` bytes, a tile of rows `[group / 4][16 rows][4]`; groups of more than 64
//! elements are several steps.
//!
//! Measured as a whole step of sixteen sequences through a model of 1.5 billion weights, turn by turn with `dots` on two
//! busy cores: 1.2 of its speed for Q4_K (groups of 32 and 16), 1.5 to 2 for 4 bits in groups of 64. The same in one
//! stretch per group, product, store and scaling after each other, gave 1.08: each waits for the one before.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::arch::asm;
use std::arch::x86_64::*;

use super::activations::{Activations, TILE as TOKENS};
use super::codes::{Factors, Loosely, unpack};
use super::format::{BLOCK, Format, ROWS};
use super::tiles::{Configuration, Registers};
use crate::kernels::prefetch;
use crate::simd::SimdLevel;

/// Elements of a tile along `k` at most.
const STEP_MAX: usize = 64;
/// How far ahead of its use a panel is asked for, in bytes: the processor's own guess comes too late.
const AHEAD: usize = 4096;
/// Bytes of a tile of sums.
const SUMS: usize = TOKENS * ROWS * 4;

/// A block's codes and scales, and the sums of two groups.
#[repr(align(64))]
pub(super) struct Block {
    codes: [u8; BLOCK * ROWS],
    sums: [[u8; 3 * SUMS]; 2],
    factors: Factors,
}

impl Block {
    pub(super) fn new() -> Box<Self> {
        Box::new(Block { codes: [0; BLOCK * ROWS], sums: [[0; 3 * SUMS]; 2], factors: Factors::new() })
    }
}

/// One panel with tiles of tokens.
pub(super) struct Product<'a> {
    pub(super) format: &'a Format,
    pub(super) panel: *const u8,
    pub(super) cols: usize,
    pub(super) x: &'a Activations<'a>,
}

/// Weights that are asked for ahead of their time, so many bytes at once.
struct Ahead {
    at: *const u8,
    bytes: usize,
}

impl Ahead {
    #[inline(always)]
    fn fetch(&mut self) {
        prefetch(self.at, self.bytes);
        self.at = self.at.wrapping_add(self.bytes);
    }
}

/// The tile registers for groups of this format and activations of two or three bytes: registers of a third byte's sums
/// hold the second byte of the tokens where there is no third.
pub(super) fn configuration(format: &Format, bytes: usize) -> Configuration {
    let step = format.group.min(STEP_MAX);
    let mut c = Configuration::new();
    for sums in 0..6 {
        c.set(sums, TOKENS, if sums % 3 < bytes { ROWS * 4 } else { step });
    }
    c.set(6, TOKENS, step);
    c.set(7, step / 4, ROWS * 4);
    c
}

impl Product<'_> {
    /// The sums of whole tiles of tokens, `[tokens][16]` from the first token on.
    ///
    /// # Safety
    /// The machine must have AVX-512 F, BW, VL, DQ and AMX; the registers must be configured for the format on this
    /// thread; the panel must be whole, and tokens must lie in tiles of sixteen.
    pub(super) unsafe fn run(&self, _: &Registers, block: &mut Block, out: &mut [[f32; ROWS]]) {
        out.fill([0.0; ROWS]);
        let mut at = self.panel;
        let tiles = out.len() / TOKENS;
        for start in (0..self.cols).step_by(BLOCK) {
            let len = BLOCK.min(self.cols - start);
            let bytes = self.format.block_bytes(len);
            // A little beside every group of every tile, since unpacking alone would wait for memory.
            let turns = len / self.format.group * tiles;
            let mut ahead =
                Ahead { at: at.wrapping_add(AHEAD), bytes: bytes.div_ceil(turns).next_multiple_of(64) };
            // SAFETY: as the caller promises: a panel is a sequence of blocks.
            unsafe {
                let to = Loosely { to: block.codes.as_mut_ptr(), apart: 1, as_words: false };
                unpack(SimdLevel::Amx, self.format, (at, len), (&mut block.factors, to));
                at = at.add(bytes);
                for (tile, out) in out.chunks_exact_mut(TOKENS).enumerate() {
                    let place = (tile * TOKENS, start, len);
                    match self.x.bytes {
                        2 => self.block::<2>(block, place, &mut ahead, out),
                        _ => self.block::<3>(block, place, &mut ahead, out),
                    }
                }
            }
        }
    }

    /// Three things at a time, each of another group, since each waits long for the one before: products in tiles,
    /// the way of sums from tiles to memory, and their scaling.
    ///
    /// # Safety
    /// As for [`Self::run`]; the block's codes are those of the elements from `start` on.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn block<const BYTES: usize>(
        &self,
        block: &mut Block,
        (token, start, len): (usize, usize, usize),
        ahead: &mut Ahead,
        out: &mut [[f32; ROWS]],
    ) {
        let (x, group) = (self.x, self.format.group);
        let (first, groups) = (start / group, len / group);
        let of_groups = x.sums(token, first);
        let mut limbs = x.limbs(token, first);
        let mut part = [_mm512_setzero_ps(); TOKENS];
        for turn in 0..groups + 2 {
            // SAFETY: the codes of a group and a tile of tokens are there, and room for the sums of three bytes.
            unsafe {
                if turn < groups {
                    ahead.fetch();
                    let codes = block.codes.as_ptr().add(turn * group * ROWS);
                    let tokens = (limbs, x.stride());
                    match turn % 2 {
                        0 => multiply_even::<BYTES>(tokens, group, codes),
                        _ => multiply_odd::<BYTES>(tokens, group, codes),
                    }
                    limbs = limbs.wrapping_add(BYTES * x.stride());
                }
                if (1..=groups).contains(&turn) {
                    match turn % 2 {
                        1 => store_even::<BYTES>(block.sums[0].as_mut_ptr()),
                        _ => store_odd::<BYTES>(block.sums[1].as_mut_ptr()),
                    }
                }
                if turn < 2 {
                    continue;
                }
                let (sums, g) = (block.sums[turn % 2].as_ptr(), turn - 2);
                let scale = _mm512_load_ps(block.factors.scales[g].as_ptr());
                let bias = _mm512_load_ps(block.factors.biases[g].as_ptr());
                for t in 0..TOKENS {
                    let mut dots = [_mm512_setzero_si512(); BYTES];
                    for byte in 0..BYTES {
                        dots[byte] = _mm512_load_si512(sums.add(byte * SUMS + t * ROWS * 4).cast());
                    }
                    let sum = _mm512_set1_ps(*of_groups.add(g * TOKENS + t));
                    part[t] = _mm512_fmadd_ps(joined(dots), scale, part[t]);
                    part[t] = _mm512_fmadd_ps(sum, bias, part[t]);
                }
            }
        }
        let scales = x.scales(token, start / BLOCK);
        for t in 0..TOKENS {
            // SAFETY: every token has a scale for each block; a row of the result is a vector.
            unsafe {
                let scale = _mm512_set1_ps(*scales.add(t));
                let total = _mm512_loadu_ps(out[t].as_ptr());
                _mm512_storeu_ps(out[t].as_mut_ptr(), _mm512_fmadd_ps(part[t], scale, total));
            }
        }
    }
}

/// A group of sixteen tokens with sixteen rows, once for each byte of the tokens, in the registers named first, and how
/// these sums get to memory.
macro_rules! products {
    ($multiply:ident, $store:ident, $c0:literal, $c1:literal, $c2:literal) => {
        /// # Safety
        /// The registers must be configured; tiles of `group` elements must be readable.
        #[inline(always)]
        unsafe fn $multiply<const BYTES: usize>(
            (limbs, stride): (*const i8, usize),
            group: usize,
            codes: *const u8,
        ) {
            // SAFETY: as the caller promises.
            unsafe {
                asm!(concat!("tilezero ", $c0), concat!("tilezero ", $c1), options(nostack, nomem));
                if BYTES == 3 {
                    asm!(concat!("tilezero ", $c2), options(nostack, nomem));
                }
                let mut k = 0;
                while k < group {
                    let (next, codes) = (limbs.add(stride + k), codes.add(k * ROWS));
                    if BYTES == 2 {
                        asm!(
                            "tileloadd tmm7, [{codes} + {line}]",
                            "tileloadd tmm6, [{limbs} + {group}]",
                            concat!("tileloadd ", $c2, ", [{next} + {group}]"),
                            concat!("tdpbsud ", $c0, ", tmm6, tmm7"),
                            concat!("tdpbsud ", $c1, ", ", $c2, ", tmm7"),
                            limbs = in(reg) limbs.add(k), next = in(reg) next,
                            codes = in(reg) codes, group = in(reg) group, line = in(reg) 64usize,
                            options(nostack, readonly),
                        );
                    } else {
                        asm!(
                            "tileloadd tmm7, [{codes} + {line}]",
                            "tileloadd tmm6, [{limbs} + {group}]",
                            concat!("tdpbsud ", $c0, ", tmm6, tmm7"),
                            "tileloadd tmm6, [{next} + {group}]",
                            concat!("tdpbsud ", $c1, ", tmm6, tmm7"),
                            "tileloadd tmm6, [{last} + {group}]",
                            concat!("tdpbsud ", $c2, ", tmm6, tmm7"),
                            limbs = in(reg) limbs.add(k), next = in(reg) next,
                            last = in(reg) limbs.add(2 * stride + k),
                            codes = in(reg) codes, group = in(reg) group, line = in(reg) 64usize,
                            options(nostack, readonly),
                        );
                    }
                    k += STEP_MAX;
                }
            }
        }

        /// # Safety
        /// The registers must be configured, and the sums of all bytes writable.
        #[inline(always)]
        unsafe fn $store<const BYTES: usize>(to: *mut u8) {
            // SAFETY: as the caller promises.
            unsafe {
                asm!(
                    concat!("tilestored [{to} + {line}], ", $c0),
                    concat!("tilestored [{to} + {line} + 1024], ", $c1),
                    to = in(reg) to, line = in(reg) 64usize, options(nostack),
                );
                if BYTES == 3 {
                    asm!(
                        concat!("tilestored [{to} + {line} + 2048], ", $c2),
                        to = in(reg) to, line = in(reg) 64usize, options(nostack),
                    );
                }
            }
        }
    };
}

products!(multiply_even, store_even, "tmm0", "tmm1", "tmm2");
products!(multiply_odd, store_odd, "tmm3", "tmm4", "tmm5");

/// The sums of a number's bytes as the sum of the number. Two bytes fit a whole number; the third is added as `f32`.
#[inline]
#[target_feature(enable = "avx512f")]
fn joined<const BYTES: usize>(dots: [__m512i; BYTES]) -> __m512 {
    let two = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(dots[0]), dots[1]));
    if BYTES == 2 {
        return two;
    }
    _mm512_fmadd_ps(two, _mm512_set1_ps(256.0), _mm512_cvtepi32_ps(dots[BYTES - 1]))
}
