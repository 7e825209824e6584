//! Four lanes as a plain array, which compilers turn into whatever the architecture has.
#![allow(unsafe_code)]

use half::f16;
use mlxcel_engine::weights::quant::{bf16_to_f32, f16_to_f32};

use super::{Simd, SimdLevel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

#[inline(always)]
fn zip(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type F = [f32; 4];
    const LEVEL: SimdLevel = SimdLevel::Baseline;
    const LANES: usize = 4;
    const TOKENS: usize = 2;

    #[inline(always)]
    fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 4] {
        // SAFETY: the caller promises four readable numbers; an array of `f32` has their alignment.
        unsafe { *p.cast() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller promises four writable numbers.
        unsafe { *p.cast() = v }
    }

    #[inline(always)]
    fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        zip(a, b, |x, y| x + y)
    }

    #[inline(always)]
    unsafe fn from_u8(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller promises four readable bytes.
        let bytes: [u8; 4] = unsafe { p.cast::<[u8; 4]>().read_unaligned() };
        bytes.map(f32::from)
    }

    #[inline(always)]
    unsafe fn from_i8(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller promises four readable bytes.
        let bytes: [i8; 4] = unsafe { p.cast::<[i8; 4]>().read_unaligned() };
        bytes.map(f32::from)
    }

    #[inline(always)]
    unsafe fn from_bf16(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller promises four readable halves.
        let halves: [u16; 4] = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        halves.map(bf16_to_f32)
    }

    #[inline(always)]
    unsafe fn from_f16(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller promises four readable halves.
        let halves: [u16; 4] = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        halves.map(f16_to_f32)
    }

    #[inline(always)]
    unsafe fn to_f16(p: *mut u8, v: [f32; 4]) {
        let halves = v.map(|x| f16::from_f32(x).to_bits());
        // SAFETY: the caller promises four writable halves.
        unsafe { p.cast::<[u16; 4]>().write_unaligned(halves) }
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
    fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        zip(a, b, |x, y| x * y)
    }

    #[inline(always)]
    fn swapped([a, b, c, d]: [f32; 4]) -> [f32; 4] {
        [b, a, d, c]
    }

    #[inline(always)]
    fn fma(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn sums(v: [[f32; 4]; 4]) -> [f32; 4] {
        v.map(|x| (x[0] + x[1]) + (x[2] + x[3]))
    }
}
