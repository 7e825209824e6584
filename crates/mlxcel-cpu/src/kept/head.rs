//! The head of a file of packed weights: `[magic 16][identity 32][length 8][hash of the contents 8][length of the path 8][path]`,
//! zeros, and at the end of its first 4096 bytes a hash of those before. Zeros fill it up to a large page.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use mlxcel_platform::large_pages;
use xxhash_rust::xxh3::xxh3_64;

use super::plan::Plan;
use crate::context::Context;

/// Bytes before the contents.
pub(super) const BYTES: usize = large_pages::SIZE;

/// Bytes that say something.
const SAID: usize = 4096;

const MAGIC: &[u8; 16] = b"mlxcel packed 1\n";

/// Bytes of contents that are hashed at a time, each time by one thread.
const HASHED_AT_ONCE: usize = large_pages::SIZE;

/// What a file says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) identity: [u8; 32],
    /// Bytes of the contents.
    pub(super) len: u64,
    pub(super) hash: u64,
    /// The file that they were packed from, for people and for clearing up. Empty if it has no name in UTF-8, or a longer one
    /// than fits.
    pub(super) source: PathBuf,
}

impl Head {
    pub(super) fn of(plan: &Plan, hash: u64) -> Self {
        let source = plan.source.clone();
        Head { identity: plan.identity, len: plan.len as u64, hash, source }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        const FIXED: usize = 16 + 32 + 3 * 8;
        let fits = |path: &&str| path.len() <= SAID - FIXED - 8;
        let source = self.source.to_str().filter(fits).unwrap_or_default().as_bytes();
        let numbers = [self.len, self.hash, source.len() as u64].map(u64::to_le_bytes);
        let mut bytes = [MAGIC, &self.identity[..], numbers.as_flattened(), source].concat();
        bytes.resize(SAID - 8, 0);
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes.resize(BYTES, 0);
        bytes
    }

    /// The head at the beginning of a file; `None` if that is none.
    pub(super) fn read(file: &File) -> io::Result<Option<Self>> {
        let mut bytes = Vec::with_capacity(SAID);
        file.take(SAID as u64).read_to_end(&mut bytes)?;
        Ok(Self::parse(&bytes))
    }

    /// The head of the file at a path.
    pub(super) fn at(path: &Path) -> Option<Self> {
        // Opening a pipe would block.
        std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        Self::read(&File::open(path).ok()?).ok()?
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (said, hash) = bytes.split_last_chunk::<8>()?;
        let (magic, rest) = said.split_first_chunk::<16>()?;
        let (identity, mut rest) = rest.split_first_chunk::<32>()?;
        let mut number = || {
            let (number, after) = rest.split_first_chunk::<8>()?;
            rest = after;
            Some(u64::from_le_bytes(*number))
        };
        let (len, contents, path) = (number()?, number()?, number()?);
        let source = std::str::from_utf8(rest.get(..usize::try_from(path).ok()?)?).ok()?;
        let is_whole = magic == MAGIC && xxh3_64(said) == u64::from_le_bytes(*hash);
        is_whole.then(|| Head { identity: *identity, len, hash: contents, source: source.into() })
    }
}

/// The hash of contents, made of those of their parts by all threads.
pub(super) fn hash(ctx: &Context, contents: &[u8]) -> u64 {
    let mut parts = vec![0; contents.len().div_ceil(HASHED_AT_ONCE)];
    ctx.threads.chunks(&mut parts, 1, |i, part| {
        let end = contents.len().min((i + 1) * HASHED_AT_ONCE);
        part[0] = hash_of_part(&contents[i * HASHED_AT_ONCE..end]);
    });
    hash_of_parts(&parts)
}

/// The parts of so many bytes of contents.
pub(super) fn parts(contents: &[u8]) -> impl Iterator<Item = &[u8]> {
    contents.chunks(HASHED_AT_ONCE)
}

pub(super) fn hash_of_part(part: &[u8]) -> u64 {
    xxh3_64(part)
}

pub(super) fn hash_of_parts(parts: &[u64]) -> u64 {
    let bytes: Vec<u8> = parts.iter().flat_map(|hash| hash.to_le_bytes()).collect();
    xxh3_64(&bytes)
}
