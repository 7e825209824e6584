//! Tensors as kernels see them: a [`View`] reads memory that somebody else owns through a layout, an [`Out`] is the
//! row-major memory a kernel fills. The planner decides which memory; kernels never allocate results.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::marker::PhantomData;

use half::{bf16, f16};
use mlxcel_ir::DType;

use crate::lanes::Lane;
use crate::layout::{Dims, Layout};

/// Numbers that any bytes of the right length are a value of.
pub(crate) trait Plain: Copy + Send + Sync + 'static {}
macro_rules! plain {
    ($($t:ty),*) => { $(impl Plain for $t {})* };
}
plain!(u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64);

/// A readable tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    base: *const u8,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: a view only reads, and whoever made it promised that nobody writes there meanwhile.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// A view of plain elements at `base`.
    ///
    /// # Safety
    /// The layout's span must lie in initialised memory that is aligned to the element, outlives `'a` and is not
    /// written while the view is in use.
    pub(crate) unsafe fn new(base: *const u8, dtype: DType, layout: Layout) -> Self {
        debug_assert!(dtype.size().is_some_and(|s| base.addr().is_multiple_of(s)), "misaligned {dtype}");
        View { base, dtype, layout, life: PhantomData }
    }

    /// A view of nothing, for operands that are used in another form.
    pub(crate) fn empty(dtype: DType) -> Self {
        let layout = Layout::contiguous(&[0]);
        View { base: std::ptr::without_provenance(64), dtype, layout, life: PhantomData }
    }

    /// Row-major bytes of a tensor that is kept elsewhere. `None` if they are not as many as it needs or misaligned.
    pub(crate) fn of_bytes(bytes: &'a [u8], dtype: DType, shape: &[usize]) -> Option<Self> {
        let fits = dtype.storage_bytes(shape)? == bytes.len();
        let aligned = bytes.as_ptr().addr().is_multiple_of(dtype.size()?);
        // SAFETY: the borrow keeps the bytes readable and unwritten; size and alignment were checked.
        (fits && aligned).then(|| unsafe { View::new(bytes.as_ptr(), dtype, Layout::contiguous(shape)) })
    }

    /// The same view, to be kept beside the owner of its memory.
    ///
    /// # Safety
    /// The memory must outlive every use of the view, and not be written during one.
    pub(crate) unsafe fn kept(self) -> View<'static> {
        View { base: self.base, dtype: self.dtype, layout: self.layout, life: PhantomData }
    }

    /// Whether both show the same elements in the same memory.
    pub(crate) fn is_same(&self, other: &View<'_>) -> bool {
        (self.base, self.dtype, self.layout) == (other.base, other.dtype, other.layout)
    }

    pub(crate) fn size(&self) -> usize {
        self.dtype.size().expect("views are of plain types")
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    pub(crate) fn elements(&self) -> usize {
        self.layout.elements()
    }

    /// All bytes from the first to the last element, whether the layout reaches them or not.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        // SAFETY: `new` was promised that the span is readable.
        unsafe { std::slice::from_raw_parts(self.base, self.layout.span() * self.size()) }
    }

    /// As [`View::bytes`], as elements of the type that the view holds.
    #[inline(always)]
    pub(crate) fn elements_of<T: Plain>(&self) -> &'a [T] {
        assert_eq!(size_of::<T>(), self.size(), "{} is not of that size", self.dtype);
        // SAFETY: the span is readable and aligned, and `T` admits any bits.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.layout.span()) }
    }

    /// The same memory through another layout, `offset` elements further.
    pub(crate) fn with_layout(&self, offset: usize, layout: Layout) -> Self {
        assert!(
            layout.elements() == 0 || offset + layout.span() <= self.layout.span(),
            "a view beyond its memory"
        );
        let offset = if layout.elements() == 0 { 0 } else { offset };
        // SAFETY: the assertion keeps the new span in the old one.
        let base = unsafe { self.base.add(offset * self.size()) };
        View { base, layout, ..*self }
    }

    /// Repeated over a shape as NumPy broadcasts.
    pub(crate) fn broadcast(&self, shape: &[usize]) -> Self {
        self.with_layout(0, self.layout.broadcast(shape))
    }

    /// Elements of a row-major or strided view as numbers of a lane, in order.
    pub(crate) fn numbers<L: Lane>(&self) -> Vec<L> {
        if self.layout.is_contiguous() {
            let mut out = vec![L::default(); self.elements()];
            L::load(self.dtype, self.bytes(), (0, 1), &mut out);
            return out;
        }
        let merged = self.layout.merged();
        let outer = merged.rank().saturating_sub(1);
        let (n, stride) = match merged.rank() {
            0 => (self.elements(), 1),
            r => (merged.shape[r - 1], merged.strides[r - 1]),
        };
        let mut out = vec![L::default(); self.elements()];
        let layouts = [merged];
        let mut walk = crate::layout::Walk::new(&layouts, outer, 0);
        for line in out.chunks_mut(n.max(1)) {
            L::load(self.dtype, self.bytes(), (walk.offsets[0], stride), line);
            walk.step();
        }
        out
    }

    /// As [`View::numbers`] of floats, borrowed where they already lie so.
    pub(crate) fn floats(&self) -> Cow<'a, [f32]> {
        if self.dtype == DType::F32 && self.layout.is_contiguous() {
            return Cow::Borrowed(self.elements_of());
        }
        Cow::Owned(self.numbers())
    }
}

/// Row-major memory for one result.
#[derive(Debug)]
pub(crate) struct Out<'a> {
    base: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: a result is memory that nobody else uses while it is written, like a mutable slice.
unsafe impl Send for Out<'_> {}

impl<'a> Out<'a> {
    /// # Safety
    /// The bytes of the type and shape from `base` on must be initialised, aligned to the element, outlive `'a`, and
    /// be used by nobody else while the result is being written.
    pub(crate) unsafe fn new(base: *mut u8, dtype: DType, shape: Dims) -> Self {
        Out { base, dtype, shape, life: PhantomData }
    }

    pub(crate) fn size(&self) -> usize {
        self.dtype.size().expect("results are of plain types")
    }

    pub(crate) fn elements(&self) -> usize {
        self.shape.elements()
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `new` was promised exclusive use of these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.elements() * self.size()) }
    }

    /// The elements, which must be of the size of `T`.
    pub(crate) fn slice<T: Plain>(&mut self) -> &mut [T] {
        assert_eq!(size_of::<T>(), self.size(), "{} is not of that size", self.dtype);
        // SAFETY: as for the bytes; they are aligned, and `T` admits any bits.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.elements()) }
    }

    /// What was written, to be read by the ops that follow.
    pub(crate) fn view(&self) -> View<'a> {
        // SAFETY: the memory outlives `'a`; the planner keeps later writers away while views are read.
        unsafe { View::new(self.base, self.dtype, Layout::contiguous(&self.shape)) }
    }
}

/// A pointer that several tasks write through, each to elements of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: tasks that share it write disjoint elements, which each use argues for.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer `offset` elements further.
    ///
    /// # Safety
    /// The place must lie in the memory that the pointer was made for.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, offset: usize) -> *mut T {
        // SAFETY: the caller promises that the place exists.
        unsafe { self.0.add(offset) }
    }
}
