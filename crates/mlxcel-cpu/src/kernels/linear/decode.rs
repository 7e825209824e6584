//! Fast decoding of the formats that checkpoints use most, a run of whole blocks at a time; the others go through the
//! weights crate, which defines all of them.
//!
//! Algorithm: the codes of a block are unpacked to bytes in fixed-size loops, widened a vector at a time, scaled and
//! shifted, unfused, so that the numbers are exactly those of the definition. Checked against it bit for bit.
#![allow(unsafe_code)]

use mlxcel_engine::weights::quant::f16_to_f32;
use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};

use crate::simd::Simd;

/// Calls a decoder for every block. A macro, since a function passed as an argument would be compiled without the
/// level's instructions.
macro_rules! each_block {
    ($bytes:expr, $out:expr, $size:literal, $len:literal, $decode:expr) => {{
        let (out, _) = $out.as_chunks_mut::<$len>();
        let (blocks, _) = $bytes.as_chunks::<$size>();
        for (block, out) in blocks[..out.len()].iter().zip(out) {
            $decode(block, out);
        }
    }};
}

/// Whole vectors of halves, and what is left over through a padded copy.
macro_rules! each_half {
    ($bytes:expr, $out:expr, $load:path) => {{
        let (bytes, out): (&[u8], &mut [f32]) = (&$bytes[..$out.len() * 2], $out);
        let whole = out.len() / S::LANES * S::LANES;
        let mut at = 0;
        while at < whole {
            // SAFETY: `at + LANES` halves and numbers are within both slices.
            unsafe { S::store(out.as_mut_ptr().add(at), $load(bytes.as_ptr().add(at * 2))) };
            at += S::LANES;
        }
        if whole < out.len() {
            let (mut from, mut to) = ([0u8; 32], [0.0; 16]);
            from[..(out.len() - whole) * 2].copy_from_slice(&bytes[whole * 2..]);
            // SAFETY: both arrays hold a whole vector of any level.
            unsafe { S::store(to.as_mut_ptr(), $load(from.as_ptr())) };
            let rest = out.len() - whole;
            out[whole..].copy_from_slice(&to[..rest]);
        }
    }};
}

/// Decodes `out.len()` elements from `start` on of the row whose arrays are `parts`; false if the format has no fast
/// way. Start and length are whole blocks.
#[inline(always)]
pub(crate) fn decode<S: Simd>(dtype: DType, parts: [&[u8]; 3], start: usize, out: &mut [f32]) -> bool {
    match dtype {
        DType::BF16 => each_half!(parts[0][start * 2..], out, S::from_bf16),
        DType::F16 => each_half!(parts[0][start * 2..], out, S::from_f16),
        DType::Quant(QuantFormat::Gguf(g)) => return gguf::<S>(g, parts[0], start, out),
        DType::Quant(QuantFormat::Affine { bits, group, scale }) => {
            return affine::<S>(Affine { bits, group: group as usize, scale }, parts, start, out);
        }
        DType::Quant(QuantFormat::MxFp4) => microscaled::<S>(parts, start, out),
        _ => return false,
    }
    true
}

/// `out = scale * code + shift` for unsigned codes.
#[inline(always)]
fn scale_shift<S: Simd>(codes: &[u8], scale: f32, shift: f32, out: &mut [f32]) {
    assert!(codes.len() == out.len() && codes.len().is_multiple_of(S::LANES), "whole vectors");
    let (scale, shift) = (S::splat(scale), S::splat(shift));
    let mut at = 0;
    while at < codes.len() {
        // SAFETY: a vector of codes and numbers lies within both slices.
        unsafe {
            let q = S::from_u8(codes.as_ptr().add(at));
            S::store(out.as_mut_ptr().add(at), S::add(S::mul(scale, q), shift));
        }
        at += S::LANES;
    }
}

/// `out = scale * code` for signed codes.
#[inline(always)]
fn scale_signed<S: Simd>(codes: &[u8], scale: f32, out: &mut [f32]) {
    assert!(codes.len() == out.len() && codes.len().is_multiple_of(S::LANES), "whole vectors");
    let scale = S::splat(scale);
    let mut at = 0;
    while at < codes.len() {
        // SAFETY: a vector of codes and numbers lies within both slices.
        unsafe { S::store(out.as_mut_ptr().add(at), S::mul(scale, S::from_i8(codes.as_ptr().add(at)))) };
        at += S::LANES;
    }
}

#[inline(always)]
fn field<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a whole block")
}

#[inline(always)]
fn half(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes(*field(bytes, at)))
}

