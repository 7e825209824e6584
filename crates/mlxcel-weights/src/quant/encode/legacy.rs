//! The GGUF formats with one scale per 32 elements. One scale is computed from the extremes and never searched for,
//! which makes these equal to every other writer's to the bit.

use half::f16;

/// Signed: the element of the largest magnitude, the first of them where several have it.
fn largest(values: &[f32; 32]) -> f32 {
    values.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

fn range(values: &[f32; 32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)))
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn half_bytes(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

fn nibbles(codes: &[u8; 32], out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = codes[i] & 15 | codes[i + 16] << 4;
    }
}

pub(super) fn q4_0(values: &[f32; 32]) -> [u8; 18] {
    let d = largest(values) / -8.0;
    let inverse = inverse(d);
    let codes = values.map(|v| (v * inverse + 8.5).min(15.0) as u8);
    let mut block = [0; 18];
    block[..2].copy_from_slice(&half_bytes(d));
    nibbles(&codes, &mut block[2..]);
    block
}

pub(super) fn q4_1(values: &[f32; 32]) -> [u8; 20] {
    let (low, high) = range(values);
    let d = (high - low) / 15.0;
    let inverse = inverse(d);
    let codes = values.map(|v| ((v - low) * inverse + 0.5).min(15.0) as u8);
    let mut block = [0; 20];
    block[..2].copy_from_slice(&half_bytes(d));
    block[2..4].copy_from_slice(&half_bytes(low));
    nibbles(&codes, &mut block[4..]);
    block
}

pub(super) fn q5_0(values: &[f32; 32]) -> [u8; 22] {
    let d = largest(values) / -16.0;
    let inverse = inverse(d);
    let codes = values.map(|v| (v * inverse + 16.5).min(31.0) as u8);
    let fifth = codes.iter().rev().fold(0u32, |mask, code| mask << 1 | u32::from(code >> 4));
    let mut block = [0; 22];
    block[..2].copy_from_slice(&half_bytes(d));
    block[2..6].copy_from_slice(&fifth.to_le_bytes());
    nibbles(&codes, &mut block[6..]);
    block
}

pub(super) fn q8_0(values: &[f32; 32]) -> [u8; 34] {
    let d = largest(values).abs() / 127.0;
    let inverse = inverse(d);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&half_bytes(d));
    for (byte, v) in block[2..].iter_mut().zip(values) {
        *byte = round(v * inverse) as i8 as u8;
    }
    block
}

/// Half away from zero, without a call into the maths library; magnitudes here are at most 127.
fn round(v: f32) -> f32 {
    let whole = |v: f32| v as i32 as f32;
    let magnitude = v.abs();
    let floor = whole(magnitude);
    (floor + whole(2.0 * (magnitude - floor))).copysign(v)
}
