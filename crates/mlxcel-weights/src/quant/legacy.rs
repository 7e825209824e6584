//! The GGUF formats with one scale per 32 elements. Nibble `i` of the low half is element `i`, of the high
//! half element `16 + i`; the fifth bits of Q5 lie in a 32-bit mask in the order of the elements.

use super::{Block, f16_field, field};

macro_rules! block {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $decode:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Block for $name {
            const LEN: usize = 32;
            const BYTES: usize = $bytes;

            #[inline(always)]
            fn decode(block: &[u8], out: &mut [f32]) {
                $decode(field(block, 0), out.first_chunk_mut().expect("32 numbers"));
            }
        }
    };
}

block!(
    /// `d * (q - 8)`, four bits.
    Q4_0, 18, q4_0
);
block!(
    /// `d * q + m`, four bits.
    Q4_1, 20, q4_1
);
block!(
    /// `d * (q - 16)`, five bits.
    Q5_0, 22, q5_0
);
block!(
    /// `d * q + m`, five bits.
    Q5_1, 24, q5_1
);
block!(
    /// `d * q`, eight signed bits.
    Q8_0, 34, q8_0
);

#[inline(always)]
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_field(block, 0);
    let codes: &[u8; 16] = field(block, 2);
    for i in 0..16 {
        out[i] = d * ((codes[i] & 15) as i8 - 8) as f32;
        out[i + 16] = d * ((codes[i] >> 4) as i8 - 8) as f32;
    }
}

#[inline(always)]
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_field(block, 0), f16_field(block, 2));
    let codes: &[u8; 16] = field(block, 4);
    for i in 0..16 {
        out[i] = d * (codes[i] & 15) as f32 + m;
        out[i + 16] = d * (codes[i] >> 4) as f32 + m;
    }
}

#[inline(always)]
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_field(block, 0);
    let codes = five_bits(field(block, 2), field(block, 6));
    for i in 0..32 {
        out[i] = d * (codes[i] as i8 - 16) as f32;
    }
}

#[inline(always)]
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_field(block, 0), f16_field(block, 2));
    let codes = five_bits(field(block, 4), field(block, 8));
    for i in 0..32 {
        out[i] = d * codes[i] as f32 + m;
    }
}

#[inline(always)]
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_field(block, 0);
    let codes: &[u8; 32] = field(block, 2);
    for i in 0..32 {
        out[i] = d * (codes[i] as i8) as f32;
    }
}

#[inline(always)]
fn five_bits(high: &[u8; 4], low: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(*high);
    let mut codes = [0; 32];
    for i in 0..16 {
        codes[i] = low[i] & 15 | ((high >> i & 1) << 4) as u8;
        codes[i + 16] = low[i] >> 4 | ((high >> (i + 16) & 1) << 4) as u8;
    }
    codes
}
