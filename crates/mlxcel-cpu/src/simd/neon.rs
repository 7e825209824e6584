//! Four lanes with NEON, which every 64-bit ARM has.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use super::{Simd, SimdLevel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon;

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
    fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vmulq_f32(a, b) }
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
