//! The product at the heart of both halves of attention: a few lines of numbers times a tile of rows, in registers.
//! Scores are queries times turned keys; results are weights times values. Every element of the result is one chain
//! of fused additions in order of the rows, whatever lines and columns share the registers with it.
#![allow(unsafe_code)]

use mlxcel_ir::DType;

use super::core::Addresses;
use super::turn::Ahead;
use crate::simd::{Kernel, Simd};

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

/// Rows of `f32` anywhere.
#[derive(Clone, Copy)]
pub(super) struct Singles(pub(super) *const *const u8);
/// Rows of `f16` anywhere.
#[derive(Clone, Copy)]
pub(super) struct Halves(pub(super) *const *const u8);
/// Rows of `bf16` anywhere.
#[derive(Clone, Copy)]
pub(super) struct Brains(pub(super) *const *const u8);
/// Rows of codes of eight bits anywhere.
#[derive(Clone, Copy)]
pub(super) struct Codes(pub(super) *const *const u8);

impl Rows for Singles {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn read<S: Simd>(self, k: usize, column: usize) -> S::F {
        // SAFETY: as the caller promises; the list has the row.
        unsafe { S::load((*self.0.add(k)).cast::<f32>().add(column)) }
    }
}

impl Rows for Halves {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn read<S: Simd>(self, k: usize, column: usize) -> S::F {
        // SAFETY: as the caller promises; the list has the row.
        unsafe { S::from_f16((*self.0.add(k)).add(column * 2)) }
    }
}

impl Rows for Brains {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn read<S: Simd>(self, k: usize, column: usize) -> S::F {
        // SAFETY: as the caller promises; the list has the row.
        unsafe { S::from_bf16((*self.0.add(k)).add(column * 2)) }
    }
}

impl Rows for Codes {
    const SIZE: usize = 1;

    #[inline(always)]
    unsafe fn read<S: Simd>(self, k: usize, column: usize) -> S::F {
        // SAFETY: as the caller promises; the list has the row.
        unsafe { S::from_i8((*self.0.add(k)).add(column)) }
    }
}

/// Rows anywhere, of a type that a cache has.
#[derive(Clone, Copy)]
pub(super) enum Stored {
    Singles(Singles),
    Halves(Halves),
    Brains(Brains),
    Codes(Codes),
}

impl Stored {
    pub(super) fn new(dtype: DType, rows: &Addresses) -> Self {
        let rows = rows.as_ptr();
        match dtype {
            DType::F32 => Stored::Singles(Singles(rows)),
            DType::F16 => Stored::Halves(Halves(rows)),
            DType::I8 => Stored::Codes(Codes(rows)),
            _ => Stored::Brains(Brains(rows)),
        }
    }
}

/// Lines of numbers at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) base: *const f32,
    pub(super) stride: usize,
}

/// Lines of results at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) base: *mut f32,
    pub(super) stride: usize,
}

/// Which rows are added, to which columns of the sums.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// Whether the sums begin here; otherwise they go on.
    pub(super) fresh: bool,
    pub(super) rows: (usize, usize),
    pub(super) columns: (usize, usize),
}

/// One product of rows of one type.
struct Product<'a, R> {
    count: usize,
    left: Left,
    rows: R,
    sums: Sums,
    extent: (Extent, Ahead<'a>),
}

impl<R: Rows> Kernel for Product<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Product { count, left, rows, sums, extent } = self;
        // SAFETY: as the caller of `add_product` promises.
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
}

/// `sums[t] += Σ left[t][k] · rows[k]` for `count` lines, as many as [`sharing`] says, or `=` where the extent is fresh,
/// while the rows ahead are on their way.
///
/// # Safety
/// Lines and sums must have the extent's rows and columns; columns are whole vectors.
#[inline(always)]
pub(super) unsafe fn add_product<S: Simd, R: Rows>(
    count: usize,
    left: Left,
    rows: R,
    sums: Sums,
    extent: (Extent, Ahead<'_>),
) {
    S::LEVEL.dispatch(Product { count, left, rows, sums, extent });
}

/// As [`add_product`], for rows of any type that a cache has.
///
/// # Safety
/// As for [`add_product`].
#[inline(always)]
pub(super) unsafe fn add_stored<S: Simd>(
    count: usize,
    left: Left,
    rows: Stored,
    sums: Sums,
    extent: (Extent, Ahead<'_>),
) {
    // SAFETY: as the caller promises.
    unsafe {
        match rows {
            Stored::Singles(rows) => add_product::<S, _>(count, left, rows, sums, extent),
            Stored::Halves(rows) => add_product::<S, _>(count, left, rows, sums, extent),
            Stored::Brains(rows) => add_product::<S, _>(count, left, rows, sums, extent),
            Stored::Codes(rows) => add_product::<S, _>(count, left, rows, sums, extent),
        }
    }
}

/// Keys that are multiplied side by side in [`add_dots`].
pub(super) const SIDE_BY_SIDE: usize = 4;

/// The scores of keys that are read where they lie.
struct Dots<'a, R> {
    count: usize,
    left: (Left, usize),
    keys: R,
    sums: Sums,
    columns: (usize, usize),
    ahead: Ahead<'a>,
}

impl<R: Rows> Kernel for Dots<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Dots { count, left, keys, sums, columns, ahead } = self;
        let mut lane = columns.0;
        while lane < columns.1 {
            ahead.fetch(lane..lane + SIDE_BY_SIDE);
            // SAFETY: as the caller of `dots` promises.
            unsafe {
                match count {
                    1 => dots_of::<S, R, 1>(left, keys, sums, lane),
                    2 => dots_of::<S, R, 2>(left, keys, sums, lane),
                    3 => dots_of::<S, R, 3>(left, keys, sums, lane),
                    4 => dots_of::<S, R, 4>(left, keys, sums, lane),
                    _ => dots_of::<S, R, LINES>(left, keys, sums, lane),
                }
            }
            lane += SIDE_BY_SIDE;
        }
    }
}

