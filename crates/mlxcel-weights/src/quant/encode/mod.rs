//! From `f32` to stored formats, rows at a time: the inverse of the decoders. Knows neither files nor threads; what is
//! worth quantising is decided by those above.

mod affine;
mod fit;
mod k_quants;
mod legacy;
mod plain;

use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};

use crate::bytes::Bytes;
use crate::error::{Result, WeightsError};
use crate::tensor::{WeightTensor, part_sizes};

/// Rows encoded into the arrays of their type; a type with fewer than three leaves the others empty.
pub type Parts = [Vec<u8>; 3];

/// Whether [`encode_rows`] can make this type.
pub fn can_encode(dtype: DType) -> bool {
    use GgufFormat::{Q4_0, Q4_1, Q4K, Q5_0, Q6K, Q8_0};
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => true,
        DType::Quant(QuantFormat::Affine { bits, group, .. }) => {
            matches!(bits, 2..=6 | 8) && group > 0 && group.is_multiple_of(8)
        }
        DType::Quant(QuantFormat::Gguf(format)) => matches!(format, Q4_0 | Q4_1 | Q5_0 | Q8_0 | Q4K | Q6K),
        _ => false,
    }
}

/// Appends `values`, whole rows whose length is a multiple of the type's block, to the arrays of the type.
///
/// Panics on a type that [`can_encode`] denies or on a torn block.
pub fn encode_rows(dtype: DType, values: &[f32], out: &mut Parts) {
    assert!(can_encode(dtype), "there is no encoder for {dtype}");
    let sizes = part_sizes(dtype, &[values.len()]).expect("rows divide into blocks");
    for (part, bytes) in out.iter_mut().zip(sizes) {
        part.reserve(bytes);
    }
    match dtype {
        DType::F32 => out[0].extend(values.iter().flat_map(|v| v.to_le_bytes())),
        DType::F16 => plain::f16(values, &mut out[0]),
        DType::BF16 => plain::bf16(values, &mut out[0]),
        DType::Quant(QuantFormat::Affine { bits, group, scale }) => {
            affine::encode(values, (bits, group), scale, out);
        }
        DType::Quant(QuantFormat::Gguf(format)) => encode_gguf(format, values, &mut out[0]),
        _ => unreachable!("refused above"),
    }
}

fn encode_gguf(format: GgufFormat, values: &[f32], out: &mut Vec<u8>) {
    match format {
        GgufFormat::Q4_0 => each(values, out, legacy::q4_0),
        GgufFormat::Q4_1 => each(values, out, legacy::q4_1),
        GgufFormat::Q5_0 => each(values, out, legacy::q5_0),
        GgufFormat::Q8_0 => each(values, out, legacy::q8_0),
        GgufFormat::Q4K => each(values, out, k_quants::q4_k),
        GgufFormat::Q6K => each(values, out, k_quants::q6_k),
        _ => unreachable!("refused by can_encode"),
    }
}

fn each<const LEN: usize, const BYTES: usize>(
    values: &[f32],
    out: &mut Vec<u8>,
    encode: impl Fn(&[f32; LEN]) -> [u8; BYTES],
) {
    let (blocks, rest) = values.as_chunks::<LEN>();
    assert!(rest.is_empty(), "{} values tear a block of {LEN}", values.len());
    for block in blocks {
        out.extend_from_slice(&encode(block));
    }
}

/// Rows of `cols` values as an affine tensor `[rows, cols]` with `f32` scales.
pub fn encode_affine(values: &[f32], cols: usize, bits: u8, group: u16) -> Result<WeightTensor> {
    let divides = |a: usize, b: usize| b != 0 && a.is_multiple_of(b);
    let dtype = DType::Quant(QuantFormat::Affine { bits, group, scale: ScaleType::F32 });
    let whole_words = cols.checked_mul(bits as usize).is_some_and(|row_bits| divides(row_bits, 32));
    if !can_encode(dtype) || !whole_words || !divides(values.len(), cols) || !divides(cols, group as usize) {
        return Err(WeightsError::CannotEncode { values: values.len(), cols, bits, group });
    }
    let mut parts = Parts::default();
    encode_rows(dtype, values, &mut parts);
    let parts = parts.iter().map(|part| Bytes::copied(&[part])).collect();
    WeightTensor::new(dtype, vec![values.len() / cols, cols], parts)
}
