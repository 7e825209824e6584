//! Permission to use the processor's tiles (AMX).
#![allow(unsafe_code)]

/// Asks the system to keep tiles for this process, and says whether it does. Linux keeps them only for processes that
/// ask; on other systems they are not used.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes what the process may use, nothing else.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn ask() -> bool {
    false
}
