//! Turns rows of keys so that neighbouring keys lie beside each other: `[keys][dim]` of any type becomes
//! `[dim][KEYS]` of `f32`. The wide levels turn squares in registers; the others, and rows that are not whole
//! vectors, go number by number.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use mlxcel_ir::DType;

use super::core::{Addresses, KEYS, Memory};
use crate::kernels::prefetch;
use crate::lanes::Lane;
use crate::simd::{LANES_MAX, Simd};

/// Writes the keys `lanes` of a tile, of which `rows` holds the addresses, to `out`.
///
/// # Safety
/// `rows` must be addresses of whole rows of `memory`, and the lanes multiples of [`LANES_MAX`] below [`KEYS`].
#[inline(always)]
pub(super) unsafe fn turn<S: Simd>(
    memory: &Memory<'_>,
    rows: &Addresses,
    lanes: (usize, usize),
    out: &mut [f32],
) {
    assert!(out.len() >= memory.width * KEYS, "a tile of keys is too small");
    let mut lane = lanes.0;
    while lane < lanes.1 {
        // SAFETY: as the caller promises; `out` has `width` lines of `KEYS` numbers.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if memory.direct() && S::LANES == 16 {
                squares_of_sixteen(memory, rows.as_ptr().add(lane), out.as_mut_ptr().add(lane));
                lane += LANES_MAX;
                continue;
            } else if memory.direct() && S::LANES == 8 {
                squares_of_eight(memory, rows.as_ptr().add(lane), out.as_mut_ptr().add(lane));
                squares_of_eight(memory, rows.as_ptr().add(lane + 8), out.as_mut_ptr().add(lane + 8));
                lane += LANES_MAX;
                continue;
            }
            one_by_one(memory, &rows[lane..lane + LANES_MAX], &mut out[lane..]);
        }
        lane += LANES_MAX;
    }
}

/// Asks for some bytes behind addresses that will be read soon.
#[inline(always)]
pub(super) fn fetch(rows: &[*const u8], (start, end): (usize, usize)) {
    let mut at = start;
    while at < end {
        for &row in rows {
            prefetch(row.wrapping_add(at), 64);
        }
        at += 64;
    }
}

/// # Safety
/// As for [`turn`].
#[inline(always)]
unsafe fn one_by_one(memory: &Memory<'_>, rows: &[*const u8], out: &mut [f32]) {
    let size = memory.dtype.size().expect("keys are plain");
    let bytes = ((memory.width - 1) * memory.stride + 1) * size;
    for (k, &row) in rows.iter().enumerate() {
        // SAFETY: the row lies whole behind its address.
        let row = unsafe { std::slice::from_raw_parts(row, bytes) };
        let mut at = 0;
        while at < memory.width {
            let mut part = [0.0; LANES_MAX];
            let count = LANES_MAX.min(memory.width - at);
            f32::load(memory.dtype, row, (at * memory.stride, memory.stride), &mut part[..count]);
            for i in 0..count {
                out[(at + i) * KEYS + k] = part[i];
            }
            at += count;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn squares_of_sixteen(memory: &Memory<'_>, rows: *const *const u8, out: *mut f32) {
    use std::arch::x86_64::*;
    let mut at = 0;
    while at < memory.width {
        let mut v = [_mm512_setzero_ps(); 16];
        // SAFETY: sixteen rows have sixteen numbers from `at` on, and `out` as many lines of `KEYS`.
        unsafe {
            for i in 0..16 {
                let row = *rows.add(i);
                v[i] = match memory.dtype {
                    DType::F32 => _mm512_loadu_ps(row.cast::<f32>().add(at)),
                    DType::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(row.add(at * 2).cast())),
                    DType::I8 => {
                        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(row.add(at).cast())))
                    }
                    _ => {
                        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(row.add(at * 2).cast()));
                        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                    }
                };
            }
            for (i, line) in square(v).into_iter().enumerate() {
                _mm512_storeu_ps(out.add((at + i) * KEYS), line);
            }
        }
        at += 16;
    }
}

/// A square of numbers with its rows as columns.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn square(mut v: [std::arch::x86_64::__m512; 16]) -> [std::arch::x86_64::__m512; 16] {
    use std::arch::x86_64::*;
    // Pairs of numbers, then of pairs, within each quarter; then the quarters.
    let mut w = [_mm512_setzero_pd(); 16];
    for i in 0..8 {
        w[2 * i] = _mm512_castps_pd(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]));
        w[2 * i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    }
    for i in 0..4 {
        let [a, b, c, d] = [w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]];
        v[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        v[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        v[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        v[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    let mut out = v;
    for i in 0..4 {
        let low = _mm512_shuffle_f32x4::<0x88>(v[i], v[4 + i]);
        let high = _mm512_shuffle_f32x4::<0xdd>(v[i], v[4 + i]);
        let more_low = _mm512_shuffle_f32x4::<0x88>(v[8 + i], v[12 + i]);
        let more_high = _mm512_shuffle_f32x4::<0xdd>(v[8 + i], v[12 + i]);
        out[i] = _mm512_shuffle_f32x4::<0x88>(low, more_low);
        out[4 + i] = _mm512_shuffle_f32x4::<0x88>(high, more_high);
        out[8 + i] = _mm512_shuffle_f32x4::<0xdd>(low, more_low);
        out[12 + i] = _mm512_shuffle_f32x4::<0xdd>(high, more_high);
    }
    out
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn squares_of_eight(memory: &Memory<'_>, rows: *const *const u8, out: *mut f32) {
    use std::arch::x86_64::*;
    let mut at = 0;
    while at < memory.width {
        let mut v = [_mm256_setzero_ps(); 8];
        // SAFETY: eight rows have eight numbers from `at` on, and `out` as many lines of `KEYS`.
        unsafe {
            for i in 0..8 {
                let row = *rows.add(i);
                v[i] = match memory.dtype {
                    DType::F32 => _mm256_loadu_ps(row.cast::<f32>().add(at)),
                    DType::F16 => _mm256_cvtph_ps(_mm_loadu_si128(row.add(at * 2).cast())),
                    DType::I8 => {
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(row.add(at).cast())))
                    }
                    _ => {
                        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(row.add(at * 2).cast()));
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                    }
                };
            }
            let mut w = [_mm256_setzero_ps(); 8];
            for i in 0..4 {
                w[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
                w[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
            }
            for i in 0..2 {
                let [a, b, c, d] = [w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]];
                v[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
                v[4 * i + 1] = _mm256_shuffle_ps::<0xee>(a, c);
                v[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
                v[4 * i + 3] = _mm256_shuffle_ps::<0xee>(b, d);
            }
            for i in 0..4 {
                let to = out.add((at + i) * KEYS);
                _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(v[i], v[4 + i]));
                _mm256_storeu_ps(to.add(4 * KEYS), _mm256_permute2f128_ps::<0x31>(v[i], v[4 + i]));
            }
        }
        at += 8;
    }
}
