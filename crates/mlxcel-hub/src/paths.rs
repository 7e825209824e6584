//! Names that came from outside and are to become paths: which of them are harmless on every platform.

use std::path::{Path, PathBuf};

/// The longest path that is accepted from a repository or an archive, in bytes.
const PATH_BYTES_MAX: usize = 1024;
const PART_BYTES_MAX: usize = 255;

/// Names that Windows gives to devices, in any folder and with any extension.
const DEVICES: [&str; 4] = ["CON", "PRN", "AUX", "NUL"];

/// Whether a `/`-separated path from outside stays below the folder it is joined to.
pub(crate) fn is_within(path: &str) -> bool {
    path.len() <= PATH_BYTES_MAX && path.split('/').all(is_part)
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
