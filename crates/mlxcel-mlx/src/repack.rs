//! Packed weights in the layouts that MLX's kernels read: codes in a stream of bits, a scale and a bias for each group of
//! 32, 64 or 128. Formats of that kind are repacked code for code; what the kernels cannot hold keeps its codes as bytes,
//! with a scale and perhaps a bias for each group, and is multiplied out in the step. Nothing is rounded.

use mlxcel_engine::weights::{WeightTensor, quant};
use mlxcel_ir::{DType, GgufFormat, QuantFormat};

/// How a weight is kept on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stored {
    Plain,
    /// For MLX's own kernels: codes, scales and, unless it is fp4, biases.
    Kernel(Kernel),
    /// Codes as bytes, scales and perhaps biases.
    Grouped {
        group: u16,
        has_bias: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) bits: u8,
    pub(crate) group: u16,
    pub(crate) fp4: bool,
}

/// One array of a weight.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Stored {
    /// How a weight of this type is kept.
    pub(crate) fn of(dtype: DType) -> Stored {
        let kernel = |bits, group| Stored::Kernel(Kernel { bits, group, fp4: false });
        let fp4 = Stored::Kernel(Kernel { bits: 4, group: 32, fp4: true });
        let DType::Quant(format) = dtype else { return Stored::Plain };
        match format {
            QuantFormat::Affine { bits, group, .. } if matches!(group, 32 | 64 | 128) => kernel(bits, group),
            QuantFormat::Affine { group, .. } => Stored::Grouped { group, has_bias: true },
            QuantFormat::MxFp4 | QuantFormat::Gguf(GgufFormat::MxFp4) => fp4,
            QuantFormat::Gguf(g) => match g {
                GgufFormat::Q4_0 | GgufFormat::Q4_1 | GgufFormat::Q4K => kernel(4, 32),
                GgufFormat::Q5_0 | GgufFormat::Q5_1 | GgufFormat::Q5K => kernel(5, 32),
                GgufFormat::Q2K => Stored::Grouped { group: 16, has_bias: true },
                GgufFormat::Q3K | GgufFormat::Q6K => Stored::Grouped { group: 16, has_bias: false },
                _ => kernel(8, 32),
            },
        }
    }

    /// Arrays that it takes.
    pub(crate) fn arrays(self) -> usize {
        match self {
            Stored::Plain => 1,
            Stored::Kernel(k) => 3 - usize::from(k.fp4),
            Stored::Grouped { has_bias, .. } => 2 + usize::from(has_bias),
        }
    }
}

/// The arrays of a packed weight.
pub(crate) fn repack(t: &WeightTensor) -> Vec<Part> {
    let DType::Quant(format) = t.dtype else {
        return vec![Part { dtype: t.dtype, shape: t.shape.clone(), bytes: t.parts[0].to_vec() }];
    };
    match format {
        QuantFormat::Affine { bits, group, scale } => affine(t, (bits, group), scale.dtype()),
        QuantFormat::MxFp4 => vec![
            part(DType::U32, &t.shape, 8, t.parts[0].to_vec()),
            part(DType::U8, &t.shape, 32, t.parts[1].to_vec()),
        ],
        QuantFormat::Gguf(GgufFormat::MxFp4) => gguf_fp4(t),
        QuantFormat::Gguf(g) => gguf(t, g),
    }
}

/// An array with one element for every `per` elements of the weight's last axis.
fn part(dtype: DType, shape: &[usize], per: usize, bytes: Vec<u8>) -> Part {
    let mut shape = shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last /= per;
    }
    Part { dtype, shape, bytes }
}

