//! Whether a shared library is all there. The loader maps a file without looking at its length, and a process that
//! then reads beyond the end dies; so the extents that an ELF file declares are compared with its length first.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// The head of a 64-bit ELF file, and one of its program headers.
const HEAD: usize = 64;
const SEGMENT: usize = 56;

/// Why the file cannot be loaded, if that can be told. Files that are not ELF are left to the loader.
pub(crate) fn damage(path: &Path) -> Option<String> {
    let read = || -> std::io::Result<Option<String>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut head = [0; HEAD];
        if file.read_exact(&mut head).is_err() {
            return Ok(Some(format!("it has only {length} bytes")));
        }
        if head[..5] != *b"\x7fELF\x02" || head[5] != 1 {
            return Ok(None);
        }
        let word = |at: usize| number(&head[at..at + 8]);
        let half = |at: usize| number(&head[at..at + 2]);
        let mut ends = vec![end(word(40), half(58).saturating_mul(half(60)))];
        for i in 0..half(56) {
            let mut segment = [0; SEGMENT];
            file.seek(SeekFrom::Start(end(word(32), i * half(54))))?;
            if file.read_exact(&mut segment).is_err() {
                return Ok(Some(format!("it ends after {length} bytes, within its headers")));
            }
            ends.push(end(number(&segment[8..16]), number(&segment[32..40])));
        }
        let needed = ends.into_iter().max().unwrap_or(0);
        Ok((needed > length).then(|| format!("it has {length} bytes of {needed}")))
    };
    read().unwrap_or_else(|e| Some(e.to_string()))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn end(start: u64, size: u64) -> u64 {
    start.saturating_add(size)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_file_cut_anywhere_is_noticed_and_a_whole_one_is_not() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library.so");
        for share in [0, 1, 300, 700, 999] {
            std::fs::write(&path, &whole[..whole.len() * share / 1000]).unwrap();
            assert!(damage(&path).is_some(), "{share} thousandths of a file");
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(damage(&path), None);
        assert!(damage(&folder.path().join("absent.so")).is_some());
    }
}
