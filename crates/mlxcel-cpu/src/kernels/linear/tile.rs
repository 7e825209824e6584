//! The inner loops of the product: blocks along `k`, tiles of tokens by rows, sums.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use mlxcel_ir::DType;

use super::decode::is_fast;
use super::panel::padded;
use super::stream::{self, Stream};
use super::{Job, ROWS};
use crate::kernels::prefetch;
use crate::simd::{Kernel, LANES_MAX, Simd};
use crate::weight::Rows;

/// Rows in registers.
const R: usize = 4;
/// Elements of a row that are decoded at a time, rounded to whole blocks of the format.
const K_BLOCK: usize = 512;
/// Tokens up to which the weights' way from memory counts more than their reuse.
const STREAMED: usize = 16;
/// Tokens whose sums are kept while the rows of a tile are walked.
const TOKENS: usize = 96;

/// Numbers of a tile row at most: the tile then holds four rows.
const K_MAX: usize = 4 * K_BLOCK;

/// Decoded rows and partial sums of one thread.
#[repr(align(64))]
pub(super) struct Work {
    tile: [f32; ROWS * K_BLOCK],
    sums: [f32; TOKENS * ROWS * LANES_MAX],
}

thread_local! {
    /// Borrowed before a product is dispatched: a closure inside would be compiled without the level's instructions.
    pub(super) static WORK: RefCell<Box<Work>> =
        RefCell::new(Box::new(Work { tile: [0.0; ROWS * K_BLOCK], sums: [0.0; TOKENS * ROWS * LANES_MAX] }));
}

/// How many elements of a row of this type are decoded at a time: whole blocks of the format and whole vectors.
/// `None` if no such number is small enough.
pub(crate) fn k_step(dtype: DType) -> Option<usize> {
    let DType::Quant(q) = dtype else { return Some(K_BLOCK) };
    let mut unit = q.block_len();
    while !unit.is_multiple_of(LANES_MAX) {
        unit *= 2;
    }
    (unit <= K_MAX).then(|| (K_BLOCK / unit * unit).max(unit))
}

/// Part of a job: some rows, all tokens.
pub(super) struct Product<'a, E> {
    pub(super) job: &'a Job<'a>,
    pub(super) range: Range<usize>,
    pub(super) emit: &'a E,
    pub(super) work: &'a mut Work,
}

impl<E: Fn(usize, usize, f32)> Kernel for Product<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Rows { dtype, cols, .. } = *self.job.rows;
        if self.job.panel.tokens <= stream::TOKENS && is_fast(dtype) && cols > 0 {
            return self.stream::<S>();
        }
        let steps = Steps::of(self.job);
        let x = Lines { first: self.job.panel.row(0, 0), stride: self.job.panel.stride() };
        // SAFETY: tokens of a panel are padded to whole vectors, and this kernel was compiled for the level.
        unsafe { self.in_blocks::<S, Floats>(&steps, x) };
    }
}

impl<E: Fn(usize, usize, f32)> Product<'_, E> {
    /// # Safety
    /// The tokens must be there as `x` says, and the caller be compiled for the numbers' instructions.
    #[inline(always)]
    pub(super) unsafe fn in_blocks<S: Simd, N: Numbers<S>>(self, steps: &Steps, x: Lines<N::Number>) {
        let Product { job, range, emit, work } = self;
        let rows = RowBlocks { job, x, emit };
        for start in range.clone().step_by(steps.rows) {
            let range = start..(start + steps.rows).min(range.end);
            for first in (0..job.panel.tokens).step_by(TOKENS) {
                let tokens = first..(first + TOKENS).min(job.panel.tokens);
                // SAFETY: as the caller promises.
                unsafe { rows.block::<S, N>(work, steps, range.clone(), tokens) };
            }
        }
    }

    #[inline(always)]
    fn stream<S: Simd>(&self) {
        let Job { panel, rows, first, .. } = self.job;
        for start in self.range.clone().step_by(stream::ROWS) {
            let count = stream::ROWS.min(self.range.end - start);
            let sums = S::LEVEL.dispatch(Stream { panel, rows, first: first + start, count });
            for (t, line) in sums.iter().enumerate().take(panel.tokens) {
                for (r, &sum) in line.iter().enumerate().take(count) {
                    (self.emit)(t, start + r, sum);
                }
            }
        }
    }
}

/// Parts of rows that are asked for while a block is multiplied, since those of many rows are too short for the machine to
/// ask for the next by itself. Nothing of formats that have no bytes for a number.
struct Coming<'a> {
    all: &'a Rows<'a>,
    rows: Range<usize>,
    count: usize,
    from: usize,
    len: usize,
}

impl Coming<'_> {
    /// Asks for the share of one of so many turns.
    #[inline(always)]
    fn fetch(&mut self, turns: usize) {
        if self.len == 0 {
            return;
        }
        for row in self.rows.by_ref().take(self.count.div_ceil(turns)) {
            prefetch(self.all.parts(row)[0].as_ptr().wrapping_add(self.from), self.len);
        }
    }
}

