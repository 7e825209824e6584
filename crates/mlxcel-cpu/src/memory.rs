//! Aligned, zeroed memory that reports when it cannot be had, slabs of it for what is kept, a pool of it for short-lived
//! copies, and files that are read like memory. Knows nothing of tensors.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Mmap, MmapOptions};
use mlxcel_engine::EngineError;
use mlxcel_platform::{large_pages, mapping};

use crate::view::Plain;

/// Every buffer begins at a multiple of this: a cache line and the widest vector.
const ALIGNMENT: usize = 64;

/// Bytes from which on a buffer is worth large pages: they are touched as a whole, and a few of them are little then.
const LARGE: usize = 8 << 20;

/// The same for what is used again and again.
pub(crate) const REUSED_LARGE: usize = 1 << 19;

/// Owned bytes, zero at first. Large ones cost nothing until they are touched.
pub(crate) struct Buffer {
    block: Arc<Block>,
    start: usize,
    len: usize,
}

/// What the allocator gave: room for one buffer, or for several that share no byte.
struct Block {
    base: NonNull<u8>,
    layout: Layout,
    /// What the first place that is used is a multiple of.
    alignment: usize,
}

// SAFETY: a block owns its memory, like a boxed slice; buffers in it share no byte.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// At least `len` zeros after the first place that is a multiple of `alignment`.
    fn zeroed(len: usize, alignment: usize, what: &str) -> Result<Arc<Self>, EngineError> {
        let refuse = || EngineError::OutOfMemory { what: what.to_string(), bytes: len };
        // Asking for more alignment than the allocator's own would make it clear the memory by hand.
        let layout = len.checked_add(alignment).and_then(|n| Layout::from_size_align(n, 1).ok());
        let layout = layout.ok_or_else(refuse)?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refuse)?;
        Ok(Arc::new(Block { base, layout, alignment }))
    }

    /// The same from the beginning of a large page on, so that a stream of reads meets fewer page tables. The system may
    /// decline to give any.
    fn in_large_pages(len: usize, what: &str) -> Result<Arc<Self>, EngineError> {
        let block = Self::zeroed(len, large_pages::SIZE, what)?;
        large_pages::prefer(block.base.as_ptr(), block.layout.size());
        Ok(block)
    }

    /// The first place that is a multiple of the alignment, counted from the base.
    fn first(&self) -> usize {
        self.base.as_ptr().addr().wrapping_neg() % self.alignment
    }

    /// Bytes from there on.
    fn len(&self) -> usize {
        self.layout.size() - self.alignment
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block came from the allocator with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl Buffer {
    pub(crate) fn zeroed(len: usize, what: &str) -> Result<Self, EngineError> {
        let block = if len >= LARGE {
            Block::in_large_pages(len, what)?
        } else {
            Block::zeroed(len, ALIGNMENT, what)?
        };
        let start = block.first();
        Ok(Buffer { block, start, len })
    }

    /// Memory that one op after the other uses: in large pages if it fills the better part of one.
    pub(crate) fn reused(len: usize, what: &str) -> Result<Self, EngineError> {
        Self::zeroed(
            if len < REUSED_LARGE { len.next_power_of_two() } else { len.max(LARGE).next_power_of_two() },
            what,
        )
    }

    /// Memory for a result of a step: in large pages if it fills the better part of one.
    pub(crate) fn of_results(len: usize) -> Result<Self, EngineError> {
        const WHAT: &str = "a result";
        if len < REUSED_LARGE {
            return Self::zeroed(len, WHAT);
        }
        let block = Block::in_large_pages(len.next_multiple_of(large_pages::SIZE), WHAT)?;
        let start = block.first();
        Ok(Buffer { block, start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte. Whoever writes through it answers for nobody else reading there.
    pub(crate) fn ptr(&self) -> *mut u8 {
        // SAFETY: a buffer lies within its block.
        unsafe { self.block.base.as_ptr().add(self.start) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block holds `len` initialised bytes from the buffer's start, which no other buffer has, and the
        // borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.len) }
    }
}

/// A part of a file that is read like memory.
pub(crate) struct Mapped(Mmap);

impl Mapped {
    /// Large pages at most that are looked at to find out how large pages are.
    const SAMPLES: usize = 64;

    /// `len` bytes from a place on that is a multiple of a large page, in large pages where the system has the file in such.
    pub(crate) fn of(file: &File, from: u64, len: usize) -> io::Result<Self> {
        // SAFETY: the mapping is only read. Its bytes are numbers of which any are valid, so that a file that is changed by
        // others gives wrong results and nothing worse; one that is truncated raises SIGBUS, as a checkpoint does.
        let map = unsafe { MmapOptions::new().offset(from).len(len).map(file) }?;
        large_pages::prefer(map.as_ptr(), map.len());
        mapping::read_alone(&map);
        Ok(Mapped(map))
    }

    /// Says that all of it was read.
    pub(crate) fn settle(&self) {
        mapping::read_ahead(&self.0);
    }

    /// Whether reading it meets no more page tables than reading memory of our own.
    pub(crate) fn is_in_large_pages(&self) -> bool {
        if !large_pages::are_given() {
            return true;
        }
        let pages = self.0.len() / large_pages::SIZE;
        let touched = pages.min(Self::SAMPLES);
        for i in 0..touched {
            black_box(self.0[i * pages / touched * large_pages::SIZE]);
        }
        // A few small ones cost little.
        large_pages::of_mapped_file(self.0.as_ptr()) >= touched * large_pages::SIZE / 8 * 7
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} mapped bytes", self.0.len())
    }
}

/// Bytes that are read as long as this lives.
#[derive(Debug)]
pub(crate) enum Memory {
    Own(Buffer),
    /// Those of a file from a place on.
    Mapped(Arc<Mapped>, usize),
}

impl Memory {
    pub(crate) fn ptr(&self) -> *const u8 {
        match self {
            Memory::Own(buffer) => buffer.ptr().cast_const(),
            Memory::Mapped(file, start) => file[*start..].as_ptr(),
        }
    }

    /// The first of them, of which there must be as many.
    #[cfg(test)]
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        match self {
            Memory::Own(buffer) => {
                assert!(len <= buffer.len());
                // SAFETY: the buffer has them, initialised, and nobody writes to what is packed.
                unsafe { std::slice::from_raw_parts(self.ptr(), len) }
            }
            Memory::Mapped(file, start) => &file[*start..start + len],
        }
    }
}

/// Plain numbers of a thread that begin with a line of the cache: rows of tiles that lie across two take twice as long.
#[derive(Debug, Default)]
pub(crate) struct Aligned<T> {
    lines: Vec<Line>,
    numbers: PhantomData<T>,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; ALIGNMENT],
}

impl<T: Plain> Aligned<T> {
    /// Room for so many; those that are new are zero.
    pub(crate) fn resize(&mut self, count: usize) {
        self.lines.resize((count * size_of::<T>()).div_ceil(ALIGNMENT), Line { _bytes: [0; ALIGNMENT] });
    }

    fn count(&self) -> usize {
        self.lines.len() * ALIGNMENT / size_of::<T>()
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: lines are aligned and initialised, and any bits are a number.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count()) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.count()) }
    }
}

