//! Products of `bf16` matrices with AMX tiles.
//!
//! Algorithm: a tile of sixteen tokens is multiplied with a tile of sixteen rows, 32 elements at a time, summed in
//! `f32` inside the tile. Two tiles of either side are at hand, so four products share four loads. The two tiles of
//! tokens are neighbours, or the two halves of `f32` activations: the nearest `bf16` and the nearest one of what is
//! left, summed apart and added at the end. Rows are visited in stretches of [`STRETCH`] elements that stay in the
//! first-level cache while all tokens pass; sums wait in memory meanwhile.
//!
//! Layout: a tile of tokens is `[16][32]`; a tile of rows `[16 pairs of elements][16 rows][2]`, as the instruction
//! wants it.
//!
//! Batch invariance: a sum is one tile element that elements of `k` are added to in order, whatever the neighbours.
//!
//! Measured on one core (2.2 GHz): a bare loop over resident tiles 2.0 TFLOP/s; a product takes 7.3 ns, a load 3.5 ns
//! and a store 6.5 ns, of which products and stores do not overlap.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;

use mlxcel_engine::EngineError;

use super::format::ROWS;
use crate::context::Context;
use crate::memory::Scratch;

/// Tokens of a tile.
pub(super) const TOKENS: usize = 16;
/// Elements of a tile along `k`.
pub(super) const STEP: usize = 32;
/// Elements of `k` between two visits to memory.
pub(super) const STRETCH: usize = 256;
/// Elements of a tile.
const TILE: usize = TOKENS * STEP;
/// Sums of a tile.
const SUMS: usize = TOKENS * ROWS;

/// The shapes of the tile registers.
#[repr(C, align(64))]
pub(super) struct Configuration {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    pub(super) const fn new() -> Self {
        Configuration { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] }
    }

    /// At most sixteen rows of 64 bytes.
    pub(super) const fn set(&mut self, register: usize, rows: usize, row_bytes: usize) {
        self.rows[register] = rows as u8;
        self.row_bytes[register] = row_bytes as u16;
    }
}

/// The registers as products of `bf16` use them: all of them sixteen rows of 64 bytes.
pub(super) static WHOLE: Configuration = {
    let mut whole = Configuration::new();
    let mut register = 0;
    while register < 8 {
        whole.set(register, 16, 64);
        register += 1;
    }
    whole
};

/// A thread's tile registers, configured while this lives.
pub(super) struct Registers(());

impl Registers {
    /// # Safety
    /// The machine must have AMX, and the process the permission to use it.
    pub(super) unsafe fn configure(configuration: &Configuration) -> Self {
        // SAFETY: the configuration is valid and the features are promised.
        unsafe { asm!("ldtilecfg [{}]", in(reg) configuration, options(nostack, readonly)) };
        Registers(())
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: the registers were configured on this thread.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Activations in tiles: `[stretch][tile of tokens][step][16][32]`, padded with zeros to whole pairs of tiles.
pub(super) struct Tokens<'a> {
    base: *const u16,
    /// Tiles of tokens, a multiple of two. With halves, every other one holds what is left.
    pub(super) tiles: usize,
    /// Elements of `k`, whole steps.
    pub(super) depth: usize,
    _memory: Scratch<'a>,
}

// SAFETY: tokens are only read once they are made.
unsafe impl Sync for Tokens<'_> {}

impl<'a> Tokens<'a> {
    /// From rows of `f32`; in two halves unless they are `bf16` numbers anyway.
    ///
    /// # Safety
    /// The machine must have AVX-512 with `bf16`, and `row` give `cols` readable numbers for every token.
    pub(super) unsafe fn new(
        ctx: &'a Context,
        [tokens, cols]: [usize; 2],
        halves: Halves,
        row: impl Fn(usize) -> *const f32 + Sync,
    ) -> Result<Self, EngineError> {
        let depth = cols.next_multiple_of(STEP);
        let tiles = match halves {
            Halves::One => tokens.div_ceil(TOKENS).next_multiple_of(2),
            Halves::Two => 2 * tokens.div_ceil(TOKENS),
        };
        let bytes = tiles * TOKENS * depth * 2;
        let mut memory = ctx.pool.take(bytes)?;
        let base: *mut u16 = memory.buffer().ptr().cast();
        let to = crate::view::Shared(base);
        let per_task = ctx.threads.lines_per_task(tiles * TOKENS, depth).next_multiple_of(TOKENS);
        ctx.threads.each((tiles * TOKENS).div_ceil(per_task), |task| {
            for line in task * per_task..((task + 1) * per_task).min(tiles * TOKENS) {
                let (tile, slot) = (line / TOKENS, line % TOKENS);
                let (token, half) = match halves {
                    Halves::One => (line, 0),
                    Halves::Two => (tile / 2 * TOKENS + slot, tile % 2),
                };
                for step in 0..depth / STEP {
                    let from = step * STEP..((step + 1) * STEP).min(cols);
                    let from = if token < tokens { from } else { 0..0 };
                    // SAFETY: the place of a tile's line lies within the memory and is written by one task; the
                    // row has the elements.
                    unsafe {
                        let to = to.at(place(tiles, depth, tile, step) + slot * STEP);
                        let x = if from.is_empty() { std::ptr::null() } else { row(token).add(from.start) };
                        convert(x, from.len(), half, to);
                    }
                }
            }
        });
        Ok(Tokens { base, tiles, depth, _memory: memory })
    }