fn floats(shape: &[usize], group: usize, values: &[f32]) -> Part {
    part(DType::F32, shape, group, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

fn affine(t: &WeightTensor, (bits, group): (u8, u16), scale: DType) -> Vec<Part> {
    let scales = |i: usize| part(scale, &t.shape, group as usize, t.parts[i].to_vec());
    if let Stored::Kernel(_) = Stored::of(t.dtype) {
        let mut codes = part(DType::U32, &t.shape, 1, t.parts[0].to_vec());
        if let Some(last) = codes.shape.last_mut() {
            *last = *last * bits as usize / 32;
        }
        return vec![codes, scales(1), scales(2)];
    }
    let codes = unpack(&t.parts[0], bits, t.elements());
    let wide = |i: usize| {
        let plain = WeightTensor {
            dtype: scale,
            shape: vec![t.parts[i].len() / size(scale)],
            parts: vec![t.parts[i].clone()],
        };
        floats(&t.shape, group as usize, &plain.to_f32())
    };
    vec![part(DType::U8, &t.shape, 1, codes), wide(1), wide(2)]
}

fn size(dtype: DType) -> usize {
    dtype.size().expect("scales are plain")
}

/// A stream of codes of `bits` bits, little end first, as bytes.
fn unpack(stream: &[u8], bits: u8, count: usize) -> Vec<u8> {
    let bits = bits as usize;
    let code = |i: usize| {
        let at = i * bits;
        let pair = u16::from(stream[at / 8]) | u16::from(stream.get(at / 8 + 1).copied().unwrap_or(0)) << 8;
        (pair >> (at % 8) & ((1 << bits) - 1)) as u8
    };
    (0..count).map(code).collect()
}

/// Codes of a byte as a stream of `bits` bits each, little end first.
fn pack(codes: &[u8], bits: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(codes.len() * bits as usize / 8);
    let (mut held, mut count) = (0u32, 0u32);
    for &c in codes {
        held |= u32::from(c) << count;
        count += u32::from(bits);
        while count >= 8 {
            out.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    out
}

/// In a block the low nibbles are the first sixteen elements; the kernel reads neighbours from one byte.
fn gguf_fp4(t: &WeightTensor) -> Vec<Part> {
    let blocks = t.parts[0].chunks_exact(17);
    let codes = blocks.clone().flat_map(|b| {
        let code = move |i: usize| if i < 16 { b[1 + i] & 15 } else { b[1 + i - 16] >> 4 };
        (0..16).map(move |i| code(2 * i) | code(2 * i + 1) << 4)
    });
    let scales = blocks.clone().map(|b| b[0]);
    vec![part(DType::U32, &t.shape, 8, codes.collect()), part(DType::U8, &t.shape, 32, scales.collect())]
}

/// Codes with a scale and a bias for each group, as blocks are taken apart.
#[derive(Default)]
struct Groups {
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Groups {
    fn push(&mut self, scale: f32, bias: f32, codes: impl IntoIterator<Item = u8>) {
        self.scales.push(scale);
        self.biases.push(bias);
        self.codes.extend(codes);
    }
}

fn gguf(t: &WeightTensor, format: GgufFormat) -> Vec<Part> {
    let mut groups = Groups::default();
    let (len, bytes) = format.block();
    let mut decoded = vec![0.0; len];
    for block in t.parts[0].chunks_exact(bytes) {
        match format {
            GgufFormat::Q4_0 | GgufFormat::Q4_1 | GgufFormat::Q5_0 | GgufFormat::Q5_1 | GgufFormat::Q8_0 => {
                legacy(block, format, &mut groups);
            }
            GgufFormat::Q2K => q2_k(block, &mut groups),
            GgufFormat::Q3K => q3_k(block, &mut groups),
            GgufFormat::Q4K | GgufFormat::Q5K => q4_or_5_k(block, format, &mut groups),
            GgufFormat::Q6K => q6_k(block, &mut groups),
            _ => {
                quant::decode_gguf(format, block, &mut decoded);
                tables(block, format, &decoded, &mut groups);
            }
        }
    }
    let Groups { codes, scales, biases } = groups;
    match Stored::of(t.dtype) {
        Stored::Kernel(Kernel { bits, .. }) => {
            let mut stream = part(DType::U32, &t.shape, 1, pack(&codes, bits));
            if let Some(last) = stream.shape.last_mut() {
                *last = *last * bits as usize / 32;
            }
            vec![stream, floats(&t.shape, 32, &scales), floats(&t.shape, 32, &biases)]
        }
        Stored::Grouped { group, has_bias } => {
            let dtype = if has_bias { DType::U8 } else { DType::I8 };
            let mut parts = vec![part(dtype, &t.shape, 1, codes), floats(&t.shape, group as usize, &scales)];
            if has_bias {
                parts.push(floats(&t.shape, group as usize, &biases));
            }
            parts
        }
        Stored::Plain => unreachable!("the format is packed"),
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    quant::f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Blocks of 32 with one scale: low nibbles first, then high ones, the fifth bits in a word.
fn legacy(b: &[u8], format: GgufFormat, out: &mut Groups) {
    let d = half(b, 0);
    let nibbles = |from: usize| move |i: usize| if i < 16 { b[from + i] & 15 } else { b[from + i - 16] >> 4 };
    let fifth = |high: u32, i: usize| ((high >> i & 1) << 4) as u8;
    match format {
        GgufFormat::Q4_0 => out.push(d, -8.0 * d, (0..32).map(nibbles(2))),
        GgufFormat::Q4_1 => out.push(d, half(b, 2), (0..32).map(nibbles(4))),
        GgufFormat::Q5_0 => {
            let (high, low) = (word(b, 2), nibbles(6));
            out.push(d, -16.0 * d, (0..32).map(|i| low(i) | fifth(high, i)));
        }
        GgufFormat::Q5_1 => {
            let (high, low) = (word(b, 4), nibbles(8));
            out.push(d, half(b, 2), (0..32).map(|i| low(i) | fifth(high, i)));
        }
        _ => out.push(d, -128.0 * d, b[2..34].iter().map(|&c| c ^ 0x80)),
    }
}

/// Sixteen groups of sixteen: scale and minimum in a byte, two bits each in planes over 32 bytes.
fn q2_k(b: &[u8], out: &mut Groups) {
    let (d, min) = (half(b, 80), half(b, 82));
    for sub in 0..16 {
        let (packed, shift) = (b[sub], sub % 8 / 2 * 2);
        let from = 16 + sub / 8 * 32 + sub % 2 * 16;
        let codes = b[from..from + 16].iter().map(|c| c >> shift & 3);
        out.push(d * f32::from(packed & 15), -min * f32::from(packed >> 4), codes);
    }
}

/// As Q2_K with a third bit in planes of their own, which counts four; six-bit scales in two places.
fn q3_k(b: &[u8], out: &mut Groups) {
    let d = half(b, 108);
    let packed = &b[96..108];
    for sub in 0..16 {
        let low = packed[sub % 8] >> (sub / 8 * 4) & 15;
        let high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
        let scale = d * f32::from((low | high << 4) as i8 - 32);
        let (from, side, shift) = (32 + sub / 8 * 32 + sub % 2 * 16, sub % 2 * 16, sub % 8 / 2 * 2);
        let code =
            |i: usize| (b[from + i] >> shift & 3 | (b[side + i] >> (sub / 2) & 1) << 2).wrapping_sub(4);
        out.push(scale, 0.0, (0..16).map(code));
    }
}

/// Eight groups of 32 with six-bit scales and minima; the fifth bits of Q5_K in planes before the codes.
fn q4_or_5_k(b: &[u8], format: GgufFormat, out: &mut Groups) {
    let (d, min, packed) = (half(b, 0), half(b, 2), &b[4..16]);
    let codes_at = if format == GgufFormat::Q5K { 48 } else { 16 };
    for sub in 0..8 {
        let (scale, least) = match sub {
            0..4 => (packed[sub] & 63, packed[sub + 4] & 63),
            _ => {
                let tail = packed[sub + 4];
                (tail & 15 | packed[sub - 4] >> 6 << 4, tail >> 4 | packed[sub] >> 6 << 4)
            }
        };
        let (from, shift) = (codes_at + sub / 2 * 32, sub % 2 * 4);
        let fifth = |i: usize| if format == GgufFormat::Q5K { (b[16 + i] >> sub & 1) << 4 } else { 0 };
        let codes = (0..32).map(|i| b[from + i] >> shift & 15 | fifth(i));
        out.push(d * f32::from(scale), -min * f32::from(least), codes);
    }
}

/// Sixteen groups of sixteen with eight-bit scales: nibbles over 64 bytes, pairs of high bits over 32.
fn q6_k(b: &[u8], out: &mut Groups) {
    let d = half(b, 208);
    for sub in 0..16 {
        let (half_of, quarter, side) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
        let low = half_of * 64 + quarter % 2 * 32 + side;
        let high = 128 + half_of * 32 + side;
        let code = |i: usize| {
            (b[low + i] >> (quarter / 2 * 4) & 15 | (b[high + i] >> (quarter * 2) & 3) << 4).wrapping_sub(32)
        };
        out.push(d * f32::from(b[192 + sub] as i8), 0.0, (0..16).map(code));
    }
}

/// Formats whose codes are indices of tables: the numbers of the table fit a byte, and become the codes.
fn tables(b: &[u8], format: GgufFormat, decoded: &[f32], out: &mut Groups) {
    for (sub, values) in decoded.chunks_exact(32).enumerate() {
        let d = half(b, 0);
        let scale = match format {
            GgufFormat::Iq4Nl => d,
            GgufFormat::Iq4Xs => {
                let high = u16::from_le_bytes([b[2], b[3]]);
                let low = b[4 + sub / 2] >> (sub % 2 * 4) & 15;
                d * f32::from((low | ((high >> (sub * 2) & 3) << 4) as u8) as i8 - 32)
            }
            GgufFormat::Iq2Xxs => d * (0.5 + (word(b, 2 + sub * 8 + 4) >> 28) as f32) * 0.25,
            GgufFormat::Iq3Xxs => d * (0.5 + (word(b, 66 + sub * 4) >> 28) as f32) * 0.5,
            other => unreachable!("{other:?} has no table"),
        };
        let code = |v: &f32| if scale == 0.0 { 128 } else { ((v / scale).round() as i32 + 128) as u8 };
        out.push(scale, -128.0 * scale, values.iter().map(code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_packing_at_every_width() {
        for bits in [2u8, 3, 4, 5, 6, 8] {
            let codes: Vec<u8> = (0..96u32).map(|i| ((i * 37 + 11) % (1 << bits)) as u8).collect();
            assert_eq!(unpack(&pack(&codes, bits), bits, codes.len()), codes, "{bits} bits");
        }
    }
}
