//! Files mapped into memory. The only place of this crate that needs `unsafe`: the mapping itself, and the
//! signal handler that turns a file truncated under a mapping into a sentence instead of a silent death.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Result, WeightsError};

/// A whole file, mapped read-only.
pub(crate) struct Mapping(Mmap);

impl Mapping {
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>> {
        // Opening a pipe would block, so what the path names is asked for first.
        let found = std::fs::metadata(path).map_err(|e| WeightsError::io(path, e))?;
        if !found.is_file() {
            return Err(WeightsError::NotAFile { path: path.to_path_buf() });
        }
        let file = File::open(path).map_err(|e| WeightsError::io(path, e))?;
        // SAFETY: the mapping is only read. Another process may still change the file; every length was
        // checked against the mapping, never re-read from it, and decoding accepts any bytes, so changed
        // contents give wrong numbers and nothing worse. Truncation raises SIGBUS, see
        // `install_truncation_guard`.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| WeightsError::io(path, e))?;
        Ok(Arc::new(Mapping(map)))
    }

    /// Lets the system take back the memory that pages of the file are read into; they are read again when needed.
    pub(crate) fn release(&self, range: std::ops::Range<usize>) {
        // SAFETY: the mapping is of a file and never written, so a page that is dropped comes back the same.
        #[cfg(unix)]
        let done = unsafe {
            self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
        // Advice that is not taken costs memory and nothing else.
        #[cfg(unix)]
        drop(done);
        #[cfg(not(unix))]
        drop(range);
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Makes a process whose model file is truncated while in use say so and exit with code 74 (input/output
/// error), where the default is to be killed by SIGBUS without a word. Binaries call it once at their start;
/// it replaces any SIGBUS handler. Elsewhere than on Unix it does nothing, since there a mapped file cannot
/// be truncated.
pub fn install_truncation_guard() {
    #[cfg(unix)]
    guard::install();
}

#[cfg(unix)]
mod guard {
    const MESSAGE: &[u8] = b"error: a model file was truncated or became unreadable while in use; \
        fetch or copy it again, and replace files by renaming instead of overwriting them\n";
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
