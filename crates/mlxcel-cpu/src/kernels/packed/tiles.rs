//! Products of `bf16` matrices with AMX tiles.
//!
//! Algorithm: a tile of sixteen tokens is multiplied with a tile of sixteen rows, 32 elements at a time, summed in
//! `f32` inside the tile. Two tiles of either side are at hand, so four products share four loads. The two tiles of
//! tokens are neighbours, or the two halves of `f32` activations: the nearest `bf16` and the nearest one of what is
//! left, summed apart and added at the end. How far sums stay in their tiles is the caller's choice.
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

use super::format::ROWS;
use crate::kernels::linear::Halves;
use crate::view::Shared;

/// Tokens of a tile.
pub(crate) const TOKENS: usize = 16;
/// Elements of a tile along `k`.
pub(crate) const STEP: usize = 32;
/// Elements of a tile.
pub(super) const TILE: usize = TOKENS * STEP;
/// Bytes of a line of the caches, and places at which memory is asked for in turn, at most.
const LINE: usize = 64;
const PLACES: usize = 8;
/// Sums of two tiles of tokens with two panels.
pub(crate) const PAIR_SUMS: usize = 4 * TOKENS * ROWS;

/// The shapes of the tile registers.
#[repr(C, align(64))]
pub(crate) struct Configuration {
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

/// The registers as products of `bf16` use them: four of sums, two of tokens, with so many lines, and two of rows, all of
/// 64 bytes. A product takes as long as there are lines: with sixteen of them, fifteen of zeros, a single token is multiplied
/// no faster than rows come from memory, and while a neighbour uses the core slower.
pub(in crate::kernels) const fn of_lines(lines: usize) -> Configuration {
    let mut configuration = Configuration::new();
    let mut register = 0;
    while register < 8 {
        configuration.set(register, if register < 6 { lines } else { 16 }, 64);
        register += 1;
    }
    configuration
}

/// All registers full.
pub(crate) static WHOLE: Configuration = of_lines(TOKENS);

/// A thread's tile registers, configured while this lives.
pub(crate) struct Registers(());

impl Registers {
    /// # Safety
    /// The machine must have AMX, and the process the permission to use it.
    pub(crate) unsafe fn configure(configuration: &Configuration) -> Self {
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

/// Memory that is read soon: where it begins, at how many steps it is asked for, and how much of it each time: so many lines at
/// each of some places at equal distances. Memory that is read at several places in turn comes faster than in one.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    at: *const u8,
    steps: usize,
    lines: usize,
    places: usize,
    apart: usize,
}

impl Ahead {
    pub(crate) const NOTHING: Self = Ahead { at: std::ptr::null(), steps: 0, lines: 0, places: 0, apart: 0 };

    /// Some bytes in at most so many steps.
    pub(super) fn new(at: *const u8, bytes: usize, steps: usize) -> Self {
        let all = bytes.div_ceil(LINE);
        let each = all.div_ceil(steps);
        let places = each.clamp(1, PLACES);
        let lines = each.div_ceil(places);
        let steps = all.div_ceil(places * lines);
        Ahead { at, steps, lines, places, apart: steps * lines * LINE }
    }

    #[inline(always)]
    fn fetch(&mut self) {
        if self.steps == 0 {
            return;
        }
        self.steps -= 1;
        for place in 0..self.places {
            for line in 0..self.lines {
                // SAFETY: asking for an address is no access.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(self.at.wrapping_add(place * self.apart + line * LINE).cast())
                };
            }
        }
        self.at = self.at.wrapping_add(self.lines * LINE);
    }
}

/// How tiles come from the second-level cache to their registers: past the first-level one, with or without other instructions
/// between them, or through it, where they are asked for two steps before they are loaded. In a bare loop with the tokens of
/// a prompt from the third-level cache, four products with their loads take 40 ns past it and 48 through it where a core is ours
/// alone, but 110 and 90 while a neighbour works on its other half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    #[default]
    Past,
    Spaced,
    Through,
}

/// Instructions for tiles.
macro_rules! lines {
    ($($instruction:literal),+ $(,)?) => {
        concat!($($instruction, "\n"),+)
    };
}

/// Instructions for tiles with others between them that do nothing. While a neighbour works on the other half of a core,
/// four products with their loads take 91 ns that way and 132 without; else nothing is lost.
macro_rules! spaced {
    ($($instruction:literal),+ $(,)?) => {
        concat!($($instruction, "\n.rept 8\nnop\n.endr\n"),+)
    };
}

