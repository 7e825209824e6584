//! The vectors that byte products are made of, and the choice among them at run time. A panel has sixteen rows; a
//! part is as many of them as one register has lanes, and a kernel walks over all parts of a panel.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512Vnni;

use super::format::ROWS;
use crate::simd::{Simd, SimdLevel};

/// Four bytes of a few rows in one register, and their sums. Methods must only run in tasks that [`at`] started at a
/// level that has the instructions.
pub(super) trait Part {
    /// The same number of lanes as `f32`.
    type Floats: Simd;
    /// A whole number for every row.
    type Sums: Copy;
    /// Four bytes for every row.
    type Bytes: Copy;
    /// Tokens of more than one limb whose sums registers hold beside the codes.
    const TOKENS: usize;
    /// Tokens of one limb whose sums with [`Self::PANELS`] registers hold beside unpacked codes.
    const MANY: usize;
    /// Panels that many tokens are multiplied with together.
    const PANELS: usize;
    /// Whether products of small codes are cheaper than others.
    const TELLS_SIZES: bool = false;
    /// Whether bytes are multiplied in pairs: those of many tokens with small codes are then the only products of bytes,
    /// since all others are cheaper of words.
    const IN_PAIRS: bool = false;

    unsafe fn zero() -> Self::Sums;
    /// # Safety
    /// Four bytes for every row must be readable.
    unsafe fn load(from: *const u8) -> Self::Bytes;
    /// # Safety
    /// Four bytes for every row must be writable.
    unsafe fn store(to: *mut u8, bytes: Self::Bytes);
    /// The bits of `mask` in every byte after a shift by two, four, six or no bits to the right.
    unsafe fn bits(bytes: Self::Bytes, shift: u32, mask: u8) -> Self::Bytes;
    /// Sets `bit` in the bytes whose bit in the mask is set: half a byte for every row.
    ///
    /// # Safety
    /// The mask must be readable.
    unsafe fn with_bit(bytes: Self::Bytes, mask: *const u8, bit: u8) -> Self::Bytes;
    /// The entries that bytes below sixteen number.
    unsafe fn lookup(table: &[u8; 16], bytes: Self::Bytes) -> Self::Bytes;
    /// Adds the products of every row's four codes with the same four signed bytes. Codes are below 128 if they are
    /// `SMALL`.
    ///
    /// # Safety
    /// Four bytes must be readable at `four`.
    unsafe fn dot<const SMALL: bool>(sums: Self::Sums, codes: Self::Bytes, four: *const i8) -> Self::Sums;
    /// The same for codes below sixteen, with sums of pairs of products in sixteen bits: eight fours fit. Only where bytes
    /// are multiplied [`Self::IN_PAIRS`], as what follows.
    ///
    /// # Safety
    /// As for [`Self::dot`].
    unsafe fn dot_in_pairs(_: Self::Sums, _: Self::Bytes, _: *const i8) -> Self::Sums {
        unreachable!("bytes are not multiplied in pairs")
    }
    /// Adds sums of pairs to sums.
    unsafe fn with_pairs(_: Self::Sums, _: Self::Sums) -> Self::Sums {
        unreachable!("bytes are not multiplied in pairs")
    }
    /// Every row's four codes as words of sixteen bits: the first and the third, the second and the fourth.
    unsafe fn words(_: Self::Bytes) -> [Self::Bytes; 2] {
        unreachable!("bytes are not multiplied in pairs")
    }
    /// Adds the products of every row's two words with the same two signed words.
    ///
    /// # Safety
    /// Four bytes must be readable at `two`.
    unsafe fn dot_of_words(_: Self::Sums, _: Self::Bytes, _: *const i8) -> Self::Sums {
        unreachable!("bytes are not multiplied in pairs")
    }
    /// `256 * high + low`.
    unsafe fn joined(high: Self::Sums, low: Self::Sums) -> Self::Sums;
    unsafe fn floats(sums: Self::Sums) -> <Self::Floats as Simd>::F;
}

/// A generic body, over a part and how many of them a panel has. Implementations mark `run` as `#[inline(always)]`.
pub(super) trait Task {
    type Output;
    /// # Safety
    /// The machine must have the instructions of the part.
    unsafe fn run<P: Part, const N: usize>(self) -> Self::Output;
}

