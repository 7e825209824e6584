//! Sixteen rows with AVX-512: products of bytes in pairs, or of four at once where the machine has VNNI.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Part;
use crate::simd;

pub(super) struct Avx512;
pub(in super::super) struct Avx512Vnni;

/// What both have alike.
macro_rules! shared {
    () => {
        type Floats = simd::Avx512;
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
        unsafe fn joined(high: __m512i, low: __m512i) -> __m512i {
            // SAFETY: the caller has the instructions.
            unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low) }
        }

        #[inline(always)]
        unsafe fn floats(sums: __m512i) -> __m512 {
            // SAFETY: the caller has the instructions.
            unsafe { _mm512_cvtepi32_ps(sums) }
        }
    };
}

impl Part for Avx512 {
    shared!();
    const IN_PAIRS: bool = true;

    #[inline(always)]
    unsafe fn dot_in_pairs(pairs: __m512i, codes: __m512i, four: *const i8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe {
            let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
            _mm512_add_epi16(pairs, _mm512_maddubs_epi16(codes, four))
        }
    }

    #[inline(always)]
    unsafe fn with_pairs(sums: __m512i, pairs: __m512i) -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))) }
    }

    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(sums: __m512i, codes: __m512i, four: *const i8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe {
            debug_assert!(SMALL, "others are multiplied as words");
            let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
            // Two products of 127 and 128 still fit sixteen bits.
            let pairs = _mm512_maddubs_epi16(codes, four);
            _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn words(codes: __m512i) -> [__m512i; 2] {
        // SAFETY: the caller has the instructions.
        unsafe { [_mm512_and_si512(codes, _mm512_set1_epi16(255)), _mm512_srli_epi16::<8>(codes)] }
    }

    #[inline(always)]
    unsafe fn dot_of_words(sums: __m512i, words: __m512i, two: *const i8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe {
            let two = _mm512_set1_epi32(two.cast::<i32>().read_unaligned());
            _mm512_add_epi32(sums, _mm512_madd_epi16(words, two))
        }
    }
}

impl Part for Avx512Vnni {
    shared!();

    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(sums: __m512i, codes: __m512i, four: *const i8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe {
            let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
            _mm512_dpbusd_epi32(sums, codes, four)
        }
    }
}
