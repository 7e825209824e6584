//! Quantises to the MLX affine formats, choosing scales as MLX does: the larger end of a group's range is hit
//! exactly, and so is zero whenever the range contains it.

use mlxcel_ir::{DType, QuantFormat, ScaleType};

use crate::bytes::Bytes;
use crate::error::{Result, WeightsError};
use crate::tensor::WeightTensor;

/// Keeps the scale of a constant group away from zero.
const SMALLEST_SCALE: f32 = 1e-7;

/// Rows of `cols` values as an affine tensor `[rows, cols]` with `f32` scales.
pub fn encode_affine(values: &[f32], cols: usize, bits: u8, group: u16) -> Result<WeightTensor> {
    let refuse = WeightsError::CannotEncode { values: values.len(), cols, bits, group };
    let divides = |a: usize, b: usize| b != 0 && a.is_multiple_of(b);
    let known = matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) && divides(group as usize, 8) && group != 0;
    let whole_words = cols.checked_mul(bits as usize).is_some_and(|row_bits| divides(row_bits, 32));
    if !known || !whole_words || !divides(values.len(), cols) || !divides(cols, group as usize) {
        return Err(refuse);
    }
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for group in values.chunks_exact(group as usize) {
        let (scale, bias) = scale_and_bias(group, bits);
        pack(group, bits, (scale, bias), &mut codes);
        scales.extend_from_slice(&scale.to_le_bytes());
        biases.extend_from_slice(&bias.to_le_bytes());
    }
    let dtype = DType::Quant(QuantFormat::Affine { bits, group, scale: ScaleType::F32 });
    let parts = [codes, scales, biases].iter().map(|part| Bytes::copied(&[part])).collect();
    WeightTensor::new(dtype, vec![values.len() / cols, cols], parts)
}

fn scale_and_bias(group: &[f32], bits: u8) -> (f32, f32) {
    let (low, high) =
        group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    let steps = ((1u32 << bits) - 1) as f32;
    let width = ((high - low) / steps).max(SMALLEST_SCALE);
    let (edge, scale) = if low.abs() > high.abs() { (low, width) } else { (high, -width) };
    let zero = (edge / scale).round_ties_even();
    if zero == 0.0 { (scale, 0.0) } else { (edge / zero, edge) }
}

fn pack(group: &[f32], bits: u8, (scale, bias): (f32, f32), codes: &mut Vec<u8>) {
    let top = ((1u32 << bits) - 1) as f32;
    for eight in group.chunks_exact(8) {
        let mut word = 0u64;
        for (i, value) in eight.iter().enumerate() {
            let code = ((value - bias) / scale).round_ties_even().clamp(0.0, top);
            word |= (code as u64) << (i * bits as usize);
        }
        codes.extend_from_slice(&word.to_le_bytes()[..bits as usize]);
    }
}
