//! Microscaling FP4 (OCP MX specification 1.0): 32 codes of sign, two exponent bits and one mantissa bit, and
//! one power of two. Checkpoints keep codes and scales in two arrays; GGUF interleaves them and orders
//! nibbles as its other formats do.

use super::{Block, field};

/// The GGUF layout: the scale, then 16 bytes of nibbles, low ones first.
#[derive(Clone, Copy, Debug)]
pub struct GgufMxFp4;

impl Block for GgufMxFp4 {
    const LEN: usize = 32;
    const BYTES: usize = 17;

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = half_scale(block[0]);
        let codes: &[u8; 16] = field(block, 1);
        let out: &mut [f32; 32] = out.first_chunk_mut().expect("32 numbers");
        for i in 0..16 {
            out[i] = scale * e2m1_doubled(codes[i] & 15);
            out[i + 16] = scale * e2m1_doubled(codes[i] >> 4);
        }
    }
}

/// Codes two to a byte in the order of the elements, one scale for 32 of them.
#[inline(always)]
pub(super) fn decode(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    let (codes, _) = codes.as_chunks::<16>();
    let (out, _) = out.as_chunks_mut::<32>();
    for ((codes, &scale), out) in codes.iter().zip(scales).zip(out) {
        let scale = half_scale_or_nan(scale);
        for i in 0..16 {
            out[2 * i] = scale * e2m1_doubled(codes[i] & 15);
            out[2 * i + 1] = scale * e2m1_doubled(codes[i] >> 4);
        }
    }
}

/// Twice the value of a code: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. Codes from 2 on have the bits of
/// an `f32` in small.
#[inline(always)]
fn e2m1_doubled(code: u8) -> f32 {
    const REBIAS: u32 = (128 - 1) << 23;
    let magnitude = (code & 7) as u32;
    let small = (magnitude as f32).to_bits();
    let bits = if magnitude < 2 { small } else { (magnitude << 22) + REBIAS };
    f32::from_bits(bits | ((code & 8) as u32) << 28)
}

/// Half of `2^(code - 127)`, subnormal for the two smallest codes. GGUF gives all ones no special meaning.
#[inline(always)]
fn half_scale(code: u8) -> f32 {
    f32::from_bits(if code < 2 { 0x0020_0000 << code } else { (code as u32 - 1) << 23 })
}

/// As [`half_scale`], with the specification's NaN at all ones.
#[inline(always)]
fn half_scale_or_nan(code: u8) -> f32 {
    if code == 0xff { f32::NAN } else { half_scale(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_scales_are_those_of_the_specification() {
        let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (code, value) in (0..8).zip(values) {
            assert_eq!(e2m1_doubled(code) / 2.0, value);
            assert_eq!(e2m1_doubled(code + 8) / 2.0, -value);
        }
        for code in 0..=254 {
            assert_eq!(half_scale_or_nan(code) as f64 * 2.0, 2f64.powi(code as i32 - 127));
        }
        assert!(half_scale_or_nan(255).is_nan());
    }

    #[test]
    fn nibbles_are_in_element_order_low_one_first() {
        let mut codes = [0u8; 16];
        codes[0] = 0x72;
        codes[15] = 0xf0;
        let mut out = [9.0; 32];
        decode(&codes, &[128], &mut out);
        assert_eq!(out[..3], [2.0, 12.0, 0.0]);
        assert_eq!(out[30..], [0.0, -12.0]);
    }
}
