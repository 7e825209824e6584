//! One vector register of `f32` per instruction set, and the choice among them at run time. A kernel is a generic
//! body behind [`Kernel`]; [`SimdLevel::dispatch`] instantiates it in a function compiled for the level, so that both
//! its intrinsics and its plain loops use the level's instructions.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::math;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;

/// Whether what x86-64 has besides AVX-512 is there in any case.
static SUPPOSED: AtomicBool = AtomicBool::new(false);

/// Which instructions the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SimdLevel {
    /// What every machine of the architecture has.
    Baseline,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// The same with products of bytes (AVX-VNNI).
    Avx2Vnni,
    /// x86-64 with AVX-512 F, BW, VL and DQ besides.
    Avx512,
    /// The same as the last with products of bytes (VNNI).
    Avx512Vnni,
    /// The same with products of pairs of `bf16` numbers (AVX512-BF16).
    Avx512Bf16,
    /// The same with tiles of them (AMX).
    Amx,
    /// 64-bit ARM.
    Neon,
    /// The same with products of signed bytes.
    NeonDot,
    /// The same with products of unsigned and signed bytes.
    NeonI8mm,
}

impl SimdLevel {
    const ALL: [SimdLevel; 10] = [
        SimdLevel::Baseline,
        SimdLevel::Avx2,
        SimdLevel::Avx2Vnni,
        SimdLevel::Avx512,
        SimdLevel::Avx512Vnni,
        SimdLevel::Avx512Bf16,
        SimdLevel::Amx,
        SimdLevel::Neon,
        SimdLevel::NeonDot,
        SimdLevel::NeonI8mm,
    ];

    /// The levels that this machine has, slowest first.
    pub fn available() -> Vec<SimdLevel> {
        Self::ALL.into_iter().filter(|l| l.is_available()).collect()
    }

    /// The fastest level of this machine.
    pub fn best() -> SimdLevel {
        Self::available().pop().expect("the baseline is always there")
    }

    /// From now on all of x86-64's levels are taken for available: by tests that execute themselves what the machine lacks.
    #[doc(hidden)]
    pub fn suppose() {
        SUPPOSED.store(true, Ordering::Relaxed);
    }

    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        let is_supposed = SUPPOSED.load(Ordering::Relaxed);
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        match self {
            SimdLevel::Baseline => true,
            SimdLevel::Avx2 => avx2,
            SimdLevel::Avx2Vnni => avx2 && (is_supposed || is_x86_feature_detected!("avxvnni")),
            SimdLevel::Avx512 => avx512,
            SimdLevel::Avx512Vnni => avx512 && (is_supposed || is_x86_feature_detected!("avx512vnni")),
            SimdLevel::Avx512Bf16 => {
                SimdLevel::Avx512Vnni.is_available()
                    && (is_supposed || is_x86_feature_detected!("avx512bf16"))
            }
            SimdLevel::Amx => SimdLevel::Avx512Bf16.is_available() && (is_supposed || amx::permitted()),
            SimdLevel::Neon | SimdLevel::NeonDot | SimdLevel::NeonI8mm => false,
        }
    }

    #[cfg(target_arch = "aarch64")]
    pub fn is_available(self) -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        match self {
            SimdLevel::Baseline | SimdLevel::Neon => true,
            SimdLevel::NeonDot => has!("dotprod"),
            SimdLevel::NeonI8mm => has!("dotprod") && has!("i8mm"),
            _ => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn is_available(self) -> bool {
        self == SimdLevel::Baseline
    }

    /// Whether weights are packed for products of bytes.
    pub(crate) fn has_byte_products(self) -> bool {
        !matches!(self, SimdLevel::Baseline | SimdLevel::Neon)
    }

    /// Whether there are tiles of `bf16` numbers.
    pub(crate) fn has_tiles(self) -> bool {
        self == SimdLevel::Amx
    }

    /// Runs a kernel compiled for this level.
    #[inline]
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: engines are only made with levels that the machine has.
            SimdLevel::Avx2 | SimdLevel::Avx2Vnni => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 | SimdLevel::Amx => unsafe {
                run_avx512(kernel)
            },
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon | SimdLevel::NeonDot | SimdLevel::NeonI8mm => run_as::<neon::Neon, K>(kernel),
            _ => run_as::<portable::Portable, K>(kernel),
        }
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SimdLevel::Baseline => "baseline",
            SimdLevel::Avx2 => "avx2",
            SimdLevel::Avx2Vnni => "avx2-vnni",
            SimdLevel::Avx512 => "avx512",
            SimdLevel::Avx512Vnni => "avx512-vnni",
            SimdLevel::Avx512Bf16 => "avx512-bf16",
            SimdLevel::Amx => "amx",
            SimdLevel::Neon => "neon",
            SimdLevel::NeonDot => "neon-dotprod",
            SimdLevel::NeonI8mm => "neon-i8mm",
        })
    }
}

/// A generic body. Implementations mark `run` as `#[inline(always)]`.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self) -> Self::Output;
}

// Kernels are functions of their own wherever they are called, also from each other: a function that held several would
// take the compiler minutes.

#[inline(never)]
fn run_as<S: Simd, K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<S>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
#[inline(never)]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx512::Avx512>()
}

/// A vector of `f32`. Methods must only run in kernels that [`SimdLevel::dispatch`] started at their level.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    type F: Copy;
    const LEVEL: SimdLevel;
    /// Numbers in a vector: divides [`LANES_MAX`].
    const LANES: usize;
    /// Tokens that the registers of the product kernel hold beside four rows.
    const TOKENS: usize;

    fn splat(x: f32) -> Self::F;
    /// # Safety
    /// `LANES` numbers must be readable at `p`; it need not be aligned.
    unsafe fn load(p: *const f32) -> Self::F;
    /// # Safety
    /// `LANES` numbers must be writable at `p`; it need not be aligned.
    unsafe fn store(p: *mut f32, v: Self::F);
    fn add(a: Self::F, b: Self::F) -> Self::F;
    fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// Every number where its neighbour was: the first and the second, the third and the fourth.
    fn swapped(a: Self::F) -> Self::F;
    /// `a * b + c`, fused where the level can.
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// # Safety
    /// `LANES` bytes must be readable at `p`.
    unsafe fn from_u8(p: *const u8) -> Self::F;
    /// # Safety
    /// `LANES` bytes must be readable at `p`.
    unsafe fn from_i8(p: *const u8) -> Self::F;
    /// # Safety
    /// `LANES` halves, aligned or not, must be readable at `p`.
    unsafe fn from_bf16(p: *const u8) -> Self::F;
    /// # Safety
    /// `LANES` halves, aligned or not, must be readable at `p`.
    unsafe fn from_f16(p: *const u8) -> Self::F;
    /// The nearest halves.
    ///
    /// # Safety
    /// `LANES` halves, aligned or not, must be writable at `p`.
    unsafe fn to_f16(p: *mut u8, v: Self::F);
    /// One half-precision number.
    fn half(bits: u16) -> f32;
    /// The entry of `table` that the low four bits of each code name.
    fn lookup(table: &[u8; 16], codes: [u8; 16]) -> [u8; 16];
    /// The sums of four vectors, each in one fixed order.
    fn sums(v: [Self::F; 4]) -> [f32; 4];
    /// The sigmoids of numbers in place, each whatever the others are.
    #[inline(always)]
    fn sigmoids(numbers: &mut [f32]) {
        numbers.iter_mut().for_each(|x| *x = math::sigmoid::<Self>(*x));
    }
}

/// The widest vector of any level; rows of operands are padded to it.
pub(crate) const LANES_MAX: usize = 16;
