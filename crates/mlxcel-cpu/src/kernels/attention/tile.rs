//! The product at the heart of both halves of attention: a few lines of numbers times a tile of rows, in registers.
//! Scores are queries times turned keys; results are weights times values. Every element of the result is one chain
//! of fused additions in order of the rows, whatever lines and columns share the registers with it.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use half::{bf16, f16};
use mlxcel_ir::DType;

use super::core::Addresses;
use crate::kernels::prefetch;
use crate::simd::{Kernel, LANES_MAX, Simd};

/// Lines that share the registers, at most.
pub(super) const LINES: usize = 6;

/// How many of `lines` share the registers next: there are kernels for 1, 2, 3, 4 and 6, and two of like size are
/// better than a large and a small one.
#[inline(always)]
pub(super) fn sharing(lines: usize) -> usize {
    match lines {
        0..=4 => lines,
        5 | 7 | 8 => lines.div_ceil(2),
        _ => LINES,
    }
}

/// Rows that can be read as vectors of `f32`.
pub(super) trait Rows: Copy {
    /// Bytes of a number.
    const SIZE: usize;

    /// The numbers of row `k` from `column` on.
    ///
    /// # Safety
    /// The row must have a whole vector there.
    unsafe fn read<S: Simd>(self, k: usize, column: usize) -> S::F;
}

/// Rows of `f32` at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Even {
    pub(super) base: *const f32,
    pub(super) stride: usize,
}

impl Rows for Even {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn read<S: Simd>(self, k: usize, column: usize) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::load(self.base.add(k * self.stride + column)) }
    }
}

/// A type of numbers that a cache has.
pub(super) trait Number {
    /// Bytes of a number.
    const SIZE: usize;
    /// Whether it is a code, to be multiplied by its row's step.
    const IS_CODED: bool = false;

    /// A vector of them.
    ///
    /// # Safety
    /// A whole vector must lie there.
    unsafe fn read<S: Simd>(at: *const u8) -> S::F;
}

impl Number for f32 {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn read<S: Simd>(at: *const u8) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::load(at.cast()) }
    }
}

impl Number for f16 {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn read<S: Simd>(at: *const u8) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::from_f16(at) }
    }
}

impl Number for bf16 {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn read<S: Simd>(at: *const u8) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::from_bf16(at) }
    }
}

impl Number for i8 {
    const SIZE: usize = 1;
    const IS_CODED: bool = true;

    #[inline(always)]
    unsafe fn read<S: Simd>(at: *const u8) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::from_i8(at) }
    }
}

/// Rows anywhere, some bytes behind their addresses.
pub(super) struct Stored<N> {
    rows: *const *const u8,
    offset: usize,
    number: PhantomData<N>,
}

impl<N> Clone for Stored<N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for Stored<N> {}

impl<N> Stored<N> {
    #[inline(always)]
    pub(super) fn new(rows: &[*const u8], offset: usize) -> Self {
        Stored { rows: rows.as_ptr(), offset, number: PhantomData }
    }
}

impl<N: Number> Rows for Stored<N> {
    const SIZE: usize = N::SIZE;

    #[inline(always)]
    unsafe fn read<S: Simd>(self, k: usize, column: usize) -> S::F {
        // SAFETY: as the caller promises; the list has the row.
        unsafe { N::read::<S>((*self.rows.add(k)).add(self.offset + column * N::SIZE)) }
    }
}

/// Work with rows of one type.
pub(super) trait OfNumbers {
    fn run<S: Simd, N: Number>(self);
}

/// The same with a type that is known.
struct With<K, N>(K, PhantomData<N>);

impl<K: OfNumbers, N: Number> Kernel for With<K, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        self.0.run::<S, N>();
    }
}

/// Runs it with the type of a cache.
#[inline(always)]
pub(super) fn with_numbers<S: Simd>(dtype: DType, work: impl OfNumbers) {
    match dtype {
        DType::F32 => S::LEVEL.dispatch(With(work, PhantomData::<f32>)),
        DType::F16 => S::LEVEL.dispatch(With(work, PhantomData::<f16>)),
        DType::I8 => S::LEVEL.dispatch(With(work, PhantomData::<i8>)),
        _ => S::LEVEL.dispatch(With(work, PhantomData::<bf16>)),
    }
}

/// Rows that will be read soon, as many as are read meanwhile, some bytes behind their addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead<'a> {
    pub(super) rows: &'a [*const u8; LANES_MAX],
    pub(super) offset: usize,
}

impl Ahead<'_> {
    /// Rows between which others are asked for: a few at a time, since the processor can wait for few lines at once.
    pub(super) const AT_ONCE: usize = 4;

    /// Asks for some bytes of the rows that come after row `k` and the next ones.
    #[inline(always)]
    pub(super) fn fetch(&self, k: usize, column_bytes: usize, bytes: usize) {
        let (some, _) = self.rows.as_chunks::<{ Ahead::AT_ONCE }>();
        let rows = some[k / Self::AT_ONCE % some.len()];
        let mut at = 0;
        while at < bytes {
            for i in 0..Self::AT_ONCE {
                prefetch(rows[i].wrapping_add(self.offset + column_bytes + at), 1);
            }
            at += 64;
        }
    }
}

/// Lines of numbers at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) base: *const f32,
    pub(super) stride: usize,
}

impl Left {
    /// The lines from one of them on.
    #[inline(always)]
    pub(super) fn from(self, line: usize) -> Self {
        Left { base: self.base.wrapping_add(line * self.stride), ..self }
    }
}

/// Lines of results at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) base: *mut f32,
    pub(super) stride: usize,
}

