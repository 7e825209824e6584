//! Whether a process may use AMX: the processor must have it, the system must keep its state, and the process must
//! have asked for room to keep it in.
#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::LazyLock;

/// Tiles with `bf16` and byte products; asks the system once.
pub(super) fn permitted() -> bool {
    static PERMITTED: LazyLock<bool> = LazyLock::new(|| is_present() && mlxcel_platform::tiles::ask());
    *PERMITTED
}

/// The processor's word, and the system's that it keeps the configuration and the tiles.
fn is_present() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const STATES: u64 = 3 << 17;
    let wanted = BF16 | TILE | INT8;
    let features = __cpuid_count(7, 0).edx;
    // SAFETY: levels above AVX2 are only asked about where AVX is, which needs the register to be readable.
    features & wanted == wanted && unsafe { xcr0() } & STATES == STATES
}

#[target_feature(enable = "xsave")]
fn xcr0() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}