/// A step past the first-level cache: loads that leave it alone, of which four with their products take 37 ns instead of 41.
macro_rules! past {
    ($instructions:ident, $a:ident, $b0:ident, $b1:ident) => {
        asm!(
            $instructions!(
                "tileloaddt1 tmm4, [{a} + {s}]",
                "tileloaddt1 tmm6, [{b0} + {s}]",
                "tileloaddt1 tmm7, [{b1} + {s}]",
                "tileloaddt1 tmm5, [{a} + {s} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
            ),
            a = in(reg) $a, b0 = in(reg) $b0, b1 = in(reg) $b1,
            s = in(reg) 64usize, options(nostack, readonly),
        )
    };
}

/// Instructions with an eighth of what both sides have two steps later asked for behind each of them: four lines of tokens, and
/// four of rows.
macro_rules! asking {
    ($($instruction:literal, $tokens:literal, $side:literal, $rows:literal);+ $(;)?) => {
        concat!($(
            $instruction,
            "\n.irp line,0,64,128,192\nprefetcht0 [{a} + 4096 + ", $tokens,
            " + \\line]\nprefetcht0 [{", $side, "} + 2048 + ", $rows, " + \\line]\n.endr\n"
        ),+)
    };
}

/// Two panels of rows with a pair of tiles of tokens: `sums [2][2][16][16]` are set if they are `fresh`, else added to.
/// `aside` is called at every step: tiles leave the vector units idle.
///
/// # Safety
/// The registers must be configured on this thread; `tokens` and each of `rows` must point to `steps` of tiles, and
/// `sums` have room.
pub(crate) unsafe fn multiply(
    _: &Registers,
    (tokens, rows, steps): (*const u16, [*const u16; 2], usize),
    (sums, fresh): (*mut f32, bool),
    (way, mut ahead): (Way, [Ahead; 2]),
    mut aside: impl FnMut(),
) {
    // Plain variables, since arrays of them would stay in memory.
    let (mut a, [mut b0, mut b1]) = (tokens, rows);
    // SAFETY: as the caller promises.
    unsafe {
        if fresh {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        } else {
            asm!(
                "tileloadd tmm0, [{c} + {s}]",
                "tileloadd tmm1, [{c} + {s} + 1024]",
                "tileloadd tmm2, [{c} + {s} + 2048]",
                "tileloadd tmm3, [{c} + {s} + 3072]",
                c = in(reg) sums, s = in(reg) 64usize, options(nostack, readonly),
            );
        }
        for _ in 0..steps {
            match way {
                Way::Past => past!(lines, a, b0, b1),
                Way::Spaced => past!(spaced, a, b0, b1),
                Way::Through => asm!(
                    asking!(
                        "tileloadd tmm4, [{a} + {s}]", 0, "b0", 0;
                        "tileloadd tmm6, [{b0} + {s}]", 256, "b0", 256;
                        "tileloadd tmm7, [{b1} + {s}]", 512, "b0", 512;
                        "tileloadd tmm5, [{a} + {s} + 1024]", 768, "b0", 768;
                        "tdpbf16ps tmm0, tmm4, tmm6", 1024, "b1", 0;
                        "tdpbf16ps tmm1, tmm4, tmm7", 1280, "b1", 256;
                        "tdpbf16ps tmm2, tmm5, tmm6", 1536, "b1", 512;
                        "tdpbf16ps tmm3, tmm5, tmm7", 1792, "b1", 768;
                    ),
                    a = in(reg) a, b0 = in(reg) b0, b1 = in(reg) b1,
                    s = in(reg) 64usize, options(nostack, readonly),
                ),
            }
            (a, b0, b1) = (a.add(2 * TILE), b0.add(TILE), b1.add(TILE));
            ahead[0].fetch();
            ahead[1].fetch();
            aside();
        }
        asm!(
            "tilestored [{c} + {s}], tmm0",
            "tilestored [{c} + {s} + 1024], tmm1",
            "tilestored [{c} + {s} + 2048], tmm2",
            "tilestored [{c} + {s} + 3072], tmm3",
            c = in(reg) sums, s = in(reg) 64usize, options(nostack),
        );
    }
}

