//! Opening the shared libraries that are found at run time: plugins of PJRT, IREE's compiler. What is in them is not
//! known here.
#![allow(unsafe_code)]

use std::path::Path;

use libloading::Library;

use crate::elf;
use crate::error::XlaError;

/// Loads a library that is all there.
pub(crate) fn open(path: &Path) -> Result<Library, XlaError> {
    let fail = |reason| XlaError::Load { path: path.to_path_buf(), reason };
    if let Some(reason) = elf::damage(path) {
        return Err(fail(reason));
    }
    // SAFETY: loading runs the library's initialisers; it is the one that the user or the cache names.
    unsafe { Library::new(path) }.map_err(|e| fail(e.to_string()))
}
