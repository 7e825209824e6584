//! K-quants of GGUF as codes with a scale and a bias for each group: what their super-blocks stand for, written out. The
//! scales become f32, so that nothing is lost; a weight takes a fifth more room than in its file, at most a half more.

use mlxcel_ir::GgufFormat;

/// Elements of a super-block.
const BLOCK: usize = 256;

/// A super-block: a code for each element, and scale and bias for each group of `group` elements.
pub(crate) struct Block {
    pub(crate) codes: [u8; BLOCK],
    pub(crate) scales: Vec<f32>,
    pub(crate) biases: Vec<f32>,
}

/// Bits of a code as it is kept, and elements of a group. `None` for other formats.
pub(crate) fn form(format: GgufFormat) -> Option<(usize, usize)> {
    Some(match format {
        GgufFormat::Q2K => (2, 16),
        GgufFormat::Q3K => (4, 16),
        GgufFormat::Q4K => (4, 32),
        GgufFormat::Q5K => (8, 32),
        GgufFormat::Q6K => (8, 16),
        _ => return None,
    })
}

/// Reads a super-block of one of the formats that have a form.
pub(crate) fn read(format: GgufFormat, block: &[u8]) -> Block {
    match format {
        GgufFormat::Q2K => q2(block),
        GgufFormat::Q3K => q3(block),
        GgufFormat::Q6K => q6(block),
        _ => q4_or_q5(block, format == GgufFormat::Q5K),
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    crate::pack::half(&block[at..at + 2])
}

/// 16 bytes of scale and minimum, 64 of codes, their common scales.
fn q2(block: &[u8]) -> Block {
    let (d, low) = (half(block, 80), half(block, 82));
    let code = |i: usize| block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    Block {
        codes: std::array::from_fn(code),
        scales: block[..16].iter().map(|s| d * f32::from(s & 15)).collect(),
        biases: block[..16].iter().map(|s| -(low * f32::from(s >> 4))).collect(),
    }
}

/// 32 bytes of third bits, 64 of the others, 12 of scales of six bits, the common scale.
fn q3(block: &[u8]) -> Block {
    let d = half(block, 108);
    let packed = &block[96..108];
    let scale = |i: usize| {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        d * (f32::from(low | high << 4) - 32.0)
    };
    let code = |i: usize| {
        let low = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        low | (block[i % 32] >> (i / 32) & 1) << 2
    };
    let scales: Vec<f32> = (0..16).map(scale).collect();
    let biases = scales.iter().map(|s| -4.0 * s).collect();
    Block { codes: std::array::from_fn(code), scales, biases }
}

/// The common scales, 12 bytes of scales and minima of six bits, for five bits 32 bytes of fifth ones, 128 of nibbles.
fn q4_or_q5(block: &[u8], has_fifth: bool) -> Block {
    let (d, low) = (half(block, 0), half(block, 2));
    let s = &block[4..16];
    let pair = |i: usize| match i {
        0..4 => (s[i] & 63, s[i + 4] & 63),
        _ => (s[i + 4] & 15 | s[i - 4] >> 6 << 4, s[i + 4] >> 4 | s[i] >> 6 << 4),
    };
    let nibbles = &block[if has_fifth { 48 } else { 16 }..];
    let code = |i: usize| {
        let nibble = nibbles[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
        let fifth = if has_fifth { block[16 + i % 32] >> (i / 32) & 1 } else { 0 };
        nibble | fifth << 4
    };
    Block {
        codes: std::array::from_fn(code),
        scales: (0..8).map(|i| d * f32::from(pair(i).0)).collect(),
        biases: (0..8).map(|i| -(low * f32::from(pair(i).1))).collect(),
    }
}

/// 128 bytes of nibbles, 64 of pairs of high bits, 16 scales with a sign, the common scale.
fn q6(block: &[u8]) -> Block {
    let d = half(block, 208);
    let code = |i: usize| {
        let (part, quarter, l) = (i / 128, i % 128 / 32, i % 32);
        let nibble = block[part * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        nibble | (block[128 + part * 32 + l] >> (quarter * 2) & 3) << 4
    };
    let scales: Vec<f32> = block[192..208].iter().map(|s| d * f32::from(*s as i8)).collect();
    let biases = scales.iter().map(|s| -32.0 * s).collect();
    Block { codes: std::array::from_fn(code), scales, biases }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use mlxcel_engine::weights::{Bytes, WeightTensor};
    use mlxcel_ir::{DType, QuantFormat};

    use super::*;

    /// The decoder of the weights crate, which is compared with gguf's own, says what blocks stand for.
    #[test]
    fn codes_scales_and_biases_are_the_numbers_of_the_blocks() {
        for format in [GgufFormat::Q2K, GgufFormat::Q3K, GgufFormat::Q4K, GgufFormat::Q5K, GgufFormat::Q6K] {
            let (_, size) = format.block();
            let mut seed = 12345u32;
            let mut byte = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            };
            let mut bytes: Vec<u8> = (0..size).map(|_| byte()).collect();
            // Common scales of a size that weights have: 0.01 and 0.02 as halves.
            let commons: &[usize] = match format {
                GgufFormat::Q2K => &[80, 82],
                GgufFormat::Q3K => &[108],
                GgufFormat::Q6K => &[208],
                _ => &[0, 2],
            };
            for (i, at) in commons.iter().enumerate() {
                bytes[*at..at + 2].copy_from_slice(&[0x211fu16, 0x251f][i].to_le_bytes());
            }
            let block = read(format, &bytes);
            let (bits, group) = form(format).unwrap();
            let dtype = DType::Quant(QuantFormat::Gguf(format));
            let tensor = WeightTensor { dtype, shape: vec![1, BLOCK], parts: vec![Bytes::copied(&[&bytes])] };
            for (i, expected) in tensor.to_f32().into_iter().enumerate() {
                assert!(u32::from(block.codes[i]) < 1 << bits, "{format:?} keeps {bits} bits");
                let got = block.scales[i / group] * f32::from(block.codes[i]) + block.biases[i / group];
                assert!((got - expected).abs() <= 1e-5, "{format:?} element {i}: {got}, not {expected}");
            }
        }
    }
}
