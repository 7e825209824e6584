//! Four lanes with NEON, which every 64-bit ARM has.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use half::f16;
use mlxcel_engine::weights::quant::{bf16_to_f32, f16_to_f32};

use super::{Simd, SimdLevel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon;

#[inline(always)]
fn vector(v: [f32; 4]) -> float32x4_t {
    // SAFETY: the array has four numbers.
    unsafe { vld1q_f32(v.as_ptr()) }
}

impl Simd for Neon {
    type F = float32x4_t;
    const LEVEL: SimdLevel = SimdLevel::Neon;
    const LANES: usize = 4;
    const TOKENS: usize = 6;

    #[inline(always)]
    fn splat(x: f32) -> float32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        // SAFETY: the caller promises four readable numbers.
        unsafe { vld1q_f32(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        // SAFETY: the caller promises four writable numbers.
        unsafe { vst1q_f32(p, v) }
    }

    #[inline(always)]
    fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn from_u8(p: *const u8) -> float32x4_t {
        // SAFETY: the caller promises four readable bytes.
        let bytes: [u8; 4] = unsafe { p.cast::<[u8; 4]>().read_unaligned() };
        vector(bytes.map(f32::from))
    }

    #[inline(always)]
    unsafe fn from_i8(p: *const u8) -> float32x4_t {
        // SAFETY: the caller promises four readable bytes.
        let bytes: [i8; 4] = unsafe { p.cast::<[i8; 4]>().read_unaligned() };
        vector(bytes.map(f32::from))
    }

    #[inline(always)]
    unsafe fn from_bf16(p: *const u8) -> float32x4_t {
        // SAFETY: the caller promises four readable halves.
        let halves: [u16; 4] = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        vector(halves.map(bf16_to_f32))
    }

    #[inline(always)]
    unsafe fn from_f16(p: *const u8) -> float32x4_t {
        // SAFETY: the caller promises four readable halves.
        let halves: [u16; 4] = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        vector(halves.map(f16_to_f32))
    }

    #[inline(always)]
    unsafe fn to_f16(p: *mut u8, v: float32x4_t) {
        let mut numbers = [0.0; 4];
        // SAFETY: the array has four places, and the caller promises four writable halves.
        unsafe {
            vst1q_f32(numbers.as_mut_ptr(), v);
            p.cast::<[u16; 4]>().write_unaligned(numbers.map(|x| f16::from_f32(x).to_bits()));
        }
    }

    #[inline(always)]
    fn half(bits: u16) -> f32 {
        f16_to_f32(bits)
    }

    #[inline(always)]
    fn lookup(table: &[u8; 16], codes: [u8; 16]) -> [u8; 16] {
        codes.map(|c| table[(c & 15) as usize])
    }

    #[inline(always)]
    fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    fn swapped(a: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vrev64q_f32(a) }
    }

    #[inline(always)]
    fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn sums(v: [float32x4_t; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        // SAFETY: NEON is part of the architecture; `out` has four places.
        unsafe {
            let sums = vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]));
            vst1q_f32(out.as_mut_ptr(), sums);
        }
        out
    }
}