/// What the kernels of a level are like.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Tokens of one limb that are multiplied together, and with how many panels.
    pub(super) many: usize,
    pub(super) panels: usize,
    /// Whether bytes are multiplied in pairs.
    pub(super) in_pairs: bool,
}

impl Shape {
    pub(super) fn of(level: SimdLevel) -> Shape {
        struct Asked;

        impl Task for Asked {
            type Output = Shape;

            #[inline(always)]
            unsafe fn run<P: Part, const N: usize>(self) -> Shape {
                Shape { many: P::MANY, panels: P::PANELS, in_pairs: P::IN_PAIRS }
            }
        }

        // SAFETY: it only tells numbers.
        unsafe { at(level, Asked) }
    }
}

/// Rows of a part.
pub(super) const fn lanes<P: Part>() -> usize {
    <P::Floats as Simd>::LANES
}

/// Runs a task compiled for the level, which must have byte products.
///
/// # Safety
/// The machine must have the level.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn at<T: Task>(level: SimdLevel, task: T) -> T::Output {
    // SAFETY: as the caller promises.
    unsafe {
        match level {
            SimdLevel::Avx2 => with_avx2(task),
            SimdLevel::Avx2Vnni => with_avx2_vnni(task),
            SimdLevel::Avx512 => with_avx512(task),
            SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 | SimdLevel::Amx => with_avx512_vnni(task),
            _ => unreachable!("weights are only packed at levels with byte products"),
        }
    }
}

/// Runs a task compiled for the level, which must have byte products.
///
/// # Safety
/// The machine must have the level.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn at<T: Task>(level: SimdLevel, task: T) -> T::Output {
    // SAFETY: as the caller promises.
    unsafe {
        match level {
            SimdLevel::NeonDot => with_neon_dot(task),
            SimdLevel::NeonI8mm => with_neon_i8mm(task),
            _ => unreachable!("weights are only packed at levels with byte products"),
        }
    }
}

/// No level of other machines has byte products.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) unsafe fn at<T: Task>(_: SimdLevel, _: T) -> T::Output {
    unreachable!("weights are only packed at levels with byte products")
}

/// Runs a task compiled for the simplest level with byte products: what needs no better one is not compiled again for
/// all others.
///
/// # Safety
/// The machine must have some level with byte products.
pub(super) unsafe fn simply<T: Task>(task: T) -> T::Output {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such level has AVX2.
    return unsafe { with_avx2(task) };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every such level has dot products.
    return unsafe { with_neon_dot(task) };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = task;
        unreachable!("weights are only packed at levels with byte products")
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_avx2<T: Task>(task: T) -> T::Output {
    const N: usize = ROWS / lanes::<avx2::Avx2>();
    // SAFETY: this function has the instructions.
    unsafe { task.run::<avx2::Avx2, N>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn with_avx2_vnni<T: Task>(task: T) -> T::Output {
    const N: usize = ROWS / lanes::<avx2::Avx2Vnni>();
    // SAFETY: this function has the instructions.
    unsafe { task.run::<avx2::Avx2Vnni, N>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn with_avx512<T: Task>(task: T) -> T::Output {
    const N: usize = ROWS / lanes::<avx512::Avx512>();
    // SAFETY: this function has the instructions.
    unsafe { task.run::<avx512::Avx512, N>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn with_avx512_vnni<T: Task>(task: T) -> T::Output {
    const N: usize = ROWS / lanes::<Avx512Vnni>();
    // SAFETY: this function has the instructions.
    unsafe { task.run::<Avx512Vnni, N>() }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
unsafe fn with_neon_dot<T: Task>(task: T) -> T::Output {
    const N: usize = ROWS / lanes::<neon::Dot>();
    // SAFETY: this function has the instructions.
    unsafe { task.run::<neon::Dot, N>() }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn with_neon_i8mm<T: Task>(task: T) -> T::Output {
    const N: usize = ROWS / lanes::<neon::I8mm>();
    // SAFETY: this function has the instructions.
    unsafe { task.run::<neon::I8mm, N>() }
}
