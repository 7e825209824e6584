//! Aligned, zeroed memory that reports when it cannot be had, and a pool of it for short-lived copies. Knows nothing
//! of tensors.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use mlxcel_engine::EngineError;

/// Every buffer begins at a multiple of this: a cache line and the widest vector.
const ALIGNMENT: usize = 64;

/// Owned bytes, zero at first. Large ones cost nothing until they are touched.
pub(crate) struct Buffer {
    block: NonNull<u8>,
    /// What the allocator gave, with room to align.
    layout: Layout,
    start: usize,
    len: usize,
}

// SAFETY: a buffer owns its memory, like a boxed slice.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn zeroed(len: usize, what: &str) -> Result<Self, EngineError> {
        let refuse = || EngineError::OutOfMemory { what: what.to_string(), bytes: len };
        // Asking for more alignment than the allocator's own would make it clear the memory by hand.
        let layout = len.checked_add(ALIGNMENT).and_then(|n| Layout::from_size_align(n, 1).ok());
        let layout = layout.ok_or_else(refuse)?;
        // SAFETY: the layout is not empty.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refuse)?;
        let start = block.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        Ok(Buffer { block, layout, start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte. Whoever writes through it answers for nobody else reading there.
    pub(crate) fn ptr(&self) -> *mut u8 {
        // SAFETY: `start` is less than the spare room of the block.
        unsafe { self.block.as_ptr().add(self.start) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block holds `len` initialised bytes from its start, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the block came from the allocator with this layout.
        unsafe { dealloc(self.block.as_ptr(), self.layout) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// Buffers that are borrowed for the length of one op and kept for the next.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Buffer>>);

/// A borrowed buffer; goes back to its pool.
#[derive(Debug)]
pub(crate) struct Scratch<'p> {
    pool: &'p Pool,
    buffer: Option<Buffer>,
}

impl Pool {
    /// At least `len` bytes of whatever was there before.
    pub(crate) fn take(&self, len: usize) -> Result<Scratch<'_>, EngineError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let best = (0..kept.len()).filter(|&i| kept[i].len() >= len).min_by_key(|&i| kept[i].len());
        let buffer = match best {
            Some(i) => kept.swap_remove(i),
            None => {
                kept.pop();
                Buffer::zeroed(len.next_power_of_two(), "scratch memory")?
            }
        };
        Ok(Scratch { pool: self, buffer: Some(buffer) })
    }
}

impl Scratch<'_> {
    pub(crate) fn buffer(&mut self) -> &mut Buffer {
        self.buffer.as_mut().expect("taken only when dropped")
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let mut kept = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(self.buffer.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero_whatever_their_size() {
        for len in [0, 1, 63, 64, 1000] {
            let mut b = Buffer::zeroed(len, "a test").unwrap();
            assert_eq!(b.ptr().addr() % ALIGNMENT, 0);
            assert_eq!(b.bytes_mut(), vec![0; len]);
        }
    }

    #[test]
    fn memory_that_does_not_exist_is_an_error() {
        assert!(matches!(Buffer::zeroed(usize::MAX / 2, "a test"), Err(EngineError::OutOfMemory { .. })));
    }

    #[test]
    fn a_pool_hands_the_same_memory_out_again() {
        let pool = Pool::default();
        let first = pool.take(100).unwrap().buffer().ptr();
        assert_eq!(pool.take(90).unwrap().buffer().ptr(), first);
    }
}
