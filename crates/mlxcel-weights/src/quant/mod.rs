//! Exact decoding of every stored format to `f32`, one range of a row at a time.
//!
//! Decoders are `#[inline(always)]` loops over fixed-size blocks without branches on the data, so that a
//! caller compiled with wider target features gets them vectorised for those. They are the definition of the
//! formats; an engine may have faster kernels of its own, checked against these. Nothing here reads files or
//! starts threads.

mod affine;
mod encode;
mod iq;
mod iq_tables;
mod k_quants;
mod legacy;
mod mx;
mod plain;

pub use encode::{Parts, can_encode, encode_affine, encode_rows};
pub use iq::{Iq2Xxs, Iq3Xxs, Iq4Nl, Iq4Xs};
pub use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use mx::GgufMxFp4;
pub use plain::{bf16_to_f32, f16_to_f32};

use mlxcel_ir::{DType, GgufFormat, QuantFormat};

use crate::tensor::part_sizes;

/// A GGUF block format: `BYTES` bytes decode to `LEN` numbers.
pub trait Block {
    const LEN: usize;
    const BYTES: usize;

    /// Panics if `block` is shorter than `BYTES` or `out` than `LEN`.
    fn decode(block: &[u8], out: &mut [f32]);
}

/// Decodes consecutive blocks.
#[inline(always)]
pub fn decode_blocks<B: Block>(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in blocks.chunks_exact(B::BYTES).zip(out.chunks_exact_mut(B::LEN)) {
        B::decode(block, out);
    }
}

/// Rows of a tensor of any type, read as `f32`.
#[derive(Clone, Copy, Debug)]
pub struct RowDecoder<'a> {
    dtype: DType,
    cols: usize,
    rows: usize,
    /// As many as the type has; the others are empty.
    parts: [&'a [u8]; 3],
}

/// Rows of a quantised tensor.
#[derive(Clone, Copy, Debug)]
pub struct QuantRows<'a> {
    format: QuantFormat,
    cols: usize,
    rows: usize,
    parts: [&'a [u8]; 3],
}

impl<'a> RowDecoder<'a> {
    /// Panics if the arrays do not hold a whole number of rows of the type, which
    /// [`crate::WeightTensor::new`] checks.
    pub fn new(dtype: DType, cols: usize, parts: &[&'a [u8]]) -> Self {
        let row = part_sizes(dtype, &[cols]).expect("rows divide into blocks");
        let rows = parts[0].len().checked_div(row[0]).unwrap_or(0);
        let sized = parts.iter().zip(&row).all(|(part, bytes)| part.len() == rows * bytes);
        assert!(sized && parts.len() == row.len(), "the arrays are not {rows} rows of {cols} {dtype}");
        let mut fixed: [&[u8]; 3] = [&[]; 3];
        fixed[..parts.len()].copy_from_slice(parts);
        RowDecoder { dtype, cols, rows, parts: fixed }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Decoding starts and ends at multiples of this.
    pub fn block_len(&self) -> usize {
        if let DType::Quant(format) = self.dtype { format.block_len() } else { 1 }
    }

    /// The rows as packed ones, if the type is packed.
    pub fn quant(&self) -> Option<QuantRows<'a>> {
        let DType::Quant(format) = self.dtype else { return None };
        Some(QuantRows { format, cols: self.cols, rows: self.rows, parts: self.parts })
    }

    /// Elements `start..start + out.len()` of `row`. Panics if they are not there or do not fall on block
    /// bounds.
    #[inline(always)]
    pub fn decode(&self, row: usize, start: usize, out: &mut [f32]) {
        match self.quant() {
            Some(rows) => rows.decode(row, start, out),
            None => {
                check_range(row, self.rows, start + out.len(), self.cols);
                let size = self.parts[0].len() / (self.rows * self.cols);
                let first = (row * self.cols + start) * size;
                plain::decode(self.dtype, &self.parts[0][first..first + out.len() * size], out);
            }
        }
    }
}

impl QuantRows<'_> {
    pub fn format(&self) -> QuantFormat {
        self.format
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements `start..start + out.len()` of `row`, both multiples of the block length. Panics otherwise.
    #[inline(always)]
    pub fn decode(&self, row: usize, start: usize, out: &mut [f32]) {
        let block = self.format.block_len();
        assert!(start.is_multiple_of(block) && out.len().is_multiple_of(block), "{start} splits a block");
        check_range(row, self.rows, start + out.len(), self.cols);
        let first = (row * self.cols + start) / block;
        let count = out.len() / block;
        let cut = |part: usize, bytes: usize| &self.parts[part][first * bytes..(first + count) * bytes];
        match self.format {
            QuantFormat::Affine { bits, group, scale } => {
                let scale_bytes = affine::scale_bytes(scale);
                let codes = cut(0, bits as usize * group as usize / 8);
                let groups =
                    affine::Groups { codes, scales: cut(1, scale_bytes), biases: cut(2, scale_bytes) };
                affine::decode(bits, scale, groups, out);
            }
            QuantFormat::MxFp4 => mx::decode(cut(0, 16), cut(1, 1), out),
            QuantFormat::Gguf(format) => decode_gguf(format, cut(0, format.block().1), out),
        }
    }
}

/// Decodes consecutive blocks of a GGUF format.
#[inline(always)]
pub fn decode_gguf(format: GgufFormat, blocks: &[u8], out: &mut [f32]) {
    match format {
        GgufFormat::Q4_0 => decode_blocks::<Q4_0>(blocks, out),
        GgufFormat::Q4_1 => decode_blocks::<Q4_1>(blocks, out),
        GgufFormat::Q5_0 => decode_blocks::<Q5_0>(blocks, out),
        GgufFormat::Q5_1 => decode_blocks::<Q5_1>(blocks, out),
        GgufFormat::Q8_0 => decode_blocks::<Q8_0>(blocks, out),
        GgufFormat::Q2K => decode_blocks::<Q2K>(blocks, out),
        GgufFormat::Q3K => decode_blocks::<Q3K>(blocks, out),
        GgufFormat::Q4K => decode_blocks::<Q4K>(blocks, out),
        GgufFormat::Q5K => decode_blocks::<Q5K>(blocks, out),
        GgufFormat::Q6K => decode_blocks::<Q6K>(blocks, out),
        GgufFormat::Iq4Nl => decode_blocks::<Iq4Nl>(blocks, out),
        GgufFormat::Iq4Xs => decode_blocks::<Iq4Xs>(blocks, out),
        GgufFormat::Iq2Xxs => decode_blocks::<Iq2Xxs>(blocks, out),
        GgufFormat::Iq3Xxs => decode_blocks::<Iq3Xxs>(blocks, out),
        GgufFormat::MxFp4 => decode_blocks::<GgufMxFp4>(blocks, out),
    }
}

#[inline(always)]
fn check_range(row: usize, rows: usize, end: usize, cols: usize) {
    assert!(row < rows && end <= cols, "row {row} up to column {end} of {rows} rows of {cols}");
}

/// A block or a field of it as an array, so that the compiler knows its length.
#[inline(always)]
fn field<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a whole block")
}

#[inline(always)]
fn f16_field(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes(*field(bytes, at)))
}