/// `sums[t][key] = Σ left[t][d] · keys[key][d]` over `width` numbers, for `count` lines, as many as [`sharing`] says,
/// and the keys `columns`: the scores of keys that are read where they lie, while the rows `ahead` are on their way.
/// Every score is one chain for each lane of a vector, and the lanes are added in one order.
///
/// # Safety
/// Lines must have `width` numbers and keys have them in whole vectors; sums must have the columns, which are a
/// multiple of [`SIDE_BY_SIDE`].
#[inline(always)]
pub(super) unsafe fn dots<S: Simd>(
    count: usize,
    left: (Left, usize),
    keys: Stored,
    sums: Sums,
    (columns, ahead): ((usize, usize), Ahead<'_>),
) {
    match keys {
        Stored::Singles(keys) => S::LEVEL.dispatch(Dots { count, left, keys, sums, columns, ahead }),
        Stored::Halves(keys) => S::LEVEL.dispatch(Dots { count, left, keys, sums, columns, ahead }),
        Stored::Brains(keys) => S::LEVEL.dispatch(Dots { count, left, keys, sums, columns, ahead }),
        Stored::Codes(keys) => S::LEVEL.dispatch(Dots { count, left, keys, sums, columns, ahead }),
    }
}

/// `T` lines by [`SIDE_BY_SIDE`] keys, in registers.
#[inline(always)]
unsafe fn dots_of<S: Simd, R: Rows, const T: usize>(
    (left, width): (Left, usize),
    keys: R,
    sums: Sums,
    lane: usize,
) {
    // SAFETY: as the caller of `dots` promises.
    unsafe {
        let mut acc = [[S::splat(0.0); SIDE_BY_SIDE]; T];
        let mut d = 0;
        while d < width {
            let mut key = [S::splat(0.0); SIDE_BY_SIDE];
            for i in 0..SIDE_BY_SIDE {
                key[i] = keys.read::<S>(lane + i, d);
            }
            for t in 0..T {
                let x = S::load(left.base.add(t * left.stride + d));
                for i in 0..SIDE_BY_SIDE {
                    acc[t][i] = S::fma(x, key[i], acc[t][i]);
                }
            }
            d += S::LANES;
        }
        for t in 0..T {
            let four = S::sums(acc[t]);
            sums.base.add(t * sums.stride + lane).cast::<[f32; SIDE_BY_SIDE]>().write_unaligned(four);
        }
    }
}

/// As many vectors of a line at once as the registers of the level hold beside the others.
#[inline(always)]
unsafe fn strip<S: Simd, R: Rows, const T: usize>(
    left: Left,
    rows: R,
    sums: Sums,
    extent: (Extent, Ahead<'_>),
) {
    let (mut at, end) = extent.0.columns;
    // SAFETY: as the caller of `add_product` promises; columns stay below the end.
    unsafe {
        while at < end {
            let vectors = (end - at) / S::LANES;
            // Eight lanes come with sixteen registers, other widths with twice as many.
            if const { S::LANES == 8 } {
                if vectors >= 2 {
                    block::<S, R, T, 2>(left, rows, (sums, at), extent);
                    at += 2 * S::LANES;
                    continue;
                }
            } else if vectors >= 4 {
                block::<S, R, T, 4>(left, rows, (sums, at), extent);
                at += 4 * S::LANES;
                continue;
            }
            block::<S, R, T, 1>(left, rows, (sums, at), extent);
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
    (extent, ahead): (Extent, Ahead<'_>),
) {
    let part = column * R::SIZE..(column + V * S::LANES) * R::SIZE;
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
            ahead.fetch_part(k, part.clone());
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
