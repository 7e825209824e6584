//! The GGUF "K" formats: super-blocks of 256 elements whose 16 or 8 sub-blocks have small integer scales of
//! their own, themselves scaled by one or two halves.

use super::{Block, f16_field, field};

macro_rules! super_block {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $decode:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Block for $name {
            const LEN: usize = 256;
            const BYTES: usize = $bytes;

            #[inline(always)]
            fn decode(block: &[u8], out: &mut [f32]) {
                $decode(field(block, 0), out.first_chunk_mut().expect("256 numbers"));
            }
        }
    };
}

super_block!(
    /// Two bits, 16 sub-blocks with four-bit scale and minimum.
    Q2K, 84, q2_k
);
super_block!(
    /// Three bits, 16 sub-blocks with six-bit scale.
    Q3K, 110, q3_k
);
super_block!(
    /// Four bits, 8 sub-blocks with six-bit scale and minimum.
    Q4K, 144, q4_k
);
super_block!(
    /// Five bits, 8 sub-blocks with six-bit scale and minimum.
    Q5K, 176, q5_k
);
super_block!(
    /// Six bits, 16 sub-blocks with eight-bit scale.
    Q6K, 210, q6_k
);

/// Layout: 16 scales, 64 bytes of codes, d, dmin. Bits `2k` of the 32 bytes of a half are its `k`-th 32
/// elements.
#[inline(always)]
fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let scales: &[u8; 16] = field(block, 0);
    let (d, dmin) = (f16_field(block, 80), f16_field(block, 82));
    for (pair, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let codes: &[u8; 32] = field(block, 16 + pair / 4 * 32);
        let codes = codes.map(|c| c >> (pair % 4 * 2) & 3);
        for side in 0..2 {
            let packed = scales[pair * 2 + side];
            let (scale, min) = (d * (packed & 15) as f32, dmin * (packed >> 4) as f32);
            for i in side * 16..side * 16 + 16 {
                out[i] = scale * codes[i] as f32 - min;
            }
        }
    }
}

/// Layout: 32 bytes of high bits, 64 bytes of low bits as in Q2_K, 12 bytes of scales, d. Bit `k` of the 32
/// high bytes belongs to the `k`-th 32 elements, and means "no subtraction of four".
#[inline(always)]
fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let scales = q3_scales(field(block, 96));
    let d = f16_field(block, 108);
    for sub in 0..16 {
        let (half, shift, side) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
        let high: &[u8; 16] = field(block, side);
        let low: &[u8; 16] = field(block, 32 + half * 32 + side);
        let scale = d * scales[sub] as f32;
        for i in 0..16 {
            let code = low[i] >> shift & 3 | (high[i] >> (sub / 2) & 1) << 2;
            out[sub * 16 + i] = scale * (code as i8 - 4) as f32;
        }
    }
}

/// The low four bits of 16 scales lie in the nibbles of the first eight bytes, the high two in the last four.
#[inline(always)]
fn q3_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Layout: d, dmin, 12 bytes of scales, 128 bytes of codes. The low nibbles of 32 bytes are one sub-block,
/// the high ones the next.
#[inline(always)]
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scales, mins) = scales_and_mins(f16_field(block, 0), f16_field(block, 2), field(block, 4));
    for sub in 0..8 {
        let codes: &[u8; 32] = field(block, 16 + sub / 2 * 32);
        let shift = sub % 2 * 4;
        for i in 0..32 {
            out[sub * 32 + i] = scales[sub] * (codes[i] >> shift & 15) as f32 - mins[sub];
        }
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the codes: bit `k` of each belongs to sub-block `k`.
#[inline(always)]
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scales, mins) = scales_and_mins(f16_field(block, 0), f16_field(block, 2), field(block, 4));
    let fifth: &[u8; 32] = field(block, 16);
    for sub in 0..8 {
        let codes: &[u8; 32] = field(block, 48 + sub / 2 * 32);
        let shift = sub % 2 * 4;
        for i in 0..32 {
            let code = codes[i] >> shift & 15 | (fifth[i] >> sub & 1) << 4;
            out[sub * 32 + i] = scales[sub] * code as f32 - mins[sub];
        }
    }
}

/// Eight scales and eight minima of six bits: the first four of each in the low bits of the first eight
/// bytes, the last four as nibbles of the last four bytes with their top two bits on top of the first eight.
#[inline(always)]
fn scales_and_mins(d: f32, dmin: f32, packed: &[u8; 12]) -> ([f32; 8], [f32; 8]) {
    let (mut scales, mut mins) = ([0.0; 8], [0.0; 8]);
    for i in 0..4 {
        let (scale, min, tail) = (packed[i], packed[i + 4], packed[i + 8]);
        scales[i] = d * (scale & 63) as f32;
        mins[i] = dmin * (min & 63) as f32;
        scales[i + 4] = d * (tail & 15 | scale >> 6 << 4) as f32;
        mins[i + 4] = dmin * (tail >> 4 | min >> 6 << 4) as f32;
    }
    (scales, mins)
}

/// Layout: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 scales, d. In each half of 128 elements
/// the nibbles go low halves first, over 64 bytes; bits `2k` of its 32 high bytes belong to its `k`-th 32
/// elements.
#[inline(always)]
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scales: &[u8; 16] = field(block, 192);
    let d = f16_field(block, 208);
    for (pair, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (pair / 4, pair % 4);
        let low: &[u8; 32] = field(block, half * 64 + quarter % 2 * 32);
        let high: &[u8; 32] = field(block, 128 + half * 32);
        let mut codes = [0; 32];
        for i in 0..32 {
            codes[i] = (low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (quarter * 2) & 3) << 4) as i8 - 32;
        }
        for side in 0..2 {
            let scale = d * (scales[pair * 2 + side] as i8) as f32;
            for i in side * 16..side * 16 + 16 {
                out[i] = scale * codes[i] as f32;
            }
        }
    }
}
