//! A cheap handle on a range of bytes, in a mapped file or in memory. It does not know what the bytes mean.

use std::ops::{Deref, Range};
use std::sync::Arc;

use mlxcel_platform::large_pages;

use crate::mapped::{Mapping, Origin};

/// Owned buffers begin at a multiple of this, so that a kernel may use aligned loads.
const ALIGNMENT: usize = 64;

/// A range of a mapped file or of an owned buffer; a clone shares it.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

#[derive(Clone)]
enum Owner {
    Mapped(Arc<Mapping>),
    Owned(Arc<Vec<u8>>),
}

impl Bytes {
    /// Panics if the range exceeds the file, which parsers check before.
    pub(crate) fn mapped(mapping: Arc<Mapping>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= mapping.len(), "{range:?} exceeds the mapped file");
        Bytes { owner: Owner::Mapped(mapping), range }
    }

    /// The pieces one after the other, copied to an aligned buffer.
    pub fn copied(pieces: &[&[u8]]) -> Self {
        Self::filled(pieces.iter().map(|p| p.len()).sum(), |mut rest| {
            for piece in pieces {
                let (head, tail) = rest.split_at_mut(piece.len());
                head.copy_from_slice(piece);
                rest = tail;
            }
        })
    }

    /// An aligned buffer of zeros, in large pages where there are any, after `fill` has written to it.
    pub fn filled(length: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut buffer = vec![0; length + ALIGNMENT - 1];
        large_pages::prefer(buffer.as_ptr(), buffer.len());
        let start = buffer.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        fill(&mut buffer[start..start + length]);
        Bytes { owner: Owner::Owned(Arc::new(buffer)), range: start..start + length }
    }

    /// A part of this range, counted from its start. Panics if it exceeds it.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.range.len(),
            "{range:?} of {}",
            self.range.len()
        );
        let start = self.range.start + range.start;
        Bytes { owner: self.owner.clone(), range: start..start + range.len() }
    }

    /// Whether the bytes lie in a file and cost no memory of their own.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Mapped(_))
    }

    /// The file that the bytes lie in, and where they begin there.
    pub fn origin(&self) -> Option<(&Origin, usize)> {
        match &self.owner {
            Owner::Mapped(mapping) => mapping.origin().map(|origin| (origin, self.range.start)),
            Owner::Owned(_) => None,
        }
    }

    /// Says that the bytes will hardly be read again, so that the memory of a file's pages can be had by others.
    pub fn release(&self) {
        if let Owner::Mapped(mapping) = &self.owner {
            mapping.release(self.range.clone());
        }
    }

    /// The same bytes at an address that is a multiple of `alignment` (at most 64), copied only if need be.
    pub(crate) fn aligned(self, alignment: usize) -> Self {
        if self.as_ptr().addr().is_multiple_of(alignment) { self } else { Bytes::copied(&[&self]) }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::Mapped(mapping) => &mapping[self.range.clone()],
            Owner::Owned(buffer) => &buffer[self.range.clone()],
        }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.is_mapped() { "mapped" } else { "owned" };
        write!(f, "{} {place} bytes", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_pieces_are_joined_at_an_aligned_address() {
        for length in [0, 1, 63, 64, 1000] {
            let piece: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let bytes = Bytes::copied(&[&piece, b"end"]);
            assert_eq!(bytes.as_ptr().addr() % ALIGNMENT, 0);
            assert_eq!(&bytes[..length], &piece[..]);
            assert_eq!(&bytes[length..], b"end");
        }
    }

    #[test]
    fn bytes_of_a_file_know_where_they_come_from() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let bytes = Bytes::mapped(Mapping::open(&path).unwrap(), 2..8).slice(1..3);
        let (origin, at) = bytes.origin().unwrap();
        assert_eq!((&origin.path, at), (&path.canonicalize().unwrap(), 3));
        assert_eq!(origin.stamp, mlxcel_platform::files::stamp(&std::fs::metadata(&path).unwrap()));
        assert_eq!(Bytes::copied(&[&bytes]).origin(), None);
    }

    #[test]
    fn a_slice_of_a_slice_counts_from_the_inner_start() {
        let bytes = Bytes::copied(&[b"0123456789"]);
        assert_eq!(&*bytes.slice(2..8).slice(1..3), b"34");
    }
}
