//! Names that came from outside and are to become paths: which of them are harmless on every platform.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// The longest path that is accepted from a repository or an archive, in bytes.
const PATH_BYTES_MAX: usize = 1024;
const PART_BYTES_MAX: usize = 255;

/// Names that Windows gives to devices, in any folder and with any extension.
const DEVICES: [&str; 4] = ["CON", "PRN", "AUX", "NUL"];

/// Whether a `/`-separated path from outside stays below the folder it is joined to.
pub(crate) fn is_within(path: &str) -> bool {
    path.len() <= PATH_BYTES_MAX && path.split('/').all(is_part)
}

/// Whether a path tries to leave the folder it is joined to, or to be no path at all.
pub(crate) fn climbs(path: &str) -> bool {
    path.starts_with('/') || path.contains(['\0', '\\']) || path.split('/').any(|part| part == "..")
}

/// Whether `part` is one ordinary path component on every platform.
pub(crate) fn is_part(part: &str) -> bool {
    let is_hostile =
        |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '<' | '>' | '"' | '|' | '?' | '*');
    !part.is_empty()
        && part.len() <= PART_BYTES_MAX
        && part != "."
        && part != ".."
        && !part.chars().any(is_hostile)
        && !part.ends_with([' ', '.'])
        && !is_device(part)
}

/// `NUL`, `com1.txt` and their like.
fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let is_numbered = |prefix: &str| {
        stem.strip_prefix(prefix).is_some_and(|n| n.len() == 1 && matches!(n.as_bytes()[0], b'1'..=b'9'))
    };
    DEVICES.contains(&stem.as_str()) || is_numbered("COM") || is_numbered("LPT")
}

/// Joins a path that [`is_within`] accepted, by its parts.
pub(crate) fn join(folder: &Path, path: &str) -> PathBuf {
    path.split('/').fold(folder.to_owned(), |folder, part| folder.join(part))
}

/// Whether a file of this size is at `path` below `root`, reached without following a link.
pub(crate) fn is_whole(root: &Path, path: &str, size: u64) -> bool {
    let mut at = root.to_owned();
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        at.push(part);
        let is_right = fs::symlink_metadata(&at).is_ok_and(|there| match parts.peek() {
            Some(_) => there.is_dir(),
            None => there.is_file() && there.len() == size,
        });
        if !is_right {
            return false;
        }
    }
    true
}

/// Makes the folders above `path` below `root` and returns the whole path. What is in their way, a link above all, is
/// removed and not followed.
pub(crate) fn create_parents(root: &Path, path: &str) -> Result<PathBuf> {
    match path.rsplit_once('/') {
        Some((folders, name)) => Ok(create_folder(root, folders)?.join(name)),
        None => Ok(root.join(path)),
    }
}

/// Makes the folder `path` below `root`, in the same manner.
pub(crate) fn create_folder(root: &Path, path: &str) -> Result<PathBuf> {
    let mut at = root.to_owned();
    for part in path.split('/') {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(there) if there.is_dir() => continue,
            Ok(_) => fs::remove_file(&at).map_err(Error::io("clear away", &at))?,
            Err(_) => {}
        }
        match fs::create_dir(&at) {
            // Another thread was faster.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => made.map_err(Error::io("create the folder", &at))?,
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_paths_stay_within() {
        for path in
            ["config.json", "1_Pooling/config.json", ".gitattributes", "a b/ü.gguf", "command.txt", "com0"]
        {
            assert!(is_within(path), "{path}");
        }
    }

    #[test]
    fn climbing_is_told_from_what_some_platform_cannot_hold() {
        assert!(["..", "a/../b", "/a", "\\\\host\\a", "a\0"].iter().all(|path| climbs(path)));
        assert!(["a:b", "..a", "aux", "a/b?"].iter().all(|path| !climbs(path)));
    }

    #[test]
    fn hostile_paths_are_refused() {
        let long = "x".repeat(256);
        let deep = "d/".repeat(600) + "x";
        let hostile = [
            "",
            ".",
            "..",
            "../x",
            "a/../x",
            "a/..",
            "/etc/passwd",
            "a//b",
            "a/",
            "\\\\host\\x",
            "a\\..\\b",
            "C:/x",
            "C:x",
            "x:stream",
            "a\0b",
            "a\nb",
            "NUL",
            "nul.json",
            "a/COM1",
            "lpt9.txt",
            "x.",
            "x ",
            &long,
            &deep,
        ];
        for path in hostile {
            assert!(!is_within(path), "{path:?}");
        }
    }
}
