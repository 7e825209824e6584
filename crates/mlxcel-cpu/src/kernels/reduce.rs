//! Reductions and running reductions.
//!
//! Algorithm: axes are permuted so that the reduced ones come last; every result folds its line in chunks that are
//! loaded as lanes. Sums of `f32` keep [`LANES`] partial sums within a chunk and add chunks in `f64`; running
//! reductions of `f32` carry an `f64`. Results are cut over the threads. Checked against the interpreter.

use mlxcel_ir::{DType, ReduceOp};

use crate::context::Context;
use crate::lanes::{Class, Lane};
use crate::layout::{Layout, Walk};
use crate::simd::{Kernel, Simd};
use crate::view::{Out, View};

/// Elements loaded at a time.
const CHUNK: usize = 512;
/// Partial sums of a chunk.
const LANES: usize = 16;

/// A number that can be folded: the accumulator of a lane.
trait Fold: Lane {
    type Sum: Copy + Send + Sync;
    fn neutral(op: ReduceOp, dtype: DType) -> Self::Sum;
    fn fold(op: ReduceOp, sum: Self::Sum, chunk: &[Self]) -> Self::Sum;
    fn step(op: ReduceOp, sum: Self::Sum, x: Self) -> Self::Sum;
    fn first(x: Self) -> Self::Sum;
    fn finish(dtype: DType, sum: Self::Sum, bytes: &mut [u8]);
}

pub(crate) fn reduce(ctx: &Context, op: ReduceOp, x: &View<'_>, axes: &[usize], out: &mut Out<'_>) {
    match Class::of(x.dtype) {
        Class::F32 => reduce_lanes::<f32>(ctx, op, x, axes, out),
        Class::F64 => reduce_lanes::<f64>(ctx, op, x, axes, out),
        Class::I64 if x.dtype == DType::U64 => reduce_lanes::<u64>(ctx, op, x, axes, out),
        Class::I64 => reduce_lanes::<i64>(ctx, op, x, axes, out),
    }
}

fn reduce_lanes<L: Fold>(ctx: &Context, op: ReduceOp, x: &View<'_>, axes: &[usize], out: &mut Out<'_>) {
    let kept: Vec<usize> = (0..x.layout.rank()).filter(|a| !axes.contains(a)).collect();
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let outer = x.layout.transpose(&kept).merged();
    let inner = x.layout.transpose(&sorted).merged();
    let length = inner.elements();
    let (dtype, size) = (out.dtype, out.size());
    let per_task = ctx.threads.lines_per_task(out.elements(), length);
    ctx.threads.chunks(out.bytes(), per_task * size, |task, bytes| {
        let layouts = [outer];
        let mut walk = Walk::new(&layouts, outer.rank(), task * per_task);
        for to in bytes.chunks_exact_mut(size) {
            let sum = ctx.level.dispatch(Line::<L> {
                op,
                x,
                offset: walk.offsets[0],
                inner,
                of: Default::default(),
            });
            L::finish(dtype, sum, to);
            walk.step();
        }
    });
}

/// One line of reduced elements.
struct Line<'a, L> {
    op: ReduceOp,
    x: &'a View<'a>,
    offset: usize,
    inner: Layout,
    of: std::marker::PhantomData<L>,
}

impl<L: Fold> Kernel for Line<'_, L> {
    type Output = L::Sum;

    #[inline(always)]
    fn run<S: Simd>(self) -> L::Sum {
        let mut sum = L::neutral(self.op, self.x.dtype);
        let total = self.inner.elements();
        if total == 0 {
            return sum;
        }
        let rank = self.inner.rank();
        let (run, stride) = match rank {
            0 => (1, 1),
            r => (self.inner.shape[r - 1], self.inner.strides[r - 1]),
        };
        let layouts = [self.inner];
        let mut walk = Walk::new(&layouts, rank.saturating_sub(1), 0);
        let mut chunk = [L::default(); CHUNK];
        for _ in 0..total / run {
            for at in (0..run).step_by(CHUNK) {
                let part = &mut chunk[..(run - at).min(CHUNK)];
                L::load(
                    self.x.dtype,
                    self.x.bytes(),
                    (self.offset + walk.offsets[0] + at * stride, stride),
                    part,
                );
                sum = L::fold(self.op, sum, part);
            }
            walk.step();
        }
        sum
    }
}

/// Running reductions along `axis`.
pub(crate) fn cumulative(ctx: &Context, op: ReduceOp, x: &View<'_>, axis: usize, out: &mut Out<'_>) {
    match Class::of(x.dtype) {
        Class::F32 => cumulative_lanes::<f32>(ctx, op, x, axis, out),
        Class::F64 => cumulative_lanes::<f64>(ctx, op, x, axis, out),
        Class::I64 if x.dtype == DType::U64 => cumulative_lanes::<u64>(ctx, op, x, axis, out),
        Class::I64 => cumulative_lanes::<i64>(ctx, op, x, axis, out),
    }
}

