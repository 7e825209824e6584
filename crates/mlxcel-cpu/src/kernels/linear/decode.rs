//! Fast decoding of the formats that checkpoints use most, a run of whole blocks at a time; the others go through the
//! weights crate, which defines all of them.
//!
//! Algorithm: the codes of a block are unpacked to bytes in fixed-size loops, widened a vector at a time, scaled and
//! shifted, unfused, so that the numbers are exactly those of the definition. Each vector goes to a [`Sink`], which
//! stores it in a tile or multiplies it at once. Checked against the definition bit for bit.
#![allow(unsafe_code)]

use std::ops::Range;

use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};

use crate::simd::{LANES_MAX, Simd};

/// Where decoded vectors go. A trait and not a closure, which would be compiled without the level's instructions.
pub(crate) trait Sink<S: Simd> {
    /// The numbers from `at` on, counted from the start of the run.
    fn put(&mut self, at: usize, v: S::F);
}

/// Stores numbers in a row of a tile.
pub(crate) struct Store<'t>(pub(crate) &'t mut [f32]);

impl<S: Simd> Sink<S> for Store<'_> {
    #[inline(always)]
    fn put(&mut self, at: usize, v: S::F) {
        assert!(at + S::LANES <= self.0.len(), "a vector beyond the tile");
        // SAFETY: the vector lies within the row.
        unsafe { S::store(self.0.as_mut_ptr().add(at), v) };
    }
}

/// Calls a decoder for every block of a run. A macro, since a function passed as an argument would be compiled
/// without the level's instructions.
macro_rules! each_block {
    ($run:expr, $size:literal, $len:literal, $decode:expr, $sink:expr) => {{
        let (blocks, _) = $run.bytes.as_chunks::<$size>();
        for (i, block) in blocks[..$run.len / $len].iter().enumerate() {
            $decode(block, i * $len, $sink);
        }
    }};
}

/// Whole vectors of halves, and what is left over through a padded copy.
macro_rules! each_half {
    ($run:expr, $load:path, $sink:expr) => {{
        let bytes = &$run.bytes[..$run.len * 2];
        let whole = $run.len / S::LANES * S::LANES;
        let mut at = 0;
        while at < whole {
            // SAFETY: `at + LANES` halves are within the bytes.
            $sink.put(at, unsafe { $load(bytes.as_ptr().add(at * 2)) });
            at += S::LANES;
        }
        if whole < $run.len {
            let mut rest = [0u8; 2 * LANES_MAX];
            rest[..($run.len - whole) * 2].copy_from_slice(&bytes[whole * 2..]);
            // SAFETY: the array holds a whole vector of any level.
            $sink.put(whole, unsafe { $load(rest.as_ptr()) });
        }
    }};
}

/// Consecutive elements of a row: the bytes from the first of them on, and how many.
#[derive(Clone, Copy)]
struct Run<'a> {
    bytes: &'a [u8],
    len: usize,
}

/// Whether [`decode`] knows a type.
pub(crate) fn is_fast(dtype: DType) -> bool {
    match dtype {
        DType::BF16 | DType::F16 | DType::Quant(QuantFormat::MxFp4) => true,
        DType::Quant(QuantFormat::Gguf(g)) => !matches!(g, GgufFormat::Iq2Xxs | GgufFormat::Iq3Xxs),
        DType::Quant(QuantFormat::Affine { bits, group, .. }) => {
            group.is_multiple_of(32) && matches!(bits, 2 | 4 | 8)
        }
        _ => false,
    }
}

/// Decodes the elements `range` of the row whose arrays are `parts`, in whole blocks. The last vector of plain halves
/// is padded with zeros. Panics on types that are not fast.
#[inline(always)]
pub(crate) fn decode<S: Simd>(dtype: DType, parts: [&[u8]; 3], range: Range<usize>, sink: &mut impl Sink<S>) {
    let (start, len) = (range.start, range.len());
    match dtype {
        DType::BF16 => each_half!(Run { bytes: &parts[0][start * 2..], len }, S::from_bf16, sink),
        DType::F16 => each_half!(Run { bytes: &parts[0][start * 2..], len }, S::from_f16, sink),
        DType::Quant(QuantFormat::Gguf(g)) => {
            let (block, bytes) = g.block();
            gguf::<S>(g, Run { bytes: &parts[0][start / block * bytes..], len }, sink);
        }
        DType::Quant(QuantFormat::Affine { bits, group, scale }) => {
            affine::<S>(Affine { bits, group: group as usize, scale }, parts, range, sink);
        }
        DType::Quant(QuantFormat::MxFp4) => microscaled::<S>(parts, range, sink),
        other => unreachable!("{other} has no fast decoder"),
    }
}

