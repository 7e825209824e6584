//! MLX affine formats: `scale * code + bias` per group, in that order and without fusing, so that every
//! engine that decodes first gets the same numbers. The codes of a row are one bit stream, lowest bits first.

use mlxcel_ir::ScaleType;

use super::plain::{bf16_to_f32, f16_to_f32};

/// Consecutive groups: their codes, and one scale and one bias for each.
pub(super) struct Groups<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) biases: &'a [u8],
}

pub(super) fn scale_bytes(scale: ScaleType) -> usize {
    if scale == ScaleType::F32 { 4 } else { 2 }
}

/// `out` holds as many whole groups as there are scales.
#[inline(always)]
pub(super) fn decode(bits: u8, scale: ScaleType, groups: Groups<'_>, out: &mut [f32]) {
    match scale {
        ScaleType::F16 => decode_scaled(bits, groups, |b| f16_to_f32(u16::from_le_bytes(b)), out),
        ScaleType::BF16 => decode_scaled(bits, groups, |b| bf16_to_f32(u16::from_le_bytes(b)), out),
        ScaleType::F32 => decode_scaled(bits, groups, f32::from_le_bytes, out),
    }
}

#[inline(always)]
fn decode_scaled<const N: usize>(
    bits: u8,
    groups: Groups<'_>,
    convert: impl Fn([u8; N]) -> f32,
    out: &mut [f32],
) {
    match bits {
        2 => decode_bits::<2, N>(groups, convert, out),
        3 => decode_bits::<3, N>(groups, convert, out),
        4 => decode_bits::<4, N>(groups, convert, out),
        5 => decode_bits::<5, N>(groups, convert, out),
        6 => decode_bits::<6, N>(groups, convert, out),
        8 => decode_bits::<8, N>(groups, convert, out),
        _ => panic!("affine codes of {bits} bits do not exist"),
    }
}

#[inline(always)]
fn decode_bits<const BITS: usize, const N: usize>(
    groups: Groups<'_>,
    convert: impl Fn([u8; N]) -> f32,
    out: &mut [f32],
) {
    let ((scales, _), (biases, _)) = (groups.scales.as_chunks::<N>(), groups.biases.as_chunks::<N>());
    let group = out.len() / scales.len().max(1);
    let code_bytes = group * BITS / 8;
    for (i, (&scale, &bias)) in scales.iter().zip(biases).enumerate() {
        let codes = &groups.codes[i * code_bytes..(i + 1) * code_bytes];
        let out = &mut out[i * group..(i + 1) * group];
        decode_group::<BITS>(codes, convert(scale), convert(bias), out);
    }
}

/// The widths that divide a byte are taken from it; the others from words.
#[inline(always)]
fn decode_group<const BITS: usize>(codes: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
    match BITS {
        2 => decode_bytes::<2, 4>(codes, scale, bias, out),
        4 => decode_bytes::<4, 2>(codes, scale, bias, out),
        8 => decode_bytes::<8, 1>(codes, scale, bias, out),
        _ => decode_words::<BITS>(codes, scale, bias, out),
    }
}

#[inline(always)]
fn decode_bytes<const BITS: usize, const PER_BYTE: usize>(
    codes: &[u8],
    scale: f32,
    bias: f32,
    out: &mut [f32],
) {
    let mask = ((1u32 << BITS) - 1) as u8;
    let (out, _) = out.as_chunks_mut::<PER_BYTE>();
    for (&byte, out) in codes.iter().zip(out) {
        *out = std::array::from_fn(|i| scale * (byte >> (i * BITS) & mask) as f32 + bias);
    }
}

/// Eight codes take `BITS` bytes. They are read as two words of four, which fit in 32 bits for every width, so that
/// one shift by a constant vector separates them.
#[inline(always)]
fn decode_words<const BITS: usize>(codes: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
    let mask = (1u32 << BITS) - 1;
    let (codes, _) = codes.as_chunks::<BITS>();
    let (out, _) = out.as_chunks_mut::<8>();
    for (eight, out) in codes.iter().zip(out) {
        let mut word = [0u8; 8];
        word[..BITS].copy_from_slice(eight);
        let word = u64::from_le_bytes(word);
        let halves = [word as u32, (word >> (4 * BITS)) as u32];
        for i in 0..8 {
            let code = halves[i / 4] >> (i % 4 * BITS) & mask;
            out[i] = scale * code as f32 + bias;
        }
    }
}