    fn tile(&self, tile: usize, step: usize) -> *const u16 {
        self.base.wrapping_add(place(self.tiles, self.depth, tile, step))
    }
}

/// How many `bf16` numbers stand for an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halves {
    One,
    Two,
}

/// Where the tile at a step of `k` begins, in elements: stretches outside, so that a stretch of a tile is one run.
fn place(tiles: usize, depth: usize, tile: usize, step: usize) -> usize {
    let stretch = step * STEP / STRETCH * STRETCH;
    let steps = STRETCH.min(depth - stretch) / STEP;
    stretch * TOKENS * tiles + (tile * steps + step % (STRETCH / STEP)) * TILE
}

/// One line of a tile: `len` numbers, then zeros. The second half is what the first left.
///
/// # Safety
/// `len` numbers must be readable at `x`, and 32 places writable at `to`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn convert(x: *const f32, len: usize, half: usize, to: *mut u16) {
    for side in 0..2 {
        let count = len.saturating_sub(side * 16).min(16);
        let mask = ((1u32 << count) - 1) as __mmask16;
        // SAFETY: masked-out lanes are not read; the line has 32 places.
        unsafe {
            let v = _mm512_maskz_loadu_ps(mask, x.wrapping_add(side * 16));
            let first: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(v));
            let bits = if half == 0 {
                first
            } else {
                let widened = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(first)));
                std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(_mm512_sub_ps(v, widened)))
            };
            _mm256_storeu_si256(to.add(side * 16).cast(), bits);
        }
    }
}

/// Two panels of rows with all tokens: `sums [tiles][2][16][16]` are set, or added to if `k` is not at its start.
///
/// # Safety
/// The registers must be configured on this thread; `rows` must point to `len` elements of two panels in tiles, a
/// whole number of steps within one stretch from `start` on; `sums` must have room for all tiles.
pub(super) unsafe fn multiply(
    _: &Registers,
    x: &Tokens<'_>,
    rows: [*const u16; 2],
    (start, len): (usize, usize),
    sums: *mut f32,
) {
    for tile in (0..x.tiles).step_by(2) {
        let mut a = [x.tile(tile, start / STEP), x.tile(tile + 1, start / STEP)];
        let mut b = rows;
        // SAFETY: as the caller promises.
        unsafe {
            let c = sums.add(tile * 2 * SUMS);
            if start == 0 {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nostack, nomem)
                );
            } else {
                asm!(
                    "tileloadd tmm0, [{c} + {s}]",
                    "tileloadd tmm1, [{c} + {s} + 1024]",
                    "tileloadd tmm2, [{c} + {s} + 2048]",
                    "tileloadd tmm3, [{c} + {s} + 3072]",
                    c = in(reg) c, s = in(reg) 64usize, options(nostack, readonly),
                );
            }
            for _ in 0..len / STEP {
                asm!(
                    "tileloadd tmm4, [{a0} + {s}]",
                    "tileloadd tmm6, [{b0} + {s}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b1} + {s}]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{a1} + {s}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    a0 = in(reg) a[0], a1 = in(reg) a[1], b0 = in(reg) b[0], b1 = in(reg) b[1],
                    s = in(reg) 64usize, options(nostack, readonly),
                );
                for p in a.iter_mut().chain(&mut b) {
                    *p = p.add(TILE);
                }
            }
            asm!(
                "tilestored [{c} + {s}], tmm0",
                "tilestored [{c} + {s} + 1024], tmm1",
                "tilestored [{c} + {s} + 2048], tmm2",
                "tilestored [{c} + {s} + 3072], tmm3",
                c = in(reg) c, s = in(reg) 64usize, options(nostack),
            );
        }
    }
}

/// The sums of a token with the rows of a panel, from what [`multiply`] left.
pub(super) fn sums(sums: &[f32], halves: Halves, panel: usize, token: usize) -> [f32; ROWS] {
    let (tile, slot) = (token / TOKENS, token % TOKENS);
    let line = |tile: usize| -> &[f32; ROWS] {
        sums[((tile * 2 + panel) * TOKENS + slot) * ROWS..].first_chunk().expect("a line of sums")
    };
    match halves {
        Halves::One => *line(tile),
        Halves::Two => {
            let (mut first, rest) = (*line(2 * tile), line(2 * tile + 1));
            for (a, b) in first.iter_mut().zip(rest) {
                *a += b;
            }
            first
        }
    }
}

/// Numbers of sums for so many tiles of tokens and two panels.
pub(super) fn sums_len(tiles: usize) -> usize {
    tiles * 2 * SUMS
}
