//! From rows of a checkpoint to panels, once, at load. Codes and scales keep their exact values; only their places
//! change.
//!
//! A panel holds [`ROWS`] rows, block after block along the row. A block begins with its scales, an array of one
//! number for each row for each group, and ends with its codes in units of [`UNIT`] elements: four vectors of bytes
//! whose byte `4 * row + i` belongs to element `4 * vector + i`, squeezed to the width of the codes.
//!
//! Everything is inlined into one function that is compiled for the level that reads panels: at every start a whole
//! model goes through here.

use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};

use super::format::{BLOCK, Codes, Format, GROUPS, ROWS, Scales, UNIT};

/// One block of one row, taken apart.
pub(super) struct Loose {
    pub(super) codes: [u8; BLOCK],
    /// Scales as they are stored: up to four bytes each.
    pub(super) scales: [[u8; 4]; GROUPS],
    pub(super) biases: [[u8; 4]; GROUPS],
    /// The scale and the minimum of the whole block, where groups have factors of them.
    pub(super) whole: [[u8; 2]; 2],
}

impl Loose {
    pub(super) fn new() -> Self {
        Loose { codes: [0; BLOCK], scales: [[0; 4]; GROUPS], biases: [[0; 4]; GROUPS], whole: [[0; 2]; 2] }
    }

    /// Reads `len` elements from `start` on of a row whose arrays are `parts`.
    #[inline(always)]
    pub(super) fn read(&mut self, dtype: DType, parts: [&[u8]; 3], start: usize, len: usize) {
        match dtype {
            DType::Quant(QuantFormat::Affine { bits, group, scale }) => {
                let size = if scale == ScaleType::F32 { 4 } else { 2 };
                for i in 0..len / group as usize {
                    let at = (start / group as usize + i) * size;
                    self.scales[i][..size].copy_from_slice(&parts[1][at..at + size]);
                    self.biases[i][..size].copy_from_slice(&parts[2][at..at + size]);
                }
                self.bit_stream(parts[0], start * bits as usize, bits as usize, len);
            }
            DType::Quant(QuantFormat::MxFp4) => {
                for i in 0..len / 32 {
                    let e = parts[1][start / 32 + i];
                    self.scales[i] = if e == 255 { f32::NAN.to_le_bytes() } else { exponent(e) };
                }
                self.bit_stream(parts[0], start * 4, 4, len);
            }
            DType::Quant(QuantFormat::Gguf(format)) => {
                let (block, bytes) = format.block();
                let from = &parts[0][start / block * bytes..];
                for (i, from) in from.chunks_exact(bytes).take(len / block).enumerate() {
                    self.gguf(format, from, i * block);
                }
            }
            other => unreachable!("{other} has no panels"),
        }
    }

    /// Codes of `bits` bits, lowest bits first, from bit `at` on.
    #[inline(always)]
    fn bit_stream(&mut self, from: &[u8], at: usize, bits: usize, len: usize) {
        let codes = &mut self.codes[..len];
        match bits {
            4 => {
                for (pair, byte) in codes.chunks_exact_mut(2).zip(&from[at / 8..]) {
                    pair.copy_from_slice(&[byte & 15, byte >> 4]);
                }
            }
            8 => codes.copy_from_slice(&from[at / 8..at / 8 + len]),
            _ => self.uneven_bit_stream(from, at, bits, len),
        }
    }

    fn uneven_bit_stream(&mut self, from: &[u8], at: usize, bits: usize, len: usize) {
        for (i, code) in self.codes[..len].iter_mut().enumerate() {
            let bit = at + i * bits;
            let low = from[bit / 8] as u16;
            let high = from.get(bit / 8 + 1).copied().unwrap_or(0) as u16;
            *code = ((low | high << 8) >> (bit % 8) & ((1 << bits) - 1)) as u8;
        }
    }

    #[inline(always)]
    fn scale(&mut self, group: usize, bytes: &[u8]) {
        self.scales[group][..2].copy_from_slice(&bytes[..2]);
    }

    /// Low nibbles, then high ones.
    #[inline(always)]
    fn nibbles(&mut self, at: usize, packed: &[u8]) {
        for (i, &byte) in packed.iter().enumerate() {
            self.codes[at + i] = byte & 15;
            self.codes[at + packed.len() + i] = byte >> 4;
        }
    }