/// `scale * code + shift` for unsigned codes in whole vectors.
#[inline(always)]
fn scale_shift<S: Simd>(codes: &[u8], (scale, shift): (f32, f32), at: usize, sink: &mut impl Sink<S>) {
    assert!(codes.len().is_multiple_of(S::LANES), "whole vectors");
    let (scale, shift) = (S::splat(scale), S::splat(shift));
    let mut i = 0;
    while i < codes.len() {
        // SAFETY: a vector of codes lies within the slice.
        let q = unsafe { S::from_u8(codes.as_ptr().add(i)) };
        sink.put(at + i, S::add(S::mul(scale, q), shift));
        i += S::LANES;
    }
}

/// `scale * code` for signed codes in whole vectors.
#[inline(always)]
fn scale_signed<S: Simd>(codes: &[u8], scale: f32, at: usize, sink: &mut impl Sink<S>) {
    assert!(codes.len().is_multiple_of(S::LANES), "whole vectors");
    let scale = S::splat(scale);
    let mut i = 0;
    while i < codes.len() {
        // SAFETY: a vector of codes lies within the slice.
        let q = unsafe { S::from_i8(codes.as_ptr().add(i)) };
        sink.put(at + i, S::mul(scale, q));
        i += S::LANES;
    }
}

#[inline(always)]
fn field<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a whole block")
}

