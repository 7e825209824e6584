//! Eight lanes with AVX2 and FMA.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Simd, SimdLevel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2;

/// Eight lanes to four: the upper half is added to the lower.
#[inline(always)]
fn quarter(v: __m256) -> __m128 {
    // SAFETY: only reached through dispatch, which checked the features.
    unsafe { _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)) }
}

impl Simd for Avx2 {
    type F = __m256;
    const LEVEL: SimdLevel = SimdLevel::Avx2;
    const LANES: usize = 8;
    const TOKENS: usize = 2;

    #[inline(always)]
    fn splat(x: f32) -> __m256 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: the caller promises eight readable numbers.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: the caller promises eight writable numbers.
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline(always)]
    fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn from_u8(p: *const u8) -> __m256 {
        // SAFETY: the caller promises eight readable bytes.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn from_i8(p: *const u8) -> __m256 {
        // SAFETY: the caller promises eight readable bytes.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn from_bf16(p: *const u8) -> __m256 {
        // SAFETY: the caller promises eight readable halves.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn from_f16(p: *const u8) -> __m256 {
        // SAFETY: the caller promises eight readable halves.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    unsafe fn to_f16(p: *mut u8, v: __m256) {
        // SAFETY: the caller promises eight writable halves.
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }

    #[inline(always)]
    fn half(bits: u16) -> f32 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits as i32))) }
    }

    #[inline(always)]
    fn lookup(table: &[u8; 16], codes: [u8; 16]) -> [u8; 16] {
        let mut out = [0; 16];
        // SAFETY: only reached through dispatch, which checked the features; all arrays have sixteen bytes.
        unsafe {
            let low = _mm_and_si128(_mm_loadu_si128(codes.as_ptr().cast()), _mm_set1_epi8(15));
            let found = _mm_shuffle_epi8(_mm_loadu_si128(table.as_ptr().cast()), low);
            _mm_storeu_si128(out.as_mut_ptr().cast(), found);
        }
        out
    }

    #[inline(always)]
    fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn swapped(a: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_permute_ps::<0b10_11_00_01>(a) }
    }

    #[inline(always)]
    fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sums(v: [__m256; 4]) -> [f32; 4] {
        let [a, b, c, d] = [quarter(v[0]), quarter(v[1]), quarter(v[2]), quarter(v[3])];
        let mut out = [0.0; 4];
        // SAFETY: only reached through dispatch, which checked the features; `out` has four places.
        unsafe {
            let sums = _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d));
            _mm_storeu_ps(out.as_mut_ptr(), sums);
        }
        out
    }
}
