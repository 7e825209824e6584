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
    fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sums(v: [__m256; 4]) -> [f32; 4] {
        let [a, b, c, d] = v.map(quarter);
        let mut out = [0.0; 4];
        // SAFETY: only reached through dispatch, which checked the features; `out` has four places.
        unsafe {
            let sums = _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d));
            _mm_storeu_ps(out.as_mut_ptr(), sums);
        }
        out
    }
}
