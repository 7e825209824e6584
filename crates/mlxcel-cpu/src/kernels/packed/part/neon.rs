//! Four rows with NEON's dot products of bytes: signed ones, or of unsigned with signed bytes where the machine has
//! I8MM. The compiler has no stable intrinsics for either.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::Part;
use crate::simd::Neon;

pub(super) struct Dot;
pub(super) struct I8mm;

/// What both have alike.
macro_rules! shared {
    () => {
        type Floats = Neon;
        type Sums = int32x4_t;
        type Bytes = uint8x16_t;
        const TOKENS: usize = 2;
        const MANY: usize = 4;
        const PANELS: usize = 1;

        #[inline(always)]
        unsafe fn zero() -> int32x4_t {
            // SAFETY: NEON is part of the architecture.
            unsafe { vdupq_n_s32(0) }
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> uint8x16_t {
            // SAFETY: as the caller promises.
            unsafe { vld1q_u8(from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut u8, bytes: uint8x16_t) {
            // SAFETY: as the caller promises.
            unsafe { vst1q_u8(to, bytes) }
        }

        #[inline(always)]
        unsafe fn bits(bytes: uint8x16_t, shift: u32, mask: u8) -> uint8x16_t {
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let shifted = match shift {
                    0 => bytes,
                    2 => vshrq_n_u8::<2>(bytes),
                    4 => vshrq_n_u8::<4>(bytes),
                    _ => vshrq_n_u8::<6>(bytes),
                };
                vandq_u8(shifted, vdupq_n_u8(mask))
            }
        }

        #[inline(always)]
        unsafe fn with_bit(bytes: uint8x16_t, mask: *const u8, bit: u8) -> uint8x16_t {
            // SAFETY: as the caller promises.
            unsafe {
                let eights = vcombine_u8(vdup_n_u8(*mask), vdup_n_u8(*mask.add(1)));
                let each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
                vorrq_u8(bytes, vandq_u8(vtstq_u8(eights, each), vdupq_n_u8(bit)))
            }
        }

        #[inline(always)]
        unsafe fn lookup(table: &[u8; 16], bytes: uint8x16_t) -> uint8x16_t {
            // SAFETY: the table has sixteen bytes.
            unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), bytes) }
        }

        #[inline(always)]
        unsafe fn joined(high: int32x4_t, low: int32x4_t) -> int32x4_t {
            // SAFETY: NEON is part of the architecture.
            unsafe { vaddq_s32(vshlq_n_s32::<8>(high), low) }
        }

        #[inline(always)]
        unsafe fn floats(sums: int32x4_t) -> float32x4_t {
            // SAFETY: NEON is part of the architecture.
            unsafe { vcvtq_f32_s32(sums) }
        }
    };
}

impl Part for Dot {
    shared!();
    const TELLS_SIZES: bool = true;

    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(sums: int32x4_t, codes: uint8x16_t, four: *const i8) -> int32x4_t {
        // SAFETY: as the caller promises.
        unsafe {
            let four = fours(four);
            if SMALL {
                return signed(sums, codes, four);
            }
            // A byte is twice its upper seven bits and its lowest one, each of which is a signed byte too.
            let half = vshrq_n_u8::<1>(codes);
            let sums = signed(signed(sums, half, four), half, four);
            signed(sums, vandq_u8(codes, vdupq_n_u8(1)), four)
        }
    }
}

impl Part for I8mm {
    shared!();

    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(sums: int32x4_t, codes: uint8x16_t, four: *const i8) -> int32x4_t {
        let mut sums = sums;
        // SAFETY: the caller promises the instruction and four readable bytes.
        unsafe {
            asm!(
                "usdot {sums:v}.4s, {codes:v}.16b, {four:v}.16b",
                sums = inout(vreg) sums, codes = in(vreg) codes, four = in(vreg) fours(four),
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

/// The same four bytes for every row.
#[inline(always)]
unsafe fn fours(four: *const i8) -> int8x16_t {
    // SAFETY: the caller promises four readable bytes.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(four.cast::<i32>().read_unaligned())) }
}

/// # Safety
/// The caller must have the dot products.
#[inline(always)]
unsafe fn signed(sums: int32x4_t, codes: uint8x16_t, four: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {codes:v}.16b, {four:v}.16b",
            sums = inout(vreg) sums, codes = in(vreg) codes, four = in(vreg) four,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
