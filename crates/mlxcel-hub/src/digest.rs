//! SHA-256 of files and streams, and the check of a file against its pin.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use sha2::{Digest as _, Sha256};

use crate::{Error, Result};

const BUFFER_BYTES: usize = 256 * 1024;

/// Copies `from` into `to` and returns the number of bytes with their SHA-256 in lower-case hex.
pub(crate) fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total = 0;
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        total += count as u64;
    }
    Ok((total, hex(&hasher.finalize())))
}

/// Checks the size, then the digest, of a file that arrived from outside.
pub(crate) fn verify(path: &Path, what: &str, size: u64, sha256: &str) -> Result<()> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let got = file.metadata().map_err(Error::io("look at", path))?.len();
    check_size(what, size, got)?;
    let (_, digest) = copy(&mut file, &mut io::sink()).map_err(Error::io("read", path))?;
    check_digest(what, sha256, &digest)
}

/// Compares two sizes.
pub(crate) fn check_size(what: &str, expected: u64, got: u64) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::WrongSize { what: what.into(), expected, got }) }
}

/// Compares two digests.
pub(crate) fn check_digest(what: &str, expected: &str, got: &str) -> Result<()> {
    if expected.eq_ignore_ascii_case(got) {
        return Ok(());
    }
    Err(Error::WrongDigest { what: what.into(), expected: expected.into(), got: got.into() })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        write!(out, "{byte:02x}").expect("writing to a String cannot fail");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one-block example of FIPS 180-4.
    #[test]
    fn the_digest_is_the_standards_example() {
        let mut copied = Vec::new();
        let (count, digest) = copy(&mut &b"abc"[..], &mut copied).unwrap();
        assert_eq!((count, copied.as_slice()), (3, &b"abc"[..]));
        assert_eq!(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