/// `f` of every byte; the library's `map` of arrays is not always inlined.
#[inline(always)]
fn each<const N: usize>(mut bytes: [u8; N], f: impl Fn(u8) -> u8) -> [u8; N] {
    for byte in &mut bytes {
        *byte = f(*byte);
    }
    bytes
}

/// Low nibbles, then high ones.
#[inline(always)]
fn nibbles<const N: usize, const M: usize>(packed: &[u8; N]) -> [u8; M] {
    let mut codes = [0; M];
    for i in 0..N {
        codes[i] = packed[i] & 15;
        codes[N + i] = packed[i] >> 4;
    }
    codes
}

#[inline(always)]
fn gguf<S: Simd>(format: GgufFormat, bytes: &[u8], start: usize, out: &mut [f32]) -> bool {
    let (len, size) = format.block();
    let bytes = &bytes[start / len * size..];
    match format {
        GgufFormat::Q4_0 => each_block!(bytes, out, 18, 32, q4_0::<S>),
        GgufFormat::Q4_1 => each_block!(bytes, out, 20, 32, q4_1::<S>),
        GgufFormat::Q5_0 => each_block!(bytes, out, 22, 32, q5_0::<S>),
        GgufFormat::Q5_1 => each_block!(bytes, out, 24, 32, q5_1::<S>),
        GgufFormat::Q8_0 => each_block!(bytes, out, 34, 32, q8_0::<S>),
        GgufFormat::Q2K => each_block!(bytes, out, 84, 256, q2_k::<S>),
        GgufFormat::Q3K => each_block!(bytes, out, 110, 256, q3_k::<S>),
        GgufFormat::Q4K => each_block!(bytes, out, 144, 256, q4_k::<S>),
        GgufFormat::Q5K => each_block!(bytes, out, 176, 256, q5_k::<S>),
        GgufFormat::Q6K => each_block!(bytes, out, 210, 256, q6_k::<S>),
        GgufFormat::Iq4Nl => each_block!(bytes, out, 18, 32, iq4_nl::<S>),
        GgufFormat::Iq4Xs => each_block!(bytes, out, 136, 256, iq4_xs::<S>),
        GgufFormat::MxFp4 => each_block!(bytes, out, 17, 32, gguf_mxfp4::<S>),
        GgufFormat::Iq2Xxs | GgufFormat::Iq3Xxs => return false,
    }
    true
}

#[inline(always)]
fn q4_0<S: Simd>(block: &[u8; 18], out: &mut [f32; 32]) {
    let codes: [u8; 32] = nibbles::<16, 32>(field(block, 2));
    scale_signed::<S>(&each(codes, |c| c.wrapping_sub(8)), half(block, 0), out);
}

#[inline(always)]
fn q4_1<S: Simd>(block: &[u8; 20], out: &mut [f32; 32]) {
    scale_shift::<S>(&nibbles::<16, 32>(field(block, 4)), half(block, 0), half(block, 2), out);
}

/// The fifth bit of element `i` is bit `i` of the mask.
#[inline(always)]
fn five_bits(high: &[u8; 4], low: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(*high);
    let mut codes: [u8; 32] = nibbles::<16, 32>(low);
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((high >> i & 1) << 4) as u8;
    }
    codes
}

#[inline(always)]
fn q5_0<S: Simd>(block: &[u8; 22], out: &mut [f32; 32]) {
    let codes = five_bits(field(block, 2), field(block, 6));
    scale_signed::<S>(&each(codes, |c| c.wrapping_sub(16)), half(block, 0), out);
}

#[inline(always)]
fn q5_1<S: Simd>(block: &[u8; 24], out: &mut [f32; 32]) {
    scale_shift::<S>(&five_bits(field(block, 4), field(block, 8)), half(block, 0), half(block, 2), out);
}

#[inline(always)]
fn q8_0<S: Simd>(block: &[u8; 34], out: &mut [f32; 32]) {
    scale_signed::<S>(field::<32>(block, 2), half(block, 0), out);
}

#[inline(always)]
fn q2_k<S: Simd>(block: &[u8; 84], out: &mut [f32; 256]) {
    let scales: &[u8; 16] = field(block, 0);
    let (d, dmin) = (half(block, 80), half(block, 82));
    for sub in 0..16 {
        let (part, shift, side) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
        let codes = each(*field::<16>(block, 16 + part * 32 + side), |c| c >> shift & 3);
        let (scale, min) = (d * (scales[sub] & 15) as f32, dmin * (scales[sub] >> 4) as f32);
        scale_shift::<S>(&codes, scale, -min, &mut out[sub * 16..(sub + 1) * 16]);
    }
}

