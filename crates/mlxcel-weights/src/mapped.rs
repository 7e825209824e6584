//! Files mapped into memory. The only place of this crate that needs `unsafe`.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use mlxcel_platform::files;

use crate::error::{Result, WeightsError};

/// A whole file, mapped read-only.
pub(crate) struct Mapping {
    map: Mmap,
    origin: Option<Origin>,
}

/// A file in the state in which it was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The canonical path.
    pub path: PathBuf,
    /// What [`files::stamp`] makes of it, which is another after a change.
    pub stamp: [u64; 6],
}

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
        // The file that is open, whatever has taken its place since; who keeps something of it asks for it.
        let stamp = file.metadata().ok().map(|data| files::stamp(&data));
        let origin = stamp.zip(path.canonicalize().ok()).map(|(stamp, path)| Origin { path, stamp });
        Ok(Arc::new(Mapping { map, origin }))
    }

    /// `None` where the system does not say.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// Lets the system take back the memory that pages of the file are read into; they are read again when needed.
    pub(crate) fn release(&self, range: std::ops::Range<usize>) {
        mlxcel_platform::mapping::release(&self.map, range);
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
