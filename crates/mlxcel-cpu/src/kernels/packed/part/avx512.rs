//! Sixteen rows with AVX-512 VNNI.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Part;
use crate::simd::Avx512;

pub(in super::super) struct Avx512Vnni;

impl Part for Avx512Vnni {
    type Floats = Avx512;
    type Sums = __m512i;
    type Bytes = __m512i;
    const TOKENS: usize = 4;
    const MANY: usize = 8;
    const PANELS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, bytes: __m512i) {
        // SAFETY: as the caller promises.
        unsafe { _mm512_storeu_si512(to.cast(), bytes) }
    }

    #[inline(always)]
    unsafe fn bits(bytes: __m512i, shift: u32, mask: u8) -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe {
            let shifted = match shift {
                0 => bytes,
                2 => _mm512_srli_epi16::<2>(bytes),
                4 => _mm512_srli_epi16::<4>(bytes),
                _ => _mm512_srli_epi16::<6>(bytes),
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    unsafe fn with_bit(bytes: __m512i, mask: *const u8, bit: u8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe {
            let mask = mask.cast::<u64>().read_unaligned();
            _mm512_mask_add_epi8(bytes, mask, bytes, _mm512_set1_epi8(bit as i8))
        }
    }

    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], bytes: __m512i) -> __m512i {
        // SAFETY: the table has sixteen bytes, and the caller the instructions.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, bytes)
        }
    }

    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(sums: __m512i, codes: __m512i, four: *const i8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe {
            let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
            _mm512_dpbusd_epi32(sums, codes, four)
        }
    }

    #[inline(always)]
    unsafe fn joined(high: __m512i, low: __m512i) -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low) }
    }

    #[inline(always)]
    unsafe fn floats(sums: __m512i) -> __m512 {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }
}