#[inline(always)]
fn q3_k<S: Simd>(block: &[u8; 110], out: &mut [f32; 256]) {
    let packed: &[u8; 12] = field(block, 96);
    let d = half(block, 108);
    for sub in 0..16 {
        let (part, shift, side) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
        let (high, low): (&[u8; 16], &[u8; 16]) = (field(block, side), field(block, 32 + part * 32 + side));
        let mut codes = [0u8; 16];
        for i in 0..16 {
            codes[i] = (low[i] >> shift & 3 | (high[i] >> (sub / 2) & 1) << 2).wrapping_sub(4);
        }
        let scale = packed[sub % 8] >> (sub / 8 * 4) & 15 | (packed[8 + sub % 4] >> (sub / 4 * 2) & 3) << 4;
        scale_signed::<S>(&codes, d * (scale as i8 - 32) as f32, &mut out[sub * 16..(sub + 1) * 16]);
    }
}

/// Scales and minima of the eight sub-blocks of Q4_K and Q5_K.
#[inline(always)]
fn k_scales(block: &[u8]) -> [(f32, f32); 8] {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let packed: &[u8; 12] = field(block, 4);
    let mut scales = [(0.0, 0.0); 8];
    for i in 0..4 {
        let (scale, min, tail) = (packed[i], packed[i + 4], packed[i + 8]);
        scales[i] = (d * (scale & 63) as f32, dmin * (min & 63) as f32);
        let (scale, min) = (tail & 15 | scale >> 6 << 4, tail >> 4 | min >> 6 << 4);
        scales[i + 4] = (d * scale as f32, dmin * min as f32);
    }
    scales
}

#[inline(always)]
fn q4_k<S: Simd>(block: &[u8; 144], out: &mut [f32; 256]) {
    let scales = k_scales(block);
    for pair in 0..4 {
        let codes: [u8; 64] = nibbles::<32, 64>(field(block, 16 + pair * 32));
        for side in 0..2 {
            let (scale, min) = scales[pair * 2 + side];
            let to = (pair * 2 + side) * 32;
            scale_shift::<S>(&codes[side * 32..(side + 1) * 32], scale, -min, &mut out[to..to + 32]);
        }
    }
}

#[inline(always)]
fn q5_k<S: Simd>(block: &[u8; 176], out: &mut [f32; 256]) {
    let scales = k_scales(block);
    let fifth: &[u8; 32] = field(block, 16);
    for (sub, &(scale, min)) in scales.iter().enumerate() {
        let low: &[u8; 32] = field(block, 48 + sub / 2 * 32);
        let mut codes = [0u8; 32];
        for i in 0..32 {
            codes[i] = low[i] >> (sub % 2 * 4) & 15 | (fifth[i] >> sub & 1) << 4;
        }
        scale_shift::<S>(&codes, scale, -min, &mut out[sub * 32..(sub + 1) * 32]);
    }
}

#[inline(always)]
fn q6_k<S: Simd>(block: &[u8; 210], out: &mut [f32; 256]) {
    let scales: &[u8; 16] = field(block, 192);
    let d = half(block, 208);
    for quarter in 0..8 {
        let (part, quarter) = (quarter / 4, quarter % 4);
        let low: &[u8; 32] = field(block, part * 64 + quarter % 2 * 32);
        let high: &[u8; 32] = field(block, 128 + part * 32);
        let mut codes = [0u8; 32];
        for i in 0..32 {
            let code = low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (quarter * 2) & 3) << 4;
            codes[i] = code.wrapping_sub(32);
        }
        for side in 0..2 {
            let sub = part * 8 + quarter * 2 + side;
            let scale = d * (scales[sub] as i8) as f32;
            scale_signed::<S>(&codes[side * 16..(side + 1) * 16], scale, &mut out[sub * 16..(sub + 1) * 16]);
        }
    }
}

/// The uneven steps of IQ4, as signed bytes.
const IQ4: [u8; 16] = {
    let steps: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = steps[i] as u8;
        i += 1;
    }
    bytes
};

/// Twice the values of E2M1 codes, as signed bytes.
const E2M1: [u8; 16] = {
    let magnitudes: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 8 {
        bytes[i] = magnitudes[i] as u8;
        bytes[i + 8] = -magnitudes[i] as u8;
        i += 1;
    }
    bytes
};