fn cumulative_lanes<L: Fold>(ctx: &Context, op: ReduceOp, x: &View<'_>, axis: usize, out: &mut Out<'_>) {
    let (n, dtype, size) = (out.shape[axis], out.dtype, out.size());
    let inner: usize = out.shape[axis + 1..].iter().product();
    if out.elements() == 0 {
        return;
    }
    // A plane holds all lines that differ only in the axes after `axis`.
    let planes = x.layout.cut(axis, 1, 1);
    let stride = x.layout.strides[axis];
    ctx.threads.chunks(out.bytes(), n * inner * size, |plane, bytes| {
        let layouts = [planes];
        let mut walk = Walk::new(&layouts, planes.rank(), plane * inner);
        let mut line = vec![L::default(); n];
        for i in 0..inner {
            L::load(x.dtype, x.bytes(), (walk.offsets[0], stride), &mut line);
            let mut sum = L::first(line[0]);
            for (j, &v) in line.iter().enumerate() {
                sum = if j == 0 { sum } else { L::step(op, sum, v) };
                let at = (j * inner + i) * size;
                L::finish(dtype, sum, &mut bytes[at..at + size]);
            }
            walk.step();
        }
    });
}

/// The larger, or NaN if there is one.
#[inline(always)]
fn max<T: Lane>(a: T, b: T) -> T {
    if a > b || a.is_nan() { a } else { b }
}

#[inline(always)]
fn min<T: Lane>(a: T, b: T) -> T {
    if a < b || a.is_nan() { a } else { b }
}

impl Fold for f32 {
    type Sum = f64;

    fn neutral(op: ReduceOp, dtype: DType) -> f64 {
        f64::neutral(op, dtype)
    }

    #[inline(always)]
    fn fold(op: ReduceOp, sum: f64, chunk: &[f32]) -> f64 {
        match op {
            ReduceOp::Sum => sum + lanes(chunk, 0.0, |a, b| a + b).iter().map(|&x| x as f64).sum::<f64>(),
            ReduceOp::Prod => chunk.iter().fold(sum, |a, &x| a * x as f64),
            ReduceOp::Max => lanes(chunk, f32::NEG_INFINITY, max).iter().fold(sum, |a, &x| max(a, x as f64)),
            ReduceOp::Min => lanes(chunk, f32::INFINITY, min).iter().fold(sum, |a, &x| min(a, x as f64)),
        }
    }

    #[inline(always)]
    fn step(op: ReduceOp, sum: f64, x: f32) -> f64 {
        f64::step(op, sum, x as f64)
    }

    fn first(x: f32) -> f64 {
        x as f64
    }

    #[inline(always)]
    fn finish(dtype: DType, sum: f64, bytes: &mut [u8]) {
        <f64 as Lane>::store(dtype, &[sum], bytes);
    }
}

#[inline(always)]
fn lanes(chunk: &[f32], start: f32, f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut lanes = [start; LANES];
    let (whole, rest) = chunk.as_chunks::<LANES>();
    for part in whole {
        for i in 0..LANES {
            lanes[i] = f(lanes[i], part[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, x);
    }
    lanes
}

impl Fold for f64 {
    type Sum = f64;

    fn neutral(op: ReduceOp, _: DType) -> f64 {
        match op {
            ReduceOp::Sum => 0.0,
            ReduceOp::Prod => 1.0,
            ReduceOp::Max => f64::NEG_INFINITY,
            ReduceOp::Min => f64::INFINITY,
        }
    }

    #[inline(always)]
    fn fold(op: ReduceOp, sum: f64, chunk: &[f64]) -> f64 {
        chunk.iter().fold(sum, |a, &x| Self::step(op, a, x))
    }

    #[inline(always)]
    fn step(op: ReduceOp, sum: f64, x: f64) -> f64 {
        match op {
            ReduceOp::Sum => sum + x,
            ReduceOp::Prod => sum * x,
            ReduceOp::Max => max(sum, x),
            ReduceOp::Min => min(sum, x),
        }
    }

    fn first(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn finish(dtype: DType, sum: f64, bytes: &mut [u8]) {
        <f64 as Lane>::store(dtype, &[sum], bytes);
    }
}

macro_rules! fold_integers {
    ($t:ty, $bounds:expr) => {
        impl Fold for $t {
            type Sum = $t;

            fn neutral(op: ReduceOp, dtype: DType) -> $t {
                let (low, high) = $bounds(dtype);
                match op {
                    ReduceOp::Sum => 0,
                    ReduceOp::Prod => 1,
                    ReduceOp::Max => low,
                    ReduceOp::Min => high,
                }
            }

            #[inline(always)]
            fn fold(op: ReduceOp, sum: $t, chunk: &[$t]) -> $t {
                chunk.iter().fold(sum, |a, &x| Self::step(op, a, x))
            }

            #[inline(always)]
            fn step(op: ReduceOp, sum: $t, x: $t) -> $t {
                match op {
                    ReduceOp::Sum => sum.wrapping_add(x),
                    ReduceOp::Prod => sum.wrapping_mul(x),
                    ReduceOp::Max => sum.max(x),
                    ReduceOp::Min => sum.min(x),
                }
            }

            fn first(x: $t) -> $t {
                x
            }

            #[inline(always)]
            fn finish(dtype: DType, sum: $t, bytes: &mut [u8]) {
                <$t as Lane>::store(dtype, &[sum], bytes);
            }
        }
    };
}
fold_integers!(u64, |_| (u64::MIN, u64::MAX));
fold_integers!(i64, signed_bounds);

/// The smallest and the largest number of a type that fits an `i64`.
fn signed_bounds(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::I8 => (i8::MIN as i64, i8::MAX as i64),
        DType::I16 => (i16::MIN as i64, i16::MAX as i64),
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::U8 => (0, u8::MAX as i64),
        DType::U16 => (0, u16::MAX as i64),
        DType::U32 => (0, u32::MAX as i64),
        _ => (i64::MIN, i64::MAX),
    }
}
