//! Files mapped into memory. The only place of this crate that needs `unsafe`.
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
        mlxcel_platform::mapping::release(&self.0, range);
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
