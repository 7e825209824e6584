//! One file per family of kernels. A kernel reads operands through their layouts and fills row-major results; it
//! neither allocates results nor knows the graph around it.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod copy;
pub(crate) mod dot;
pub(crate) mod elementwise;
pub(crate) mod index;
pub(crate) mod linear;
pub(crate) mod lines;
pub(crate) mod norm;
pub(crate) mod order;
pub(crate) mod packed;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod rope;

/// Asks for some bytes that are needed soon.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn prefetch(from: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        let line = from.wrapping_add(line * 64);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: whatever is there, asking for it does nothing else.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as on the other machines.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, readonly, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}
