//! Memory in large pages, so that a stream of reads meets fewer page tables.
#![allow(unsafe_code)]

/// Bytes of a large page, and what one begins at a multiple of.
pub const SIZE: usize = 2 << 20;

/// Asks the system for large pages under this memory, which may be uninitialised. It may decline; elsewhere than on Linux
/// nothing is asked.
#[cfg(target_os = "linux")]
pub fn prefer(start: *const u8, len: usize) {
    let first = start.addr().next_multiple_of(SIZE);
    let end = (start.addr() + len) / SIZE * SIZE;
    if first < end {
        // SAFETY: the advice changes no contents, whatever lies there, and an address that is not mapped is refused.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(first), end - first, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub fn prefer(_start: *const u8, _len: usize) {}
