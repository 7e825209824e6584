//! Digests of files and streams, and the check of a file against what it must be.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::{Error, Result, listing::Digest};

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

/// Hashes a file as it arrives, in the way its expected digest asks for.
pub(crate) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
    /// Nothing is known of the bytes.
    Nothing,
}

impl Hasher {
    /// For a file of `size` bytes; git hashes the size before the bytes.
    pub(crate) fn new(expected: Option<&Digest>, size: u64) -> Self {
        match expected {
            Some(Digest::Sha256(_)) => Hasher::Sha256(Sha256::new()),
            Some(Digest::Git(_)) => Hasher::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
            None => Hasher::Nothing,
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Git(hasher) => hasher.update(bytes),
            Hasher::Nothing => {}
        }
    }

    /// The digest in lower-case hex, if one was asked for.
    pub(crate) fn finish(self) -> Option<String> {
        match self {
            Hasher::Sha256(hasher) => Some(hex(&hasher.finalize())),
            Hasher::Git(hasher) => Some(hex(&hasher.finalize())),
            Hasher::Nothing => None,
        }
    }
}

/// The first 12 digits of the SHA-256 of some text: enough to tell names apart.
pub(crate) fn short(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..6])
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

    /// What `printf 'hello\n' | git hash-object --stdin` prints.
    #[test]
    fn a_git_digest_is_what_git_computes() {
        let expected = "ce013625030ba8dba906f756967f9e9ca394464a";
        let mut hasher = Hasher::new(Digest::git(expected).as_ref(), 6);
        hasher.update(b"hel");
        hasher.update(b"lo\n");
        assert_eq!(hasher.finish().as_deref(), Some(expected));
    }
}