/// How a job is cut.
pub(super) struct Steps {
    rows: usize,
    k: usize,
    /// Rows are read where they lie.
    direct: bool,
    /// Bytes of a number there.
    size: usize,
}

impl Steps {
    fn of(job: &Job<'_>) -> Self {
        let unit = k_step(job.rows.dtype).expect("formats with longer blocks are decomposed");
        // Few tokens leave the tile early, so long runs of few rows stream best; many tokens want many rows at hand.
        let k = if job.panel.tokens <= STREAMED { K_MAX / unit * unit } else { unit };
        let rows = (ROWS * K_BLOCK / k).min(ROWS) / R * R;
        let direct = job.rows.dtype == DType::F32 && job.rows.cols == padded(job.rows.cols);
        Steps { rows, k, direct, size: size_of::<f32>() }
    }

    /// For rows of half as large numbers that are read where they lie.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_pairs(halves: usize) -> Self {
        Steps { rows: ROWS, k: 2 * K_BLOCK / halves, direct: true, size: size_of::<u16>() }
    }
}

/// Tokens, one line each.
#[derive(Clone, Copy)]
pub(super) struct Lines<T> {
    pub(super) first: *const T,
    /// Numbers from one line to the next.
    pub(super) stride: usize,
}

struct RowBlocks<'a, T, E> {
    job: &'a Job<'a>,
    x: Lines<T>,
    emit: &'a E,
}

impl<T, E: Fn(usize, usize, f32)> RowBlocks<'_, T, E> {
    /// All of `k` for a few rows and a panel of tokens.
    ///
    /// # Safety
    /// As for [`Product::in_blocks`].
    #[inline(always)]
    unsafe fn block<S: Simd, N: Numbers<S, Number = T>>(
        &self,
        work: &mut Work,
        steps: &Steps,
        rows: Range<usize>,
        tokens: Range<usize>,
    ) {
        let cols = self.job.rows.cols;
        let sums: *mut f32 = work.sums.as_mut_ptr();
        let turns = tokens.len().div_ceil(S::TOKENS) * rows.len().div_ceil(R);
        let mut at = 0;
        while at < cols.max(1) {
            let len = steps.k.min(cols - at);
            let pointers = self.weights::<S>(work, steps, rows.clone(), at..at + len);
            let mut coming = self.coming(steps, &rows, at + len);
            let mut t = tokens.start;
            while t < tokens.end {
                let count = (tokens.end - t).min(S::TOKENS);
                for group in (0..rows.len()).step_by(R) {
                    coming.fetch(turns);
                    let place = ((t - tokens.start) * ROWS + group) * S::LANES;
                    let tile = Tile::<T> {
                        x: self.x.first.wrapping_add(t * self.x.stride + at * N::PARTS),
                        x_stride: self.x.stride,
                        w: std::array::from_fn(|r| pointers[group + r].cast()),
                        k: len.next_multiple_of(N::COUNT),
                        // SAFETY: `t`, `group` and lanes are within the sums of the panel.
                        sums: unsafe { sums.add(place) },
                        begin: at == 0,
                    };
                    // SAFETY: the pointers are good for `k` numbers of each row and token, the sums for the tile.
                    unsafe { tile.run::<S, N>(count) };
                }
                t += count;
            }
            at += steps.k;
        }
        self.finish::<S>(sums, rows, tokens);
    }

    /// What is decoded after a block that ends at `k`: of the same rows, or of those behind them.
    #[inline(always)]
    fn coming(&self, steps: &Steps, rows: &Range<usize>, k: usize) -> Coming<'_> {
        let Job { rows: all, first, n, .. } = *self.job;
        let (rows, k) = match k < all.cols {
            true => (rows.clone(), k),
            false => (rows.end..(rows.end + rows.len()).min(n), 0),
        };
        let bytes = all.dtype.size().unwrap_or(0);
        let (from, len) = (k * bytes, steps.k.min(all.cols - k) * bytes);
        Coming { all, count: rows.len(), rows: first + rows.start..first + rows.end, from, len }
    }

    /// Where the numbers of each row lie: in the weight itself or decoded in the tile. Absent rows repeat the last.
    #[inline(always)]
    fn weights<S: Simd>(
        &self,
        work: &mut Work,
        steps: &Steps,
        rows: Range<usize>,
        k: Range<usize>,
    ) -> [*const u8; ROWS] {
        let mut pointers = [work.tile.as_ptr().cast(); ROWS];
        if k.is_empty() {
            return pointers;
        }
        let from = self.job.first + rows.start..self.job.first + rows.end;
        if steps.direct {
            for (pointer, row) in pointers.iter_mut().zip(from) {
                *pointer = self.job.rows.parts(row)[0].as_ptr().wrapping_add(k.start * steps.size);
            }
        } else {
            for (i, pointer) in pointers[..rows.len()].iter_mut().enumerate() {
                *pointer = work.tile[i * steps.k..].as_ptr().cast();
            }
            S::LEVEL.dispatch(Decode {
                rows: self.job.rows,
                range: from,
                k,
                tile: &mut work.tile,
                stride: steps.k,
            });
        }
        let last = pointers[rows.len() - 1];
        pointers[rows.len()..].fill(last);
        pointers
    }

    #[inline(always)]
    fn finish<S: Simd>(&self, sums: *const f32, rows: Range<usize>, tokens: Range<usize>) {
        for t in 0..tokens.len() {
            for group in (0..rows.len()).step_by(R) {
                let place = (t * ROWS + group) * S::LANES;
                // SAFETY: the sums of this panel were all stored by tiles.
                let vectors = std::array::from_fn(|r| unsafe { S::load(sums.add(place + r * S::LANES)) });
                let totals = S::sums(vectors);
                for (r, &total) in totals.iter().enumerate().take(rows.len() - group) {
                    (self.emit)(tokens.start + t, rows.start + group + r, total);
                }
            }
        }
    }
}

