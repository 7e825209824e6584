//! Byte products of many tokens with AMX tiles: the same whole numbers as [`super::vnni`] and the same order of
//! everything after them, so a token has the same result in either.
//!
//! Algorithm: codes of a block are unpacked to bytes in the first-level cache. A tile of sixteen tokens is multiplied
//! with a group of sixteen rows, once for each byte of the activations; the sums leave the tiles at the end of the
//! group, since the next one has other scales, and are scaled and added in registers.
//!
//! Layout: a tile of tokens is `[16][group]` bytes, a tile of rows `[group / 4][16 rows][4]`; groups of more than 64
//! elements are several steps.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::arch::asm;
use std::arch::x86_64::*;

use super::activations::Activations;
use super::codes::{self, Factors};
use super::format::{BLOCK, Format, ROWS};
use super::tiles::{Configuration, Registers};
use super::vnni::joined;

/// Tokens of a tile.
pub(super) const TOKENS: usize = 16;
/// Elements of a tile along `k` at most.
const STEP_MAX: usize = 64;
/// Bytes of a tile of sums.
const SUMS: usize = TOKENS * ROWS * 4;

/// A block's codes and scales, and the sums of a group.
#[repr(align(64))]
pub(super) struct Block {
    codes: [u8; BLOCK * ROWS],
    sums: [u8; 3 * SUMS],
    factors: Factors,
}

impl Block {
    pub(super) fn new() -> Box<Self> {
        Box::new(Block { codes: [0; BLOCK * ROWS], sums: [0; 3 * SUMS], factors: Factors::new() })
    }
}

/// One panel with tiles of tokens.
pub(super) struct Product<'a> {
    pub(super) format: &'a Format,
    pub(super) panel: *const u8,
    pub(super) cols: usize,
    pub(super) x: &'a Activations<'a>,
}

/// The tile registers for groups of this format.
pub(super) fn configuration(format: &Format) -> Configuration {
    let step = format.group.min(STEP_MAX);
    let mut c = Configuration::new();
    for sums in 0..3 {
        c.set(sums, TOKENS, ROWS * 4);
    }
    for tokens in 3..6 {
        c.set(tokens, TOKENS, step);
    }
    c.set(6, step / 4, ROWS * 4);
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
        for start in (0..self.cols).step_by(BLOCK) {
            let len = BLOCK.min(self.cols - start);
            // SAFETY: as the caller promises: a panel is a sequence of blocks.
            unsafe {
                codes::unpack(self.format, at, len, (&mut block.factors, &mut block.codes));
                at = at.add(self.format.block_bytes(len));
                for (tile, out) in out.chunks_exact_mut(TOKENS).enumerate() {
                    let place = (tile * TOKENS, start, len);
                    match self.x.bytes {
                        2 => self.block::<2>(block, place, out),
                        _ => self.block::<3>(block, place, out),
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::run`]; the block's codes are those of the elements from `start` on.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn block<const BYTES: usize>(
        &self,
        block: &mut Block,
        (token, start, len): (usize, usize, usize),
        out: &mut [[f32; ROWS]],
    ) {
        let (x, group) = (self.x, self.format.group);
        let mut part = [_mm512_setzero_ps(); TOKENS];
        for g in 0..len / group {
            let number = start / group + g;
            let sums = block.sums.as_mut_ptr();
            // SAFETY: the codes of a group and a tile of tokens are there, and room for the sums of three bytes.
            unsafe {
                let codes = block.codes.as_ptr().add(g * group * ROWS);
                multiply::<BYTES>((x.limbs(token, number), x.stride()), group, codes, sums);
                let scale = _mm512_load_ps(block.factors.scales[g].as_ptr());
                let bias = _mm512_load_ps(block.factors.biases[g].as_ptr());
                for t in 0..TOKENS {
                    let mut dots = [_mm512_setzero_si512(); BYTES];
                    for byte in 0..BYTES {
                        dots[byte] = _mm512_load_si512(sums.add(byte * SUMS + t * ROWS * 4).cast());
                    }
                    let sum = _mm512_set1_ps(*x.sums(token + t, number));
                    part[t] = _mm512_fmadd_ps(joined(dots), scale, part[t]);
                    part[t] = _mm512_fmadd_ps(sum, bias, part[t]);
                }
            }
        }
        for t in 0..TOKENS {
            // SAFETY: every token has a scale for each block; a row of the result is a vector.
            unsafe {
                let scale = _mm512_set1_ps(*x.scales(token + t).add(start / BLOCK));
                let total = _mm512_loadu_ps(out[t].as_ptr());
                _mm512_storeu_ps(out[t].as_mut_ptr(), _mm512_fmadd_ps(part[t], scale, total));
            }
        }
    }
}

/// A group of sixteen tokens with sixteen rows, once for each byte of the tokens.
///
/// # Safety
/// The registers must be configured; tiles of `group` elements must be readable and the sums of all bytes writable.
#[inline(always)]
unsafe fn multiply<const BYTES: usize>(
    (limbs, stride): (*const i8, usize),
    group: usize,
    codes: *const u8,
    sums: *mut u8,
) {
    // SAFETY: as the caller promises.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
        if BYTES == 3 {
            asm!("tilezero tmm2", options(nostack, nomem));
        }
        let mut k = 0;
        while k < group {
            asm!(
                "tileloadd tmm6, [{codes} + {line}]",
                "tileloadd tmm3, [{limbs} + {group}]",
                "tdpbsud tmm0, tmm3, tmm6",
                "tileloadd tmm4, [{next} + {group}]",
                "tdpbsud tmm1, tmm4, tmm6",
                limbs = in(reg) limbs.add(k), next = in(reg) limbs.add(stride + k), group = in(reg) group,
                codes = in(reg) codes.add(k * ROWS), line = in(reg) 64usize, options(nostack, readonly),
            );
            if BYTES == 3 {
                asm!(
                    "tileloadd tmm5, [{limbs} + {group}]",
                    "tdpbsud tmm2, tmm5, tmm6",
                    limbs = in(reg) limbs.add(2 * stride + k), group = in(reg) group, options(nostack, readonly),
                );
            }
            k += STEP_MAX;
        }
        asm!(
            "tilestored [{to} + {line}], tmm0",
            "tilestored [{to} + {line} + 1024], tmm1",
            to = in(reg) sums, line = in(reg) 64usize, options(nostack),
        );
        if BYTES == 3 {
            asm!("tilestored [{to} + {line} + 2048], tmm2", to = in(reg) sums, line = in(reg) 64usize, options(nostack));
        }
    }
}
