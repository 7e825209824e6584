//! Packed weights as arrays of plain types: codes of 2, 4 or 8 bits from the low end of each byte, scales and biases.
//! Codes are moved, never changed; formats whose codes are no whole numbers with one scale per group are decoded. The
//! graph's side of it is [`crate::lower`].

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_ir::{DType, GgufFormat, HostTensor, QuantFormat};

use crate::lower::Packing;

/// What formats are decoded to that are not kept packed.
pub(crate) const DECODED: DType = DType::F32;

pub(crate) fn packing(dtype: DType) -> Option<Packing> {
    let DType::Quant(format) = dtype else { return None };
    let blocks = |bits, has_bias| Packing { bits, group: 32, scale: DType::F32, has_bias, is_float: false };
    Some(match format {
        QuantFormat::Affine { bits, group, scale } => {
            let bits = match bits {
                2 | 4 | 8 => bits as usize,
                3 => 4,
                _ => 8,
            };
            Packing { bits, group: group as usize, scale: scale.dtype(), has_bias: true, is_float: false }
        }
        QuantFormat::MxFp4 | QuantFormat::Gguf(GgufFormat::MxFp4) => {
            Packing { is_float: true, ..blocks(4, false) }
        }
        QuantFormat::Gguf(GgufFormat::Q4_0 | GgufFormat::Q4_1) => blocks(4, true),
        QuantFormat::Gguf(GgufFormat::Q5_0 | GgufFormat::Q5_1 | GgufFormat::Q8_0) => blocks(8, true),
        QuantFormat::Gguf(_) => return None,
    })
}

/// The arrays of the pieces of a weight, in the order of [`Packing::arrays`], or the decoded numbers.
pub(crate) fn arrays(dtype: DType, pieces: &[WeightTensor]) -> Vec<Bytes> {
    let Some(packing) = packing(dtype) else {
        let numbers: Vec<f32> = pieces.iter().flat_map(WeightTensor::to_f32).collect();
        return vec![Bytes::copied(&[HostTensor::new(&[numbers.len()], &numbers).bytes()])];
    };
    let DType::Quant(format) = dtype else { unreachable!("only packed types have a packing") };
    let each: Vec<Vec<Vec<u8>>> = pieces.iter().map(|p| piece(format, &packing, p)).collect();
    let count = if packing.has_bias { 3 } else { 2 };
    (0..count)
        .map(|i| Bytes::copied(&each.iter().map(|arrays| arrays[i].as_slice()).collect::<Vec<_>>()))
        .collect()
}

fn piece(format: QuantFormat, packing: &Packing, t: &WeightTensor) -> Vec<Vec<u8>> {
    match format {
        QuantFormat::Affine { bits, .. } => {
            let codes = if bits as usize == packing.bits {
                t.parts[0].to_vec()
            } else {
                let row = t.shape.last().copied().unwrap_or(1) * bits as usize / 8;
                t.parts[0].chunks_exact(row).flat_map(|r| widen(r, bits as usize, packing.bits)).collect()
            };
            vec![codes, t.parts[1].to_vec(), t.parts[2].to_vec()]
        }
        QuantFormat::MxFp4 => vec![t.parts[0].to_vec(), exponents(&t.parts[1])],
        QuantFormat::Gguf(g) => blocks(g, &t.parts[0]),
    }
}

/// A stream of codes of `bits` bits as codes of 4 or 8.
fn widen(row: &[u8], bits: usize, to: usize) -> Vec<u8> {
    let codes = row.len() * 8 / bits;
    let code = |i: usize| {
        let at = i * bits;
        let low = u32::from(row[at / 8]);
        let high = row.get(at / 8 + 1).map_or(0, |b| u32::from(*b) << 8);
        ((low | high) >> (at % 8) & ((1 << bits) - 1)) as u8
    };
    match to {
        8 => (0..codes).map(code).collect(),
        _ => (0..codes / 2).map(|i| code(2 * i) | code(2 * i + 1) << 4).collect(),
    }
}

/// Powers of two by their biased exponents, as f32.
fn exponents(scales: &[u8]) -> Vec<u8> {
    scales.iter().flat_map(|&e| 2f32.powi(i32::from(e) - 127).to_le_bytes()).collect()
}

fn half(bytes: &[u8]) -> f32 {
    let t = HostTensor::from_bytes(DType::F16, vec![], bytes.to_vec());
    t.expect("a half has two bytes").to_f64()[0] as f32
}

/// Blocks of 32 elements of the older formats of GGUF.
fn blocks(format: GgufFormat, bytes: &[u8]) -> Vec<Vec<u8>> {
    let (_, size) = format.block();
    let (mut codes, mut scales, mut biases) = (vec![], vec![], vec![]);
    for block in bytes.chunks_exact(size) {
        let (scale, bias) = match format {
            GgufFormat::Q4_0 => (half(&block[..2]), -8.0 * half(&block[..2])),
            GgufFormat::Q5_0 => (half(&block[..2]), -16.0 * half(&block[..2])),
            GgufFormat::Q8_0 => (half(&block[..2]), -128.0 * half(&block[..2])),
            GgufFormat::MxFp4 => (2f32.powi(i32::from(block[0]) - 127), 0.0),
            _ => (half(&block[..2]), half(&block[2..4])),
        };
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
        match format {
            GgufFormat::Q4_0 | GgufFormat::Q4_1 | GgufFormat::MxFp4 => {
                codes.extend(pairs(&block[size - 16..]))
            }
            GgufFormat::Q8_0 => codes.extend(block[2..].iter().map(|c| c ^ 0x80)),
            _ => codes.extend(five_bits(&block[size - 20..size - 16], &block[size - 16..])),
        }
    }
    vec![codes, scales, biases]
}

/// Nibbles of the first and the second half of a block, as neighbours in a byte.
fn pairs(nibbles: &[u8]) -> Vec<u8> {
    let low = nibbles.as_chunks::<2>().0.iter().map(|[a, b]| a & 15 | b << 4);
    let high = nibbles.as_chunks::<2>().0.iter().map(|[a, b]| a >> 4 | b & 0xf0);
    low.chain(high).collect()
}

/// Nibbles with a fifth bit of their own.
fn five_bits(high: &[u8], nibbles: &[u8]) -> Vec<u8> {
    let fifth = u32::from_le_bytes(high.try_into().expect("a block has four bytes of fifth bits"));
    let code = |i: usize| {
        let nibble = if i < 16 { nibbles[i] & 15 } else { nibbles[i - 16] >> 4 };
        nibble | ((fifth >> i & 1) as u8) << 4
    };
    (0..32).map(code).collect()
}
