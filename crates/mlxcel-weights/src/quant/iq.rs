//! The GGUF formats with tables: IQ4 codes index sixteen uneven steps; IQ2 and IQ3 codes index a table of
//! whole groups of magnitudes, with the signs beside them.

use super::iq_tables::{IQ2_XXS_GRID, IQ3_XXS_GRID};
use super::{Block, f16_field, field};

/// Four bits, 32 elements, the uneven steps below.
#[derive(Clone, Copy, Debug)]
pub struct Iq4Nl;

/// Four bits, 256 elements, eight sub-blocks with six-bit scale.
#[derive(Clone, Copy, Debug)]
pub struct Iq4Xs;

/// Two bits and a sixteenth: eight magnitudes to a byte.
#[derive(Clone, Copy, Debug)]
pub struct Iq2Xxs;

/// Three bits and a sixteenth: four magnitudes to a byte.
#[derive(Clone, Copy, Debug)]
pub struct Iq3Xxs;

const STEPS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Signs come seven to a field; the eighth makes the number of negative ones even.
static SIGNS: [[f32; 8]; 128] = {
    let mut table = [[1.0; 8]; 128];
    let mut index = 0u32;
    while index < 128 {
        let bits = index | (index.count_ones() & 1) << 7;
        let mut i = 0;
        while i < 8 {
            if bits >> i & 1 == 1 {
                table[index as usize][i] = -1.0;
            }
            i += 1;
        }
        index += 1;
    }
    table
};

impl Block for Iq4Nl {
    const LEN: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        steps(f16_field(block, 0), field(block, 2), out.first_chunk_mut().expect("32 numbers"));
    }
}

impl Block for Iq4Xs {
    const LEN: usize = 256;
    const BYTES: usize = 136;

    /// Layout: d, high bit pairs of the scales, their low nibbles in four bytes, 128 bytes of codes.
    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_field(block, 0);
        let high = u16::from_le_bytes(*field(block, 2));
        let (out, _) = out.as_chunks_mut::<32>();
        for (sub, out) in out.iter_mut().enumerate().take(8) {
            let low = block[4 + sub / 2] >> (sub % 2 * 4) & 15;
            let scale = (low | ((high >> (sub * 2) & 3) << 4) as u8) as i8 - 32;
            steps(d * scale as f32, field(block, 8 + sub * 16), out);
        }
    }
}

#[inline(always)]
fn steps(scale: f32, codes: &[u8; 16], out: &mut [f32; 32]) {
    for i in 0..16 {
        out[i] = scale * STEPS[(codes[i] & 15) as usize];
        out[i + 16] = scale * STEPS[(codes[i] >> 4) as usize];
    }
}

impl Block for Iq2Xxs {
    const LEN: usize = 256;
    const BYTES: usize = 66;

    /// Layout: d, then for each 32 elements four table indices and a word with four sign fields and a scale
    /// on top.
    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_field(block, 0);
        let (out, _) = out.as_chunks_mut::<8>();
        for sub in 0..8 {
            let indices: &[u8; 4] = field(block, 2 + sub * 8);
            let word = u32::from_le_bytes(*field(block, 6 + sub * 8));
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (i, &index) in indices.iter().enumerate() {
                let signs = &SIGNS[(word >> (i * 7) & 127) as usize];
                signed(scale, &IQ2_XXS_GRID[index as usize], signs, &mut out[sub * 4 + i]);
            }
        }
    }
}

impl Block for Iq3Xxs {
    const LEN: usize = 256;
    const BYTES: usize = 98;

    /// Layout: d, 64 table indices, then for each 32 elements a word as in IQ2_XXS.
    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = f16_field(block, 0);
        let (indices, _) = field::<64>(block, 2).as_chunks::<2>();
        let (out, _) = out.as_chunks_mut::<8>();
        for sub in 0..8 {
            let word = u32::from_le_bytes(*field(block, 66 + sub * 4));
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            for i in 0..4 {
                let [low, high] = indices[sub * 4 + i].map(|index| IQ3_XXS_GRID[index as usize]);
                let grid = [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]];
                let signs = &SIGNS[(word >> (i * 7) & 127) as usize];
                signed(scale, &grid, signs, &mut out[sub * 4 + i]);
            }
        }
    }
}

#[inline(always)]
fn signed(scale: f32, grid: &[u8; 8], signs: &[f32; 8], out: &mut [f32; 8]) {
    for i in 0..8 {
        out[i] = scale * grid[i] as f32 * signs[i];
    }
}