/// Buffers that are kept as long as a program and read again and again lie side by side in a few large blocks.
pub(crate) struct Slabs {
    /// Bytes of a block, unless one buffer needs more.
    block: usize,
    last: Mutex<Option<Slab>>,
}

struct Slab {
    block: Arc<Block>,
    /// Bytes from the first aligned place on that buffers have, a multiple of the alignment.
    used: usize,
}

impl Slabs {
    /// Bytes of a block where it is not known how much is to come.
    const BLOCK: usize = 64 << 20;

    /// For buffers of so many bytes in all.
    pub(crate) fn new(bytes: usize) -> Self {
        Slabs { block: bytes.min(Self::BLOCK), last: Mutex::default() }
    }

    pub(crate) fn zeroed(&self, len: usize, what: &str) -> Result<Buffer, EngineError> {
        let mut kept = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let room = |slab: &Slab| slab.block.len().saturating_sub(slab.used);
        let slab = match kept.take().filter(|slab| room(slab) >= len) {
            Some(slab) => kept.insert(slab),
            None => kept.insert(Slab { block: Block::in_large_pages(len.max(self.block), what)?, used: 0 }),
        };
        let start = slab.block.first() + slab.used;
        slab.used += len.next_multiple_of(ALIGNMENT);
        Ok(Buffer { block: slab.block.clone(), start, len })
    }
}

impl std::fmt::Debug for Slabs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("slabs")
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
                Buffer::reused(len, "scratch memory")?
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
    fn memory_in_large_pages_begins_with_one() {
        let mut b = Buffer::reused(REUSED_LARGE, "a test").unwrap();
        assert_eq!(b.ptr().addr() % large_pages::SIZE, 0);
        let bytes = b.bytes_mut();
        assert!(bytes.len() >= REUSED_LARGE);
        let last = bytes.len() - 1;
        (bytes[0], bytes[last]) = (1, 2);
    }

    #[test]
    fn memory_that_does_not_exist_is_an_error() {
        assert!(matches!(Buffer::zeroed(usize::MAX / 2, "a test"), Err(EngineError::OutOfMemory { .. })));
    }

    #[test]
    fn buffers_of_a_slab_are_aligned_and_share_nothing() {
        let slabs = Slabs::new(usize::MAX);
        let sizes = [1, 64, 100, 4096, Slabs::BLOCK - 5000, 3000, Slabs::BLOCK + 1, 7];
        let mut buffers: Vec<Buffer> = sizes.iter().map(|&n| slabs.zeroed(n, "a test").unwrap()).collect();
        for (i, b) in buffers.iter_mut().enumerate() {
            assert_eq!(b.ptr().addr() % ALIGNMENT, 0);
            let bytes = b.bytes_mut();
            let (first, last) = (0, bytes.len() - 1);
            assert_eq!([bytes[first], bytes[last]], [0, 0], "buffer {i} of {} bytes", sizes[i]);
            (bytes[first], bytes[last]) = (1 + i as u8, 1 + i as u8);
        }
        for (i, b) in buffers.iter_mut().enumerate() {
            let bytes = b.bytes_mut();
            assert_eq!([bytes[0], bytes[bytes.len() - 1]], [1 + i as u8; 2]);
        }
    }

    #[test]
    fn lines_are_aligned_and_zero() {
        let mut lines = Aligned::<f32>::default();
        for count in [1, 16, 17, 1000] {
            lines.resize(count);
            assert_eq!(lines.as_ptr().addr() % ALIGNMENT, 0);
            assert!(lines.len() >= count && lines.iter().all(|&x| x == 0.0));
        }
        lines[999] = 1.0;
        assert_eq!(lines.iter().sum::<f32>(), 1.0);
    }

    #[test]
    fn a_pool_hands_the_same_memory_out_again() {
        let pool = Pool::default();
        let first = pool.take(100).unwrap().buffer().ptr();
        assert_eq!(pool.take(90).unwrap().buffer().ptr(), first);
    }
}
