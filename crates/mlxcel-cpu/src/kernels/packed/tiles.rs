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
use std::ops::Range;

use mlxcel_engine::EngineError;

use super::format::ROWS;
use crate::context::Context;
use crate::memory::Scratch;
use crate::view::Shared;

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
        let to = Shared(base);
        let per_task = ctx.threads.lines_per_task(tiles * TOKENS, depth).next_multiple_of(TOKENS);
        ctx.threads.each((tiles * TOKENS).div_ceil(per_task), |task| {
            for line in task * per_task..((task + 1) * per_task).min(tiles * TOKENS) {
                let (tile, slot) = (line / TOKENS, line % TOKENS);
                let (token, half) = match halves {
                    Halves::One => (line, 0),
                    Halves::Two => (tile / 2 * TOKENS + slot, tile % 2),
                };
                let x = if token < tokens { (row(token), cols) } else { (std::ptr::null(), 0) };
                for start in (0..depth).step_by(STRETCH) {
                    // SAFETY: a stretch of a tile's line lies within the memory and is written by one task; the row
                    // has the elements.
                    unsafe {
                        let to = to.at(place(tiles, depth, tile, start / STEP) + slot * STEP);
                        convert(x, (start, STRETCH.min(depth - start)), half, to);
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

/// A stretch of one line of a tile: `len` numbers from `start` on, and zeros behind the end of the row. The second half
/// is what the first left.
///
/// # Safety
/// The row must have its numbers, and the line of every step of the stretch be writable, tile after tile from `to` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn convert((x, cols): (*const f32, usize), (start, len): (usize, usize), half: usize, to: *mut u16) {
    for at in (0..len).step_by(16) {
        let count = cols.saturating_sub(start + at).min(16);
        let mask = ((1u32 << count) - 1) as __mmask16;
        // SAFETY: masked-out lanes are not read; every step has a line of 32 places.
        unsafe {
            let v = _mm512_maskz_loadu_ps(mask, x.wrapping_add(start + at));
            let first: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(v));
            let bits = if half == 0 {
                first
            } else {
                let widened = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(first)));
                std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(_mm512_sub_ps(v, widened)))
            };
            _mm256_storeu_si256(to.add(at / STEP * TILE + at % STEP).cast(), bits);
        }
    }
}

/// Two panels of rows with some tiles of tokens: `sums [tiles][2][16][16]` are set, or added to if `k` is not at its start.
///
/// # Safety
/// The registers must be configured on this thread; `rows` must point to `len` elements of two panels in tiles, a
/// whole number of steps within one stretch from `start` on; `sums` must have room for all tiles.
pub(super) unsafe fn multiply(
    _: &Registers,
    (x, tiles): (&Tokens<'_>, Range<usize>),
    rows: [*const u16; 2],
    (start, len): (usize, usize),
    sums: *mut f32,
) {
    for tile in tiles.clone().step_by(2) {
        // Plain variables, since arrays of them would stay in memory.
        let (mut a0, mut a1) = (x.tile(tile, start / STEP), x.tile(tile + 1, start / STEP));
        let [mut b0, mut b1] = rows;
        // SAFETY: as the caller promises.
        unsafe {
            let c = sums.add((tile - tiles.start) * 2 * SUMS);
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
                    a0 = in(reg) a0, a1 = in(reg) a1, b0 = in(reg) b0, b1 = in(reg) b1,
                    s = in(reg) 64usize, options(nostack, readonly),
                );
                (a0, a1, b0, b1) = (a0.add(TILE), a1.add(TILE), b0.add(TILE), b1.add(TILE));
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

/// The sums of panels with all tokens, on their way to the result.
pub(super) struct Lines<'a> {
    /// `each` numbers for every pair of panels, as [`multiply`] leaves them.
    pub(super) sums: &'a [f32],
    pub(super) each: usize,
    pub(super) halves: Halves,
    pub(super) panels: Range<usize>,
    /// Rows of the result.
    pub(super) n: usize,
    pub(super) bias: Option<&'a [f32]>,
}

impl Lines<'_> {
    /// Writes them to `[tokens][n]` numbers at `to`.
    ///
    /// # Safety
    /// The machine must have AVX-512; the result must have the tokens, and nobody else write to these rows of it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn store(&self, tokens: usize, to: Shared<u8>) {
        for t in 0..tokens {
            for (i, panel) in self.panels.clone().enumerate() {
                let sums = &self.sums[i / 2 * self.each..(i / 2 + 1) * self.each];
                let row = panel * ROWS;
                let mask = (u32::MAX >> (32 - ROWS.min(self.n - row))) as __mmask16;
                // SAFETY: there are as many rows of result and bias as the mask has bits, and the caller promises
                // the rest.
                unsafe {
                    let mut v = self.line(sums, i % 2, t);
                    if let Some(bias) = self.bias {
                        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias.as_ptr().add(row)));
                    }
                    _mm512_mask_storeu_ps(to.at((t * self.n + row) * 4).cast(), mask, v);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn line(&self, of_pair: &[f32], panel: usize, token: usize) -> __m512 {
        let (tile, slot) = (token / TOKENS, token % TOKENS);
        let line = |tile: usize| {
            let line = &of_pair[((tile * 2 + panel) * TOKENS + slot) * ROWS..][..ROWS];
            // SAFETY: the line is a whole vector.
            unsafe { _mm512_loadu_ps(line.as_ptr()) }
        };
        match self.halves {
            Halves::One => line(tile),
            Halves::Two => _mm512_add_ps(line(2 * tile), line(2 * tile + 1)),
        }
    }
}

/// Numbers of sums for so many tiles of tokens and two panels.
pub(super) fn sums_len(tiles: usize) -> usize {
    tiles * 2 * SUMS
}