#[inline(always)]
fn half<S: Simd>(bytes: &[u8], at: usize) -> f32 {
    S::half(u16::from_le_bytes(*field(bytes, at)))
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
fn gguf<S: Simd>(format: GgufFormat, run: Run<'_>, sink: &mut impl Sink<S>) {
    match format {
        GgufFormat::Q4_0 => each_block!(run, 18, 32, q4_0::<S>, sink),
        GgufFormat::Q4_1 => each_block!(run, 20, 32, q4_1::<S>, sink),
        GgufFormat::Q5_0 => each_block!(run, 22, 32, q5_0::<S>, sink),
        GgufFormat::Q5_1 => each_block!(run, 24, 32, q5_1::<S>, sink),
        GgufFormat::Q8_0 => each_block!(run, 34, 32, q8_0::<S>, sink),
        GgufFormat::Q2K => each_block!(run, 84, 256, q2_k::<S>, sink),
        GgufFormat::Q3K => each_block!(run, 110, 256, q3_k::<S>, sink),
        GgufFormat::Q4K => each_block!(run, 144, 256, q4_k::<S>, sink),
        GgufFormat::Q5K => each_block!(run, 176, 256, q5_k::<S>, sink),
        GgufFormat::Q6K => each_block!(run, 210, 256, q6_k::<S>, sink),
        GgufFormat::Iq4Nl => each_block!(run, 18, 32, iq4_nl::<S>, sink),
        GgufFormat::Iq4Xs => each_block!(run, 136, 256, iq4_xs::<S>, sink),
        GgufFormat::MxFp4 => each_block!(run, 17, 32, gguf_mxfp4::<S>, sink),
        GgufFormat::Iq2Xxs | GgufFormat::Iq3Xxs => unreachable!("has no fast decoder"),
    }
}

#[inline(always)]
fn q4_0<S: Simd>(block: &[u8; 18], at: usize, sink: &mut impl Sink<S>) {
    let codes: [u8; 32] = nibbles::<16, 32>(field(block, 2));
    scale_signed::<S>(&each(codes, |c| c.wrapping_sub(8)), half::<S>(block, 0), at, sink);
}

#[inline(always)]
fn q4_1<S: Simd>(block: &[u8; 20], at: usize, sink: &mut impl Sink<S>) {
    scale_shift::<S>(
        &nibbles::<16, 32>(field(block, 4)),
        (half::<S>(block, 0), half::<S>(block, 2)),
        at,
        sink,
    );
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
fn q5_0<S: Simd>(block: &[u8; 22], at: usize, sink: &mut impl Sink<S>) {
    let codes = five_bits(field(block, 2), field(block, 6));
    scale_signed::<S>(&each(codes, |c| c.wrapping_sub(16)), half::<S>(block, 0), at, sink);
}

#[inline(always)]
fn q5_1<S: Simd>(block: &[u8; 24], at: usize, sink: &mut impl Sink<S>) {
    let scales = (half::<S>(block, 0), half::<S>(block, 2));
    scale_shift::<S>(&five_bits(field(block, 4), field(block, 8)), scales, at, sink);
}

#[inline(always)]
fn q8_0<S: Simd>(block: &[u8; 34], at: usize, sink: &mut impl Sink<S>) {
    scale_signed::<S>(field::<32>(block, 2), half::<S>(block, 0), at, sink);
}

#[inline(always)]
fn q2_k<S: Simd>(block: &[u8; 84], at: usize, sink: &mut impl Sink<S>) {
    let scales: &[u8; 16] = field(block, 0);
    let (d, dmin) = (half::<S>(block, 80), half::<S>(block, 82));
    for (sub, &packed) in scales.iter().enumerate() {
        let (part, shift, side) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
        let codes = each(*field::<16>(block, 16 + part * 32 + side), |c| c >> shift & 3);
        let (scale, min) = (d * (packed & 15) as f32, dmin * (packed >> 4) as f32);
        scale_shift::<S>(&codes, (scale, -min), at + sub * 16, sink);
    }
}

#[inline(always)]
fn q3_k<S: Simd>(block: &[u8; 110], at: usize, sink: &mut impl Sink<S>) {
    let packed: &[u8; 12] = field(block, 96);
    let d = half::<S>(block, 108);
    for sub in 0..16 {
        let (part, shift, side) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
        let (high, low): (&[u8; 16], &[u8; 16]) = (field(block, side), field(block, 32 + part * 32 + side));
        let mut codes = [0u8; 16];
        for i in 0..16 {
            codes[i] = (low[i] >> shift & 3 | (high[i] >> (sub / 2) & 1) << 2).wrapping_sub(4);
        }
        let scale = packed[sub % 8] >> (sub / 8 * 4) & 15 | (packed[8 + sub % 4] >> (sub / 4 * 2) & 3) << 4;
        scale_signed::<S>(&codes, d * (scale as i8 - 32) as f32, at + sub * 16, sink);
    }
}

/// Scales and minima of the eight sub-blocks of Q4_K and Q5_K.
#[inline(always)]
fn k_scales<S: Simd>(block: &[u8]) -> [(f32, f32); 8] {
    let (d, dmin) = (half::<S>(block, 0), half::<S>(block, 2));
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
fn q4_k<S: Simd>(block: &[u8; 144], at: usize, sink: &mut impl Sink<S>) {
    let scales = k_scales::<S>(block);
    for pair in 0..4 {
        let codes: [u8; 64] = nibbles::<32, 64>(field(block, 16 + pair * 32));
        for side in 0..2 {
            let (scale, min) = scales[pair * 2 + side];
            let to = at + (pair * 2 + side) * 32;
            scale_shift::<S>(&codes[side * 32..(side + 1) * 32], (scale, -min), to, sink);
        }
    }
}

#[inline(always)]
fn q5_k<S: Simd>(block: &[u8; 176], at: usize, sink: &mut impl Sink<S>) {
    let scales = k_scales::<S>(block);
    let fifth: &[u8; 32] = field(block, 16);
    for (sub, &(scale, min)) in scales.iter().enumerate() {
        let low: &[u8; 32] = field(block, 48 + sub / 2 * 32);
        let mut codes = [0u8; 32];
        for i in 0..32 {
            codes[i] = low[i] >> (sub % 2 * 4) & 15 | (fifth[i] >> sub & 1) << 4;
        }
        scale_shift::<S>(&codes, (scale, -min), at + sub * 32, sink);
    }
}

#[inline(always)]
fn q6_k<S: Simd>(block: &[u8; 210], at: usize, sink: &mut impl Sink<S>) {
    let scales: &[u8; 16] = field(block, 192);
    let d = half::<S>(block, 208);
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
            scale_signed::<S>(&codes[side * 16..(side + 1) * 16], scale, at + sub * 16, sink);
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

/// 32 codes through a table of signed bytes: low nibbles, then high ones.
#[inline(always)]
fn through<S: Simd>(table: &[u8; 16], packed: &[u8; 16]) -> [[u8; 16]; 2] {
    [S::lookup(table, *packed), S::lookup(table, each(*packed, |c| c >> 4))]
}

#[inline(always)]
fn iq4_nl<S: Simd>(block: &[u8; 18], at: usize, sink: &mut impl Sink<S>) {
    let codes = through::<S>(&IQ4, field(block, 2));
    scale_signed::<S>(codes.as_flattened(), half::<S>(block, 0), at, sink);
}

#[inline(always)]
fn iq4_xs<S: Simd>(block: &[u8; 136], at: usize, sink: &mut impl Sink<S>) {
    let d = half::<S>(block, 0);
    let high = u16::from_le_bytes(*field(block, 2));
    for sub in 0..8 {
        let low = block[4 + sub / 2] >> (sub % 2 * 4) & 15;
        let scale = low | ((high >> (2 * sub) & 3) << 4) as u8;
        let scale = d * (scale as i8 - 32) as f32;
        let codes = through::<S>(&IQ4, field(block, 8 + sub * 16));
        scale_signed::<S>(codes.as_flattened(), scale, at + sub * 32, sink);
    }
}

/// Half of the power of two that a scale byte names.
#[inline(always)]
fn half_power(code: u8) -> f32 {
    f32::from_bits(if code < 2 { 0x0020_0000 << code } else { (code as u32 - 1) << 23 })
}

#[inline(always)]
fn gguf_mxfp4<S: Simd>(block: &[u8; 17], at: usize, sink: &mut impl Sink<S>) {
    let codes = through::<S>(&E2M1, field(block, 1));
    scale_signed::<S>(codes.as_flattened(), half_power(block[0]), at, sink);
}

/// MXFP4 in two arrays, nibbles in element order; a scale of all ones is NaN.
#[inline(always)]
fn microscaled<S: Simd>(parts: [&[u8]; 3], range: Range<usize>, sink: &mut impl Sink<S>) {
    let (codes, _) = parts[0][range.start / 2..range.end / 2].as_chunks::<16>();
    for (i, (packed, &scale)) in codes.iter().zip(&parts[1][range.start / 32..]).enumerate() {
        let [low, high] = through::<S>(&E2M1, packed);
        let scale = if scale == 0xff { f32::NAN } else { half_power(scale) };
        scale_signed::<S>(&interleaved(&low, &high), scale, i * 32, sink);
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
fn affine<S: Simd>(format: Affine, parts: [&[u8]; 3], range: Range<usize>, sink: &mut impl Sink<S>) {
    let Affine { bits, group, scale } = format;
    let (bits, size) = (bits as usize, if scale == ScaleType::F32 { 4 } else { 2 });
    let number = |part: &[u8], i: usize| match scale {
        ScaleType::F32 => f32::from_le_bytes(*field(part, i * size)),
        ScaleType::F16 => half::<S>(part, i * size),
        ScaleType::BF16 => f32::from_bits((u16::from_le_bytes(*field(part, i * size)) as u32) << 16),
    };
    let codes = &parts[0][range.start * bits / 8..range.end * bits / 8];
    for (i, codes) in codes.chunks_exact(group * bits / 8).enumerate() {
        let place = range.start / group + i;
        let scales = (number(parts[1], place), number(parts[2], place));
        for (j, packed) in codes.chunks_exact(4 * bits).enumerate() {
            let unpacked = match bits {
                2 => quarters(field(packed, 0)),
                4 => {
                    let packed: &[u8; 16] = field(packed, 0);
                    interleaved(&each(*packed, |c| c & 15), &each(*packed, |c| c >> 4))
                }
                _ => *field::<32>(packed, 0),
            };
            scale_shift::<S>(&unpacked, scales, i * group + j * 32, sink);
        }
    }
}

/// Four codes to a byte, lowest bits first.
#[inline(always)]
fn quarters(packed: &[u8; 8]) -> [u8; 32] {
    let mut codes = [0; 32];
    for (i, &byte) in packed.iter().enumerate() {
        for j in 0..4 {
            codes[4 * i + j] = byte >> (2 * j) & 3;
        }
    }
    codes
}
