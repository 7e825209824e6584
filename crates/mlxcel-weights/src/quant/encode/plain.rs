//! The half-width floats, rounded to nearest, ties to even.

use half::f16;
use half::slice::HalfFloatSliceExt as _;

/// Converted at a time, on the stack.
const STEP: usize = 256;

pub(super) fn f16(values: &[f32], out: &mut Vec<u8>) {
    let mut halves = [f16::ZERO; STEP];
    for values in values.chunks(STEP) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        out.extend(halves.iter().flat_map(|h| h.to_le_bytes()));
    }
}

pub(super) fn bf16(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|&v| round_bf16(v).to_le_bytes()));
}

/// Without a branch on the value, so that a loop over it vectorises.
fn round_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn bf16_rounds_as_the_half_crate_does() {
        let near = |bits: u32| [bits.wrapping_sub(1), bits, bits.wrapping_add(1)].map(f32::from_bits);
        let values = (0..=u16::MAX).flat_map(|high| near((high as u32) << 16 | 0x8000));
        for value in values.chain([0.0, -0.0, f32::INFINITY, f32::NAN, f32::MAX, 1e-45]) {
            let (ours, theirs) = (round_bf16(value), bf16::from_f32(value));
            assert!(ours == theirs.to_bits(), "{value:e}: {ours:#06x} but {:#06x}", theirs.to_bits());
        }
    }
}