impl Sums {
    /// The lines from one of them on.
    #[inline(always)]
    pub(super) fn from(self, line: usize) -> Self {
        Sums { base: self.base.wrapping_add(line * self.stride), ..self }
    }
}

/// Which rows are added, to which columns of the sums.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// Whether the sums begin here; otherwise they go on.
    pub(super) fresh: bool,
    pub(super) rows: (usize, usize),
    pub(super) columns: (usize, usize),
}

/// `sums[t] += Σ left[t][k] · rows[k]`, or `=` where the extent is fresh, for `count` lines, as many as [`sharing`] says.
struct Product<R> {
    count: usize,
    left: Left,
    rows: R,
    sums: Sums,
    extent: Extent,
}

impl<R: Rows> Kernel for Product<R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Product { count, left, rows, sums, extent } = self;
        // SAFETY: as the caller of `add_product` promises.
        unsafe { strips::<S, R>(count, left, rows, sums, (extent, None)) };
    }
}

impl OfNumbers for Product<(&Addresses, usize)> {
    #[inline(always)]
    fn run<S: Simd, N: Number>(self) {
        let Product { count, left, rows: (rows, offset), sums, extent } = self;
        // SAFETY: as the caller of `add_stored` promises.
        unsafe { strips::<S, _>(count, left, Stored::<N>::new(rows, offset), sums, (extent, None)) };
    }
}

/// Adds a product with rows at equal distances.
///
/// # Safety
/// Lines and sums must have the extent's rows and columns; columns are whole vectors.
#[inline(always)]
pub(super) unsafe fn add_product<S: Simd>(count: usize, left: Left, rows: Even, sums: Sums, extent: Extent) {
    S::LEVEL.dispatch(Product { count, left, rows, sums, extent });
}

/// As [`add_product`], for rows of any type that a cache has, some bytes behind their addresses.
///
/// # Safety
/// As for [`add_product`].
#[inline(always)]
pub(super) unsafe fn add_stored<S: Simd>(
    count: usize,
    left: Left,
    (dtype, rows, offset): (DType, &Addresses, usize),
    sums: Sums,
    extent: Extent,
) {
    with_numbers::<S>(dtype, Product { count, left, rows: (rows, offset), sums, extent });
}

/// `count` lines, while the rows ahead are on their way.
///
/// # Safety
/// As for [`add_product`].
#[inline(always)]
pub(super) unsafe fn strips<S: Simd, R: Rows>(
    count: usize,
    left: Left,
    rows: R,
    sums: Sums,
    extent: (Extent, Option<Ahead<'_>>),
) {
    // SAFETY: as the caller promises.
    unsafe {
        match count {
            1 => strip::<S, R, 1>(left, rows, sums, extent),
            2 => strip::<S, R, 2>(left, rows, sums, extent),
            3 => strip::<S, R, 3>(left, rows, sums, extent),
            4 => strip::<S, R, 4>(left, rows, sums, extent),
            _ => strip::<S, R, LINES>(left, rows, sums, extent),
        }
    }
}

/// As many vectors of a line at once as the registers of the level hold beside the others.
#[inline(always)]
unsafe fn strip<S: Simd, R: Rows, const T: usize>(
    left: Left,
    rows: R,
    sums: Sums,
    (extent, ahead): (Extent, Option<Ahead<'_>>),
) {
    let (mut at, end) = extent.columns;
    // SAFETY: as the caller of `add_product` promises; columns stay below the end.
    unsafe {
        while at < end {
            let vectors = (end - at) / S::LANES;
            // Eight lanes come with sixteen registers, other widths with twice as many.
            if const { S::LANES == 8 } {
                if vectors >= 2 {
                    block::<S, R, T, 2>(left, rows, (sums, at), (extent, ahead));
                    at += 2 * S::LANES;
                    continue;
                }
            } else if vectors >= 4 {
                block::<S, R, T, 4>(left, rows, (sums, at), (extent, ahead));
                at += 4 * S::LANES;
                continue;
            }
            block::<S, R, T, 1>(left, rows, (sums, at), (extent, ahead));
            at += S::LANES;
        }
    }
}

/// `T` lines by `V` vectors, in registers.
#[inline(always)]
unsafe fn block<S: Simd, R: Rows, const T: usize, const V: usize>(
    left: Left,
    rows: R,
    (sums, column): (Sums, usize),
    (extent, ahead): (Extent, Option<Ahead<'_>>),
) {
    // SAFETY: as the caller of `add_product` promises.
    unsafe {
        let mut acc = [[S::splat(0.0); V]; T];
        if !extent.fresh {
            for t in 0..T {
                for v in 0..V {
                    acc[t][v] = S::load(sums.base.add(t * sums.stride + column + v * S::LANES));
                }
            }
        }
        for k in extent.rows.0..extent.rows.1 {
            if let Some(ahead) = &ahead
                && k.is_multiple_of(Ahead::AT_ONCE)
            {
                ahead.fetch(k, column * R::SIZE, V * S::LANES * R::SIZE);
            }
            let mut row = [S::splat(0.0); V];
            for v in 0..V {
                row[v] = rows.read::<S>(k, column + v * S::LANES);
            }
            for t in 0..T {
                let x = S::splat(*left.base.add(t * left.stride + k));
                for v in 0..V {
                    acc[t][v] = S::fma(x, row[v], acc[t][v]);
                }
            }
        }
        for t in 0..T {
            for v in 0..V {
                S::store(sums.base.add(t * sums.stride + column + v * S::LANES), acc[t][v]);
            }
        }
    }
}