    /// Adds a fifth bit from a mask of 32.
    #[inline(always)]
    fn fifth(&mut self, at: usize, mask: &[u8]) {
        for (i, code) in self.codes[at..at + 32].iter_mut().enumerate() {
            *code |= (mask[i / 8] >> (i % 8) & 1) << 4;
        }
    }

    #[inline(always)]
    fn gguf(&mut self, format: GgufFormat, b: &[u8], at: usize) {
        let group = at / 32;
        match format {
            GgufFormat::Q4_0 | GgufFormat::Iq4Nl => {
                self.scale(group, b);
                self.nibbles(at, &b[2..18]);
            }
            GgufFormat::Q4_1 => {
                self.scale(group, b);
                self.biases[group][..2].copy_from_slice(&b[2..4]);
                self.nibbles(at, &b[4..20]);
            }
            GgufFormat::Q5_0 => {
                self.scale(group, b);
                self.nibbles(at, &b[6..22]);
                self.fifth(at, &b[2..6]);
            }
            GgufFormat::Q5_1 => {
                self.scale(group, b);
                self.biases[group][..2].copy_from_slice(&b[2..4]);
                self.nibbles(at, &b[8..24]);
                self.fifth(at, &b[4..8]);
            }
            GgufFormat::Q8_0 => {
                self.scale(group, b);
                for (code, &byte) in self.codes[at..at + 32].iter_mut().zip(&b[2..34]) {
                    *code = byte ^ 128;
                }
            }
            GgufFormat::MxFp4 => {
                self.scales[group] = exponent(b[0]);
                self.nibbles(at, &b[1..17]);
            }
            GgufFormat::Iq4Xs => self.iq4_xs(b),
            GgufFormat::Q2K => self.q2_k(b),
            GgufFormat::Q3K => self.q3_k(b),
            GgufFormat::Q4K | GgufFormat::Q5K => self.q45_k(format == GgufFormat::Q5K, b),
            GgufFormat::Q6K => self.q6_k(b),
            GgufFormat::Iq2Xxs | GgufFormat::Iq3Xxs => unreachable!("has no panels"),
        }
    }

    #[inline(always)]
    fn iq4_xs(&mut self, b: &[u8]) {
        self.whole[0] = [b[0], b[1]];
        let high = u16::from_le_bytes([b[2], b[3]]);
        for sub in 0..8 {
            let low = b[4 + sub / 2] >> (sub % 2 * 4) & 15;
            self.scales[sub][0] = (low | ((high >> (2 * sub) & 3) << 4) as u8).wrapping_sub(32);
            self.nibbles(sub * 32, &b[8 + sub * 16..24 + sub * 16]);
        }
    }

    #[inline(always)]
    fn q2_k(&mut self, b: &[u8]) {
        self.whole = [[b[80], b[81]], [b[82], b[83]]];
        for sub in 0..16 {
            self.scales[sub][0] = b[sub] & 15;
            self.biases[sub][0] = b[sub] >> 4;
            let (part, shift, side) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
            for i in 0..16 {
                self.codes[sub * 16 + i] = b[16 + part * 32 + side + i] >> shift & 3;
            }
        }
    }

    #[inline(always)]
    fn q3_k(&mut self, b: &[u8]) {
        self.whole[0] = [b[108], b[109]];
        let packed = &b[96..108];
        for sub in 0..16 {
            let (part, shift, side) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
            for i in 0..16 {
                let high = b[side + i] >> (sub / 2) & 1;
                self.codes[sub * 16 + i] = b[32 + part * 32 + side + i] >> shift & 3 | high << 2;
            }
            let scale =
                packed[sub % 8] >> (sub / 8 * 4) & 15 | (packed[8 + sub % 4] >> (sub / 4 * 2) & 3) << 4;
            self.scales[sub][0] = scale.wrapping_sub(32);
        }
    }

    #[inline(always)]
    fn q45_k(&mut self, fifth: bool, b: &[u8]) {
        self.whole = [[b[0], b[1]], [b[2], b[3]]];
        let packed = &b[4..16];
        for i in 0..4 {
            let (scale, min, tail) = (packed[i], packed[i + 4], packed[i + 8]);
            self.scales[i][0] = scale & 63;
            self.biases[i][0] = min & 63;
            self.scales[i + 4][0] = tail & 15 | scale >> 6 << 4;
            self.biases[i + 4][0] = tail >> 4 | min >> 6 << 4;
        }
        let low = if fifth { 48 } else { 16 };
        for pair in 0..4 {
            self.nibbles(pair * 64, &b[low + pair * 32..low + pair * 32 + 32]);
        }
        if fifth {
            for (i, code) in self.codes.iter_mut().enumerate() {
                *code |= (b[16 + i % 32] >> (i / 32) & 1) << 4;
            }
        }
    }