/// 32 codes through a table: low nibbles first.
#[inline(always)]
fn through<S: Simd>(table: &[u8; 16], packed: &[u8; 16], scale: f32, out: &mut [f32]) {
    let (low, high) = (S::lookup(table, *packed), S::lookup(table, each(*packed, |c| c >> 4)));
    scale_signed::<S>(&low, scale, &mut out[..16]);
    scale_signed::<S>(&high, scale, &mut out[16..32]);
}

#[inline(always)]
fn iq4_nl<S: Simd>(block: &[u8; 18], out: &mut [f32; 32]) {
    through::<S>(&IQ4, field(block, 2), half(block, 0), out);
}

#[inline(always)]
fn iq4_xs<S: Simd>(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let high = u16::from_le_bytes(*field(block, 2));
    for sub in 0..8 {
        let low = block[4 + sub / 2] >> (sub % 2 * 4) & 15;
        let scale = low | ((high >> (2 * sub) & 3) << 4) as u8;
        let scale = d * (scale as i8 - 32) as f32;
        through::<S>(&IQ4, field(block, 8 + sub * 16), scale, &mut out[sub * 32..(sub + 1) * 32]);
    }
}

/// Half of the power of two that a scale byte names.
#[inline(always)]
fn half_power(code: u8) -> f32 {
    f32::from_bits(if code < 2 { 0x0020_0000 << code } else { (code as u32 - 1) << 23 })
}

#[inline(always)]
fn gguf_mxfp4<S: Simd>(block: &[u8; 17], out: &mut [f32; 32]) {
    through::<S>(&E2M1, field(block, 1), half_power(block[0]), out);
}

/// MXFP4 in two arrays, nibbles in element order; a scale of all ones is NaN.
#[inline(always)]
fn microscaled<S: Simd>(parts: [&[u8]; 3], start: usize, out: &mut [f32]) {
    let (codes, _) = parts[0][start / 2..].as_chunks::<16>();
    let (out, _) = out.as_chunks_mut::<32>();
    for ((packed, &scale), out) in codes.iter().zip(&parts[1][start / 32..]).zip(out) {
        let (low, high) = (S::lookup(&E2M1, *packed), S::lookup(&E2M1, each(*packed, |c| c >> 4)));
        let scale = if scale == 0xff { f32::NAN } else { half_power(scale) };
        scale_signed::<S>(&interleaved(&low, &high), scale, out);
    }
}

#[inline(always)]
fn interleaved(low: &[u8; 16], high: &[u8; 16]) -> [u8; 32] {
    let mut codes = [0; 32];
    for i in 0..16 {
        codes[2 * i] = low[i];
        codes[2 * i + 1] = high[i];
    }
    codes
}

/// One affine format.
#[derive(Clone, Copy)]
struct Affine {
    bits: u8,
    group: usize,
    scale: ScaleType,
}

/// Groups of whole 32 codes of 2, 4 or 8 bits.
#[inline(always)]
fn affine<S: Simd>(format: Affine, parts: [&[u8]; 3], start: usize, out: &mut [f32]) -> bool {
    let Affine { bits, group, scale } = format;
    if !group.is_multiple_of(32) || !matches!(bits, 2 | 4 | 8) {
        return false;
    }
    let size = if scale == ScaleType::F32 { 4 } else { 2 };
    let number = |part: &[u8], i: usize| match scale {
        ScaleType::F32 => f32::from_le_bytes(*field(part, i * size)),
        ScaleType::F16 => half(part, i * size),
        ScaleType::BF16 => f32::from_bits((u16::from_le_bytes(*field(part, i * size)) as u32) << 16),
    };
    let mut codes = &parts[0][start * bits as usize / 8..];
    for (i, out) in out.chunks_exact_mut(group).enumerate() {
        let (scale, bias) = (number(parts[1], start / group + i), number(parts[2], start / group + i));
        for out in out.as_chunks_mut::<32>().0 {
            let unpacked = match bits {
                2 => {
                    let mut two = [0; 32];
                    for (i, &byte) in field::<8>(codes, 0).iter().enumerate() {
                        for j in 0..4 {
                            two[4 * i + j] = byte >> (2 * j) & 3;
                        }
                    }
                    two
                }
                4 => {
                    let packed: &[u8; 16] = field(codes, 0);
                    interleaved(&each(*packed, |c| c & 15), &each(*packed, |c| c >> 4))
                }
                _ => *field::<32>(codes, 0),
            };
            codes = &codes[4 * bits as usize..];
            scale_shift::<S>(&unpacked, scale, bias, out);
        }
    }
    true
}
