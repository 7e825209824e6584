//! Rows of plain element types as `f32`.

use std::sync::LazyLock;

use mlxcel_ir::{DType, f8};

static E4M3: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|b| f8::decode(b as u8, f8::E4M3) as f32));
static E5M2: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|b| f8::decode(b as u8, f8::E5M2) as f32));

/// Half precision to single, without branches, so that a loop over it vectorises on any instruction set.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    /// 2^-14, the smallest normal half: adding it to the bits of a subnormal and subtracting it normalises.
    const SMALLEST: f32 = 6.103_515_6e-5;
    let magnitude = (half & 0x7fff) as u32;
    let shifted = magnitude << 13;
    let normal = shifted + REBIAS;
    let special = shifted | 0x7f80_0000;
    let subnormal = (f32::from_bits(shifted + SMALLEST.to_bits()) - SMALLEST).to_bits();
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    let bits = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(bits | ((half & 0x8000) as u32) << 16)
}

#[inline(always)]
pub fn bf16_to_f32(brain: u16) -> f32 {
    f32::from_bits((brain as u32) << 16)
}

/// `bytes` holds exactly `out.len()` elements.
#[inline(always)]
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F16 => each(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        DType::BF16 => each(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        DType::F8E4M3 => through(bytes, out, &E4M3),
        DType::F8E5M2 => through(bytes, out, &E5M2),
        DType::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        DType::Bool => each(bytes, out, |b| (b != [0u8]) as u8 as f32),
        DType::U8 => each(bytes, out, |b| u8::from_le_bytes(b) as f32),
        DType::U16 => each(bytes, out, |b| u16::from_le_bytes(b) as f32),
        DType::U32 => each(bytes, out, |b| u32::from_le_bytes(b) as f32),
        DType::U64 => each(bytes, out, |b| u64::from_le_bytes(b) as f32),
        DType::I8 => each(bytes, out, |b| i8::from_le_bytes(b) as f32),
        DType::I16 => each(bytes, out, |b| i16::from_le_bytes(b) as f32),
        DType::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        DType::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        DType::Quant(_) => unreachable!("packed rows are decoded by their format"),
    }
}

#[inline(always)]
fn each<const N: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (value, &element) in out.iter_mut().zip(elements) {
        *value = convert(element);
    }
}

#[inline(always)]
fn through(bytes: &[u8], out: &mut [f32], table: &[f32; 256]) {
    for (value, &code) in out.iter_mut().zip(bytes) {
        *value = table[code as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#06x}: {ours}"
            );
            let (ours, theirs) = (bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#06x}: {ours}"
            );
        }
    }
}