    #[inline(always)]
    fn q6_k(&mut self, b: &[u8]) {
        self.whole[0] = [b[208], b[209]];
        for sub in 0..16 {
            self.scales[sub][0] = b[192 + sub];
        }
        for (i, code) in self.codes.iter_mut().enumerate() {
            let (part, quarter, j) = (i / 128, i % 128 / 32, i % 32);
            let low = b[part * 64 + quarter % 2 * 32 + j] >> (quarter / 2 * 4) & 15;
            *code = low | (b[128 + part * 32 + j] >> (quarter * 2) & 3) << 4;
        }
    }
}

/// Half of the power of two that a byte says, as `f32`: tables of E2M1 hold twice their values.
fn exponent(e: u8) -> [u8; 4] {
    (2f64.powi(e as i32 - 128) as f32).to_le_bytes()
}

/// Writes one block of a panel from the same block of its rows. Rows that are absent are zero.
#[inline(always)]
pub(super) fn write(format: &Format, rows: &[Loose], len: usize, to: &mut [u8]) {
    let groups = len / format.group;
    let (scales, codes) = to.split_at_mut(format.scale_bytes(groups));
    write_scales(format, rows, groups, scales);
    for (unit, to) in codes.chunks_exact_mut(format.codes.bytes()).enumerate() {
        write_unit(format.codes, rows, unit * UNIT, to);
    }
}

#[inline(always)]
fn write_scales(format: &Format, rows: &[Loose], groups: usize, to: &mut [u8]) {
    let arrays = if format.zero.is_some() { 1 } else { 2 };
    let each = to.len() / arrays;
    for (r, row) in rows.iter().enumerate() {
        for (array, to) in to.chunks_exact_mut(each).enumerate() {
            let numbers = if array == 0 { &row.scales } else { &row.biases };
            let (size, start) = match format.scales {
                Scales::Direct { kind: ScaleType::F32 } => (4, 0),
                Scales::Direct { .. } => (2, 0),
                Scales::Factored => {
                    to[r * 2..r * 2 + 2].copy_from_slice(&row.whole[array]);
                    (1, ROWS * 2)
                }
            };
            for (g, number) in numbers[..groups].iter().enumerate() {
                let at = start + (g * ROWS + r) * size;
                to[at..at + size].copy_from_slice(&number[..size]);
            }
        }
    }
}

/// Bytes of a vector of codes.
const VECTOR: usize = 4 * ROWS;

#[inline(always)]
fn write_unit(codes: Codes, rows: &[Loose], at: usize, to: &mut [u8]) {
    let mut vectors = [[0u8; VECTOR]; 4];
    for (v, vector) in vectors.iter_mut().enumerate() {
        for (row, four) in rows.iter().zip(vector.chunks_exact_mut(4)) {
            four.copy_from_slice(&row.codes[at + 4 * v..at + 4 * v + 4]);
        }
    }
    let (low, masks) = to.split_at_mut(match codes {
        Codes::Two | Codes::Three => VECTOR,
        Codes::Eight => 4 * VECTOR,
        _ => 2 * VECTOR,
    });
    match codes {
        Codes::Eight => low.copy_from_slice(vectors.as_flattened()),
        Codes::Two | Codes::Three => {
            for (i, to) in low.iter_mut().enumerate() {
                *to = (0..4).fold(0, |byte, v| byte | (vectors[v][i] & 3) << (2 * v));
            }
        }
        _ => {
            for (to, pair) in low.chunks_exact_mut(VECTOR).zip(vectors.chunks_exact(2)) {
                for (i, to) in to.iter_mut().enumerate() {
                    *to = pair[0][i] & 15 | pair[1][i] << 4;
                }
            }
        }
    }
    let first = if codes == Codes::Three { 2 } else { 4 };
    for (i, mask) in masks.chunks_exact_mut(VECTOR / 8).enumerate() {
        let (plane, vector) = (i / 4, &vectors[i % 4]);
        for (to, eight) in mask.iter_mut().zip(vector.as_chunks::<8>().0) {
            // One bit of each byte; the product brings them together in the highest byte.
            let bits = u64::from_le_bytes(*eight) >> (first + plane) & 0x0101_0101_0101_0101;
            *to = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
        }
    }
}
