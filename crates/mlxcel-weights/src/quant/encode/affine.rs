//! The MLX affine formats, with scales chosen as MLX chooses them: the larger end of a group's range is hit exactly,
//! and so is zero whenever the range contains it. Codes are found with the unrounded scale, as MLX finds them.

use half::{bf16, f16};
use mlxcel_ir::ScaleType;

use super::Parts;

/// Keeps the scale of a constant group away from zero.
const SMALLEST_SCALE: f32 = 1e-7;

/// Whole groups: codes, scales and biases are appended to their arrays.
pub(super) fn encode(values: &[f32], (bits, group): (u8, u16), scale_type: ScaleType, out: &mut Parts) {
    let [codes, scales, biases] = out;
    for group in values.chunks_exact(group as usize) {
        let (scale, bias) = scale_and_bias(group, bits);
        pack(group, bits, (scale, bias), codes);
        push(scale, scale_type, scales);
        push(bias, scale_type, biases);
    }
}

fn push(value: f32, scale_type: ScaleType, out: &mut Vec<u8>) {
    match scale_type {
        ScaleType::F16 => out.extend_from_slice(&f16::from_f32(value).to_le_bytes()),
        ScaleType::BF16 => out.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
        ScaleType::F32 => out.extend_from_slice(&value.to_le_bytes()),
    }
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
