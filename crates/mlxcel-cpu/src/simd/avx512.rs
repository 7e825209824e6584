//! Sixteen lanes with AVX-512.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Simd, SimdLevel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512;

impl Avx512 {
    /// `1 / (1 + e^-x)`. A division takes as long as all of this.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn sigmoid(x: __m512) -> __m512 {
        // From here on the exponential is nothing beside 1, and there what is left has no exponent of its own.
        const MOST: f32 = 104.0;
        const LEAST: f32 = -88.0;
        const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        // `(e^r - 1) / r` for half of the logarithm of 2 on both sides of zero, at the nodes of Chebyshev's polynomials.
        const FACTORS: [f32; 6] = [0.001_393_364, 0.008_369_148, 0.041_666_463, 0.166_665_05, 0.5, 1.0];
        let (one, all) = (_mm512_set1_ps(1.0), _mm512_set1_ps);
        // What is no number stays so: it is the second operand.
        let c = _mm512_min_ps(all(MOST), x);
        let n = _mm512_sub_ps(_mm512_fmadd_ps(c, all(-std::f32::consts::LOG2_E), all(ROUND)), all(ROUND));
        let r = _mm512_fnmadd_ps(n, all(LN2_LOW), _mm512_fnmsub_ps(n, all(LN2_HIGH), c));
        let mut p = all(FACTORS[0]);
        for factor in &FACTORS[1..] {
            p = _mm512_fmadd_ps(p, r, all(*factor));
        }
        let d = _mm512_add_ps(_mm512_scalef_ps(_mm512_fmadd_ps(p, r, one), n), one);
        // The reciprocal to fourteen bits, and Newton's step to twice as many.
        let y = _mm512_rcp14_ps(d);
        let is_some = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, all(LEAST));
        let rest = _mm512_fnmadd_ps(d, y, one);
        _mm512_maskz_mov_ps(is_some, _mm512_fmadd_ps(y, rest, y))
    }
}

impl Simd for Avx512 {
    type F = __m512;
    const LEVEL: SimdLevel = SimdLevel::Avx512;
    const LANES: usize = 16;
    const TOKENS: usize = 6;

    #[inline(always)]
    fn splat(x: f32) -> __m512 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: the caller promises sixteen readable numbers.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: the caller promises sixteen writable numbers.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn from_u8(p: *const u8) -> __m512 {
        // SAFETY: the caller promises sixteen readable bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn from_i8(p: *const u8) -> __m512 {
        // SAFETY: the caller promises sixteen readable bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn from_bf16(p: *const u8) -> __m512 {
        // SAFETY: the caller promises sixteen readable halves.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn from_f16(p: *const u8) -> __m512 {
        // SAFETY: the caller promises sixteen readable halves.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn to_f16(p: *mut u8, v: __m512) {
        // SAFETY: the caller promises sixteen writable halves.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
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
    fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn swapped(a: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(a) }
    }

    #[inline(always)]
    fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: only reached through dispatch, which checked the features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sums(v: [__m512; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        // SAFETY: only reached through dispatch, which checked the features; `out` has four places.
        unsafe {
            // Every quarter has the sums of four lanes of each vector, in order of the vectors.
            let pair = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (ab, cd) = (_mm512_castps_pd(pair(v[0], v[1])), _mm512_castps_pd(pair(v[2], v[3])));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
            let quarters = _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
            let halves =
                _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps::<1>(quarters));
            let sums = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
            _mm_storeu_ps(out.as_mut_ptr(), sums);
        }
        out
    }

    #[inline(always)]
    fn sigmoids(numbers: &mut [f32]) {
        for some in numbers.chunks_mut(16) {
            let mask = (u32::MAX >> (32 - some.len())) as __mmask16;
            // SAFETY: only reached through dispatch, which checked the features; the mask has as many lanes as there are numbers.
            unsafe {
                let x = _mm512_maskz_loadu_ps(mask, some.as_ptr());
                _mm512_mask_storeu_ps(some.as_mut_ptr(), mask, Avx512::sigmoid(x));
            }
        }
    }
}
