//! Mapped files: how they are read, giving their memory back, and what happens when one is truncated while it is in use.
#![allow(unsafe_code)]

use std::ops::Range;

use memmap2::Mmap;

/// Lets the system take back the memory that pages of a mapped file were read into; they are read again when needed.
/// Advice that is not taken costs memory and nothing else.
#[cfg(unix)]
pub fn release(map: &Mmap, range: Range<usize>) {
    // SAFETY: the mapping is of a file and cannot be written through, so a page that is dropped comes back the same.
    let _ =
        unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
}

#[cfg(not(unix))]
pub fn release(_map: &Mmap, _range: Range<usize>) {}

/// Says that only those pages are to be read from the disk that are asked for, and none ahead. Where large ones are preferred
/// each is read whole then; what is read ahead may come in smaller ones.
#[cfg(unix)]
pub fn read_alone(map: &Mmap) {
    // Advice that is not taken costs time and nothing else, here and below.
    let _ = map.advise(memmap2::Advice::Random);
}

#[cfg(not(unix))]
pub fn read_alone(_map: &Mmap) {}

/// Takes that back: the memory of a file of which it was said is the first to be had by others.
#[cfg(unix)]
pub fn read_ahead(map: &Mmap) {
    let _ = map.advise(memmap2::Advice::Normal);
}

#[cfg(not(unix))]
pub fn read_ahead(_map: &Mmap) {}

/// Makes a process whose mapped file is truncated while in use say so and exit with code 74 (input/output error), where
/// the default is to be killed by SIGBUS without a word. It replaces any SIGBUS handler. Elsewhere than on Unix it does
/// nothing, since there a mapped file cannot be truncated.
pub fn install_truncation_guard() {
    #[cfg(unix)]
    guard::install();
}

#[cfg(unix)]
mod guard {
    const MESSAGE: &[u8] = b"error: a model file was truncated or became unreadable while in use; \
        fetch or copy it again, and replace files by renaming instead of overwriting them; if it was a file of packed \
        weights, the next start makes it anew\n";
    /// `EX_IOERR` of sysexits.h.
    const EXIT_CODE: libc::c_int = 74;

    pub(super) fn install() {
        // SAFETY: a zeroed sigaction is valid, the handler has the right signature and calls only functions
        // that are safe in a signal handler.
        let status = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as extern "C" fn(libc::c_int) as usize;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
        };
        assert_eq!(status, 0, "SIGBUS can always be handled");
    }

    extern "C" fn on_bus_error(_signal: libc::c_int) {
        // SAFETY: write and _exit are async-signal-safe, and the message is a static buffer of the given
        // length.
        unsafe {
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(EXIT_CODE)
        }
    }
}
