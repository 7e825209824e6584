//! The GGUF formats with super-blocks of 256: sub-blocks are fitted each for itself, then their scales are quantised
//! together and the codes found again for the scales that are stored.

use half::f16;

use super::fit;

/// Scales and minima have six bits.
const TOP_SCALE: f32 = 63.0;

pub(super) fn q4_k(values: &[f32; 256]) -> [u8; 144] {
    let (subs, _) = values.as_chunks::<32>();
    let lines: [fit::Line; 8] = std::array::from_fn(|i| fit::line(&subs[i], 15.0));
    let (d, scales) = six_bits(lines.map(|l| l.scale));
    let (dmin, mins) = six_bits(lines.map(|l| l.min));
    let mut block = [0; 144];
    block[..2].copy_from_slice(&d.to_le_bytes());
    block[2..4].copy_from_slice(&dmin.to_le_bytes());
    pack_scales(&scales, &mins, &mut block[4..16]);
    let (d, dmin) = (d.to_f32(), dmin.to_f32());
    for (i, sub) in subs.iter().enumerate() {
        let (scale, min) = (d * f32::from(scales[i]), dmin * f32::from(mins[i]));
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let codes = sub.map(|v| fit::within(fit::round((v + min) * inverse), 0.0, 15.0) as u8);
        let shift = i % 2 * 4;
        for (byte, code) in block[16 + i / 2 * 32..][..32].iter_mut().zip(codes) {
            *byte |= code << shift;
        }
    }
    block
}

/// A common unit and the multiples of it.
fn six_bits(wanted: [f32; 8]) -> (f16, [u8; 8]) {
    let largest = wanted.iter().fold(0f32, |m, &v| m.max(v));
    let unit = f16::from_f32(largest / TOP_SCALE);
    let inverse = if largest > 0.0 { TOP_SCALE / largest } else { 0.0 };
    (unit, wanted.map(|v| fit::within(fit::round(v * inverse), 0.0, TOP_SCALE) as u8))
}

/// The first four of each in the low bits of eight bytes, the last four as nibbles of four bytes with their top two
/// bits on top of the first eight.
fn pack_scales(scales: &[u8; 8], mins: &[u8; 8], out: &mut [u8]) {
    for i in 0..4 {
        out[i] = scales[i] | scales[i + 4] >> 4 << 6;
        out[i + 4] = mins[i] | mins[i + 4] >> 4 << 6;
        out[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
    }
}

pub(super) fn q6_k(values: &[f32; 256]) -> [u8; 210] {
    let (subs, _) = values.as_chunks::<16>();
    let wanted: [f32; 16] = std::array::from_fn(|i| fit::symmetric(&subs[i], 32.0));
    let largest = wanted.iter().fold(0f32, |best, &v| if v.abs() > best.abs() { v } else { best });
    let inverse = if largest == 0.0 { 0.0 } else { -128.0 / largest };
    let d = f16::from_f32(largest / -128.0);
    let scales = wanted.map(|v| fit::within(fit::round(v * inverse), -128.0, 127.0) as i8);
    let mut codes = [0u8; 256];
    for ((sub, &scale), codes) in subs.iter().zip(&scales).zip(codes.as_chunks_mut::<16>().0) {
        let scale = d.to_f32() * f32::from(scale);
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        *codes = sub.map(|v| (fit::within(fit::round(v * inverse), -32.0, 31.0) + 32.0) as u8);
    }
    let mut block = [0; 210];
    for (i, code) in codes.into_iter().enumerate() {
        let (half, quarter, at) = (i / 128, i % 128 / 32, i % 32);
        block[half * 64 + quarter % 2 * 32 + at] |= (code & 15) << (quarter / 2 * 4);
        block[128 + half * 32 + at] |= (code >> 4) << (quarter * 2);
    }
    for (byte, scale) in block[192..208].iter_mut().zip(scales) {
        *byte = scale as u8;
    }
    block[208..].copy_from_slice(&d.to_le_bytes());
    block
}
