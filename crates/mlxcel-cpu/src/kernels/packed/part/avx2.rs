//! Eight rows with AVX2: products of bytes in pairs, or of four at once where the machine has AVX-VNNI.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Part;
use crate::simd;

pub(super) struct Avx2;
pub(super) struct Avx2Vnni;

/// What both have alike.
macro_rules! shared {
    () => {
        type Floats = simd::Avx2;
        type Sums = __m256i;
        type Bytes = __m256i;
        const TOKENS: usize = 2;
        const MANY: usize = 4;
        const PANELS: usize = 1;

        #[inline(always)]
        unsafe fn zero() -> __m256i {
            // SAFETY: the caller has the instructions.
            unsafe { _mm256_setzero_si256() }
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> __m256i {
            // SAFETY: as the caller promises.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut u8, bytes: __m256i) {
            // SAFETY: as the caller promises.
            unsafe { _mm256_storeu_si256(to.cast(), bytes) }
        }

        #[inline(always)]
        unsafe fn bits(bytes: __m256i, shift: u32, mask: u8) -> __m256i {
            // SAFETY: the caller has the instructions.
            unsafe {
                let shifted = match shift {
                    0 => bytes,
                    2 => _mm256_srli_epi16::<2>(bytes),
                    4 => _mm256_srli_epi16::<4>(bytes),
                    _ => _mm256_srli_epi16::<6>(bytes),
                };
                _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
            }
        }

        #[inline(always)]
        unsafe fn with_bit(bytes: __m256i, mask: *const u8, bit: u8) -> __m256i {
            // SAFETY: as the caller promises.
            unsafe { _mm256_or_si256(bytes, _mm256_and_si256(spread(mask), _mm256_set1_epi8(bit as i8))) }
        }

        #[inline(always)]
        unsafe fn lookup(table: &[u8; 16], bytes: __m256i) -> __m256i {
            // SAFETY: the table has sixteen bytes, and the caller the instructions.
            unsafe {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                _mm256_shuffle_epi8(table, bytes)
            }
        }

        #[inline(always)]
        unsafe fn joined(high: __m256i, low: __m256i) -> __m256i {
            // SAFETY: the caller has the instructions.
            unsafe { _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low) }
        }

        #[inline(always)]
        unsafe fn floats(sums: __m256i) -> __m256 {
            // SAFETY: the caller has the instructions.
            unsafe { _mm256_cvtepi32_ps(sums) }
        }
    };
}

impl Part for Avx2 {
    shared!();
    const IN_PAIRS: bool = true;

    #[inline(always)]
    unsafe fn dot_in_pairs(pairs: __m256i, codes: __m256i, four: *const i8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe {
            let four = _mm256_set1_epi32(four.cast::<i32>().read_unaligned());
            _mm256_add_epi16(pairs, _mm256_maddubs_epi16(codes, four))
        }
    }

    #[inline(always)]
    unsafe fn with_pairs(sums: __m256i, pairs: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))) }
    }

    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(sums: __m256i, codes: __m256i, four: *const i8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe {
            debug_assert!(SMALL, "others are multiplied as words");
            let four = _mm256_set1_epi32(four.cast::<i32>().read_unaligned());
            // Two products of 127 and 128 still fit sixteen bits.
            let pairs = _mm256_maddubs_epi16(codes, four);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn words(codes: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller has the instructions.
        unsafe { [_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16::<8>(codes)] }
    }

    #[inline(always)]
    unsafe fn dot_of_words(sums: __m256i, words: __m256i, two: *const i8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe {
            let two = _mm256_set1_epi32(two.cast::<i32>().read_unaligned());
            _mm256_add_epi32(sums, _mm256_madd_epi16(words, two))
        }
    }
}

impl Part for Avx2Vnni {
    shared!();

    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(sums: __m256i, codes: __m256i, four: *const i8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe {
            let four = _mm256_set1_epi32(four.cast::<i32>().read_unaligned());
            _mm256_dpbusd_avx_epi32(sums, codes, four)
        }
    }
}

/// All bits of the bytes whose bit in a mask of 32 is set.
///
/// # Safety
/// The mask must be readable; the caller must have AVX2.
#[inline(always)]
unsafe fn spread(mask: *const u8) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe {
        let all = _mm256_set1_epi32(mask.cast::<i32>().read_unaligned());
        // A lane of sixteen bytes takes two bytes of the mask, eight times each.
        let order =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(all, order), bit), bit)
    }
}
