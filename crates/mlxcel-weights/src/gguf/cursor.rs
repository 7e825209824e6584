//! Reads little-endian numbers and strings from bytes that may end anywhere.

use crate::error::{Result, WeightsError};

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Bytes of the whole file, not only of what is left.
    pub(super) fn file_len(&self) -> usize {
        self.bytes.len()
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8]> {
        if length > self.left() {
            let (offset, available) = (self.at, self.left());
            return Err(WeightsError::Truncated { what, offset, needed: length as u64, available });
        }
        let taken = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        Ok(self.take(N, what)?.try_into().expect("take gave N bytes"))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn string(&mut self, what: &'static str) -> Result<String> {
        let length = self.u64(what)?;
        let offset = self.at;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let text = std::str::from_utf8(self.take(length, what)?);
        text.map(str::to_string).map_err(|_| WeightsError::NotUtf8 { what, offset })
    }

    /// A declared count, refused if that many items of at least `smallest` bytes cannot follow: it is safe to
    /// allocate for what this returns.
    pub(super) fn count(&self, declared: u64, smallest: usize, what: &'static str) -> Result<usize> {
        let limit = (self.left() / smallest) as u64;
        if declared > limit {
            return Err(WeightsError::TooMany { what, count: declared, limit });
        }
        Ok(declared as usize)
    }
}