/// Fills tile rows with decoded numbers and zeros up to whole vectors. Apart from the product, so that the code of
/// all formats exists once per level.
struct Decode<'a> {
    rows: &'a Rows<'a>,
    range: Range<usize>,
    k: Range<usize>,
    tile: &'a mut [f32],
    stride: usize,
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (row, to) in self.range.zip(self.tile.chunks_exact_mut(self.stride)) {
            let (numbers, rest) = to.split_at_mut(self.k.len());
            self.rows.decode::<S>(row, self.k.start, numbers);
            let whole = padded(self.k.len()) - self.k.len();
            rest[..whole].fill(0.0);
        }
    }
}

/// What is multiplied: vectors of a row's numbers with what stands for as many of a token, whose products are added to vectors of
/// `f32`.
pub(super) trait Numbers<S: Simd> {
    type Number;
    type Row: Copy;
    type Token: Copy;
    /// Numbers of a row in a vector.
    const COUNT: usize;
    /// Numbers of a token that stand for one of them.
    const PARTS: usize;

    /// # Safety
    /// A vector must be readable at `from`, and the machine have the instructions.
    unsafe fn row(from: *const Self::Number) -> Self::Row;
    /// # Safety
    /// As for [`Self::row`], of all parts.
    unsafe fn token(from: *const Self::Number) -> Self::Token;
    /// # Safety
    /// The machine must have the instructions.
    unsafe fn multiplied(x: Self::Token, w: Self::Row, sum: S::F) -> S::F;
}

struct Floats;

impl<S: Simd> Numbers<S> for Floats {
    type Number = f32;
    type Row = S::F;
    type Token = S::F;
    const COUNT: usize = S::LANES;
    const PARTS: usize = 1;

    #[inline(always)]
    unsafe fn row(from: *const f32) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::load(from) }
    }

    #[inline(always)]
    unsafe fn token(from: *const f32) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::load(from) }
    }

    #[inline(always)]
    unsafe fn multiplied(x: S::F, w: S::F, sum: S::F) -> S::F {
        S::fma(x, w, sum)
    }
}

/// Four rows with up to `Simd::TOKENS` tokens.
struct Tile<T> {
    x: *const T,
    x_stride: usize,
    w: [*const T; R],
    k: usize,
    /// Vectors of sums, `[token][ROWS]`.
    sums: *mut f32,
    /// Whether sums start at zero.
    begin: bool,
}

impl<T> Tile<T> {
    /// # Safety
    /// `k` numbers must be readable at each row and token, and the sums of `count` tokens and four rows writable.
    #[inline(always)]
    unsafe fn run<S: Simd, N: Numbers<S, Number = T>>(&self, count: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            match count {
                1 => self.tokens::<S, N, 1>(),
                2 => self.tokens::<S, N, 2>(),
                3 => self.tokens::<S, N, 3>(),
                4 => self.tokens::<S, N, 4>(),
                5 => self.tokens::<S, N, 5>(),
                _ => self.tokens::<S, N, 6>(),
            }
        }
    }

    #[inline(always)]
    unsafe fn tokens<S: Simd, N: Numbers<S, Number = T>, const COUNT: usize>(&self) {
        // SAFETY: as the caller of `run` promises.
        unsafe {
            let place = |t: usize, r: usize| self.sums.add((t * ROWS + r) * S::LANES);
            let mut acc = [[S::splat(0.0); R]; COUNT];
            if !self.begin {
                for (t, row) in acc.iter_mut().enumerate() {
                    for (r, sum) in row.iter_mut().enumerate() {
                        *sum = S::load(place(t, r));
                    }
                }
            }
            let mut k = 0;
            while k < self.k {
                let w: [N::Row; R] = std::array::from_fn(|r| N::row(self.w[r].add(k)));
                for (t, row) in acc.iter_mut().enumerate() {
                    let x = N::token(self.x.add(t * self.x_stride + k * N::PARTS));
                    for (sum, w) in row.iter_mut().zip(w) {
                        *sum = N::multiplied(x, w, *sum);
                    }
                }
                k += N::COUNT;
            }
            for (t, row) in acc.iter().enumerate() {
                for (r, sum) in row.iter().enumerate() {
                    S::store(place(t, r), *sum);
                }
            }
        }
    }
}