/// Up to four tiles of tokens, or only two, with a panel of rows. Tokens come past the first-level cache, where rows are and where
/// sums go: sixteen numbers for every token, one token behind the other.
///
/// # Safety
/// The registers must be configured as [`WHOLE`] on this thread; `tokens` must point to `steps` of four tiles, `rows` to as many
/// tiles, and there be room for the sums.
pub(in crate::kernels) unsafe fn multiply_near(
    _: &Registers,
    (tokens, rows, steps): (*const u16, *const u16, usize),
    (to, has_four): (*mut f32, bool),
) {
    let (mut a, mut b) = (tokens, rows);
    // SAFETY: as the caller promises.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        for _ in 0..steps {
            asm!(
                "tileloadd tmm4, [{b} + {s}]",
                "tileloaddt1 tmm5, [{a} + {s}]",
                "tileloaddt1 tmm6, [{a} + {s} + 1024]",
                "tdpbf16ps tmm0, tmm5, tmm4",
                "tdpbf16ps tmm1, tmm6, tmm4",
                a = in(reg) a, b = in(reg) b, s = in(reg) 64usize, options(nostack, readonly),
            );
            if has_four {
                asm!(
                    "tileloaddt1 tmm7, [{a} + {s} + 2048]",
                    "tileloaddt1 tmm5, [{a} + {s} + 3072]",
                    "tdpbf16ps tmm2, tmm7, tmm4",
                    "tdpbf16ps tmm3, tmm5, tmm4",
                    a = in(reg) a, s = in(reg) 64usize, options(nostack, readonly),
                );
            }
            (a, b) = (a.add(4 * TILE), b.add(TILE));
        }
        asm!(
            "tilestored [{c} + {s}], tmm0",
            "tilestored [{c} + {s} + 1024], tmm1",
            c = in(reg) to, s = in(reg) 64usize, options(nostack),
        );
        if has_four {
            asm!(
                "tilestored [{c} + {s} + 2048], tmm2",
                "tilestored [{c} + {s} + 3072], tmm3",
                c = in(reg) to, s = in(reg) 64usize, options(nostack),
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
    /// Whether the result is too large to be near still when it is read.
    pub(super) is_large: bool,
}

impl Lines<'_> {
    /// Writes them to `[tokens][n]` numbers at `to`. Lines of a large result go past the caches: to write there, a core
    /// would first read what they replace.
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
                    let at: *mut f32 = to.at((t * self.n + row) * 4).cast();
                    if self.is_large && mask == __mmask16::MAX && at.addr().is_multiple_of(64) {
                        _mm512_stream_ps(at, v);
                    } else {
                        _mm512_mask_storeu_ps(at, mask, v);
                    }
                }
            }
        }
        // Before anyone is told that they are written.
        _mm_sfence();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::SimdLevel;

    /// Whole numbers from -4 to 4 as `bf16`, whose products and sums are exact.
    fn numbers(count: usize, seed: usize) -> Vec<u16> {
        let number = |i: usize| ((i * 7919 + seed) % 31 % 9) as f32 - 4.0;
        (0..count).map(|i| (number(i).to_bits() >> 16) as u16).collect()
    }

    fn wide(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[test]
    fn products_are_the_same_whichever_way_tiles_come() {
        const STEPS: usize = 5;
        if !SimdLevel::Amx.is_available() {
            return;
        }
        let tokens = numbers(2 * STEPS * TILE, 3);
        let rows = [numbers(STEPS * TILE, 11), numbers(STEPS * TILE, 17)];
        // Of tokens [step][tile][16][32], of rows [step][16 pairs][16][2].
        let expected = |tile: usize, panel: usize, t: usize, r: usize| -> f32 {
            let element = |k: usize| {
                let (step, at) = (k / STEP, k % STEP);
                let x = tokens[((step * 2 + tile) * TOKENS + t) * STEP + at];
                let w = rows[panel][step * TILE + (at / 2 * ROWS + r) * 2 + at % 2];
                wide(x) * wide(w)
            };
            (0..STEPS * STEP).map(element).sum()
        };
        for way in [Way::Past, Way::Spaced, Way::Through] {
            let mut sums = vec![1.0; PAIR_SUMS];
            let mut steps = 0;
            for is_fresh in [true, false] {
                let factors = (tokens.as_ptr(), rows.each_ref().map(|rows| rows.as_ptr()), STEPS);
                // SAFETY: the machine has tiles; all tiles and the sums are there.
                unsafe {
                    let registers = Registers::configure(&WHOLE);
                    let to = (sums.as_mut_ptr(), is_fresh);
                    multiply(&registers, factors, to, (way, [Ahead::NOTHING; 2]), || steps += 1);
                }
            }
            assert_eq!(steps, 2 * STEPS);
            for (i, sum) in sums.iter().enumerate() {
                let (tile, panel) = (i / (2 * TOKENS * ROWS), i / (TOKENS * ROWS) % 2);
                let (t, r) = (i / ROWS % TOKENS, i % ROWS);
                assert_eq!(*sum, 2.0 * expected(tile, panel, t, r), "{way:?}: {tile} {panel} {t} {r}");
            }
        }
    }
}
