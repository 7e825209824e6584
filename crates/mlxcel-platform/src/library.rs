//! Libraries that are loaded at run time.
#![allow(unsafe_code)]

use std::path::Path;

use libloading::Library;

/// Opens a library so that those loaded after it find its symbols, where a system needs to be asked for that.
///
/// # Safety
/// The library's initialisers run, and must not harm the process.
#[cfg(unix)]
pub unsafe fn open_for_all(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix;
    // SAFETY: the caller vouches for the initialisers.
    unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_GLOBAL) }.map(Library::from)
}

/// Opens a library; what it needs is also looked for beside it.
///
/// # Safety
/// The library's initialisers run, and must not harm the process.
#[cfg(windows)]
pub unsafe fn open_for_all(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::windows;
    // Looking beside the library needs its whole path.
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let flags = windows::LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | windows::LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR;
    // SAFETY: the caller vouches for the initialisers.
    unsafe { windows::Library::load_with_flags(whole, flags) }.map(Library::from)
}
