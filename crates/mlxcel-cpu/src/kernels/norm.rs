//! Norms and softmax over lines of the last axis (softmax: of any axis).
//!
//! Algorithm: a line is widened to `f32`, statistics are taken over [`LANES`] partial sums in a fixed
//! order, and the result is rounded once. Lines are cut over the threads; a line never depends on its neighbours.
//! Checked against the decompositions, which compute in `f64`.
#![allow(unsafe_code)]

use mlxcel_ir::DType;

use super::lines::Lines;
use crate::context::Context;
use crate::lanes::Lane;
use crate::layout::{Layout, Walk};
use crate::math;
use crate::simd::{Kernel, Simd};
use crate::view::{Out, Shared, View};

/// Partial sums of a line.
const LANES: usize = 64;

/// What is done to each line.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Norm {
    Rms { eps: f32 },
    Layer { eps: f32 },
    Softmax,
}

/// A norm over the last axis, scaled and shifted where weight and bias are given.
pub(crate) fn norm(
    ctx: &Context,
    kind: Norm,
    x: &View<'_>,
    parameters: [Option<&View<'_>>; 2],
    out: &mut Out<'_>,
) {
    let n = out.shape.last().copied().unwrap_or(1);
    let [weight, bias] = parameters.map(|p| p.map(View::floats));
    let job = Job { kind, weight: weight.as_deref(), bias: bias.as_deref() };
    each_line(ctx, x, n, out, &job);
}

/// `(x + residual, rms_norm of it)`, where the first result holds `x`.
pub(crate) fn add_rms(
    ctx: &Context,
    [residual, weight]: [&View<'_>; 2],
    eps: f32,
    [sum, normed]: [&mut Out<'_>; 2],
) {
    if sum.elements() == 0 {
        return;
    }
    let n = sum.shape[sum.shape.len() - 1];
    let weight = weight.floats();
    let norm = SumNorm::new(residual, &weight, eps);
    if sum.dtype != DType::F32 {
        return norm.rounded(ctx, n, [sum, normed]);
    }
    let per_task = ctx.threads.lines_per_task(sum.elements() / n, n);
    let normed = Shared(normed.slice::<f32>().as_mut_ptr());
    ctx.threads.chunks(sum.slice::<f32>(), per_task * n, |task, sums| {
        for (i, total) in sums.chunks_mut(n).enumerate() {
            let at = task * per_task + i;
            // SAFETY: both results have the same lines, and each belongs to one task.
            let line = unsafe { std::slice::from_raw_parts_mut(normed.at(at * n), n) };
            norm.line(ctx, at, total, line);
        }
    });
}

/// Sums with a residual and their norms, line by line.
pub(crate) struct SumNorm<'a> {
    residual: Lines<'a>,
    weight: &'a [f32],
    eps: f32,
}

impl<'a> SumNorm<'a> {
    pub(crate) fn new(residual: &View<'a>, weight: &'a [f32], eps: f32) -> Self {
        SumNorm { residual: Lines::new(residual), weight, eps }
    }

    /// Results narrower than `f32` take a scratch line; the norm sees the sum as it was rounded.
    fn rounded(&self, ctx: &Context, n: usize, [sum, normed]: [&mut Out<'_>; 2]) {
        let (dtype, size) = (sum.dtype, sum.size());
        let per_task = ctx.threads.lines_per_task(sum.elements() / n, n);
        let normed = Shared(normed.bytes().as_mut_ptr());
        ctx.threads.chunks(sum.bytes(), per_task * n * size, |task, sums| {
            let (mut total, mut line) = (vec![0.0; n], vec![0.0; n]);
            for (i, sum) in sums.chunks_mut(n * size).enumerate() {
                let at = task * per_task + i;
                // SAFETY: both results have the same lines, and each belongs to one task.
                let out = unsafe { std::slice::from_raw_parts_mut(normed.at(at * n * size), n * size) };
                f32::load(dtype, sum, (0, 1), &mut total);
                self.residual.load(at, &mut line);
                ctx.level.dispatch(Sum { total: &mut total, line: &mut line });
                f32::store(dtype, &total, sum);
                f32::load(dtype, sum, (0, 1), &mut line);
                ctx.level.dispatch(Line { job: &self.job(), line: &mut line });
                f32::store(dtype, &line, out);
            }
        });
    }

    fn job(&self) -> Job<'a> {
        Job { kind: Norm::Rms { eps: self.eps }, weight: Some(self.weight), bias: None }
    }

    /// Adds a line of the residual to `total`; `line` becomes the norm of that.
    pub(crate) fn line(&self, ctx: &Context, at: usize, total: &mut [f32], line: &mut [f32]) {
        if let Some(b) = self.residual.plain(at) {
            return ctx.level.dispatch(Add { b, weight: self.weight, eps: self.eps, total, line });
        }
        self.residual.load(at, line);
        ctx.level.dispatch(Sum { total, line });
        ctx.level.dispatch(Line { job: &self.job(), line });
    }
}

/// A line becomes the sum of itself and another, and a third one the norm of it.
struct Add<'a> {
    b: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    total: &'a mut [f32],
    line: &'a mut [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let n = self.total.len();
        let (b, weight) = (&self.b[..n], &self.weight[..n]);
        let (total, line) = (&mut self.total[..n], &mut self.line[..n]);
        // The squares are summed as those of a norm by itself are.
        let mut lanes = [0.0; LANES];
        let (whole, rest) = total.as_chunks_mut::<LANES>();
        let (b, b_rest) = b.as_chunks::<LANES>();
        for (total, b) in whole.iter_mut().zip(b) {
            for i in 0..LANES {
                total[i] += b[i];
                lanes[i] += total[i] * total[i];
            }
        }
        for ((total, b), lane) in rest.iter_mut().zip(b_rest).zip(&mut lanes) {
            *total += b;
            *lane += *total * *total;
        }
        let scale = 1.0 / (sum_of(lanes) / n as f32 + self.eps).sqrt();
        for i in 0..n {
            line[i] = total[i] * scale * weight[i];
        }
    }
}

/// Both lines become their sum.
struct Sum<'a> {
    total: &'a mut [f32],
    line: &'a mut [f32],
}

impl Kernel for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (total, x) in self.total.iter_mut().zip(self.line) {
            *total += *x;
            *x = *total;
        }
    }
}

/// Softmax along `axis`.
pub(crate) fn softmax(ctx: &Context, x: &View<'_>, axis: usize, out: &mut Out<'_>) {
    let job = Job { kind: Norm::Softmax, weight: None, bias: None };
    if axis + 1 == out.shape.len() {
        return each_line(ctx, x, out.shape[axis], out, &job);
    }
    // Other axes are rare: one line at a time, gathered and scattered.
    let (n, dtype, size) = (out.shape[axis], out.dtype, out.size());
    let target = Layout::contiguous(&out.shape);
    let layouts = [x.layout, target].map(|l| l.cut(axis, 1, 1));
    let (from, to) = (x.layout.strides[axis], target.strides[axis]);
    let mut walk = Walk::new(&layouts, layouts[0].rank(), 0);
    let mut line = vec![0.0; n];
    let bytes = out.bytes();
    for _ in 0..layouts[0].elements() {
        f32::load(x.dtype, x.bytes(), (walk.offsets[0], from), &mut line);
        ctx.level.dispatch(Line { job: &job, line: &mut line });
        for (i, v) in line.iter().enumerate() {
            let at = (walk.offsets[1] + i * to) * size;
            f32::store(dtype, &[*v], &mut bytes[at..at + size]);
        }
        walk.step();
    }
}

fn each_line(ctx: &Context, x: &View<'_>, n: usize, out: &mut Out<'_>, job: &Job<'_>) {
    let (dtype, size) = (out.dtype, out.size());
    if out.elements() == 0 {
        return;
    }
    let source = Lines::new(x);
    let per_task = ctx.threads.lines_per_task(out.elements() / n, n);
    if dtype == DType::F32 {
        ctx.threads.chunks(out.slice::<f32>(), per_task * n, |task, part| {
            for (i, line) in part.chunks_mut(n).enumerate() {
                source.load(task * per_task + i, line);
                ctx.level.dispatch(Line { job, line });
            }
        });
        return;
    }
    ctx.threads.chunks(out.bytes(), per_task * n * size, |task, bytes| {
        let mut line = vec![0.0; n];
        for (i, out) in bytes.chunks_mut(n * size).enumerate() {
            source.load(task * per_task + i, &mut line);
            ctx.level.dispatch(Line { job, line: &mut line });
            f32::store(dtype, &line, out);
        }
    });
}

struct Job<'a> {
    kind: Norm,
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
}

struct Line<'a> {
    job: &'a Job<'a>,
    line: &'a mut [f32],
}

impl Kernel for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Line { job, line } = self;
        let n = line.len() as f32;
        let scale = match job.kind {
            Norm::Rms { eps } => 1.0 / (sum_of_squares(line) / n + eps).sqrt(),
            Norm::Layer { eps } => {
                let mean = sum(line) / n;
                for x in line.iter_mut() {
                    *x -= mean;
                }
                1.0 / (sum_of_squares(line) / n + eps).sqrt()
            }
            Norm::Softmax => {
                let top = top(line);
                for x in line.iter_mut() {
                    *x = math::exp(*x - top);
                }
                let total = sum(line);
                for x in line.iter_mut() {
                    *x /= total;
                }
                return;
            }
        };
        match job.weight {
            Some(w) => {
                for (x, w) in line.iter_mut().zip(w) {
                    *x = *x * scale * w;
                }
            }
            None => {
                for x in line.iter_mut() {
                    *x *= scale;
                }
            }
        }
        if let Some(b) = job.bias {
            for (x, b) in line.iter_mut().zip(b) {
                *x += b;
            }
        }
    }
}

/// A sum over lanes, then of the lanes.
#[inline(always)]
fn sum(line: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = line.as_chunks::<LANES>();
    for chunk in whole {
        for i in 0..LANES {
            lanes[i] += chunk[i];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
    sum_of(lanes)
}

/// As [`sum`].
#[inline(always)]
fn sum_of_squares(line: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = line.as_chunks::<LANES>();
    for chunk in whole {
        for i in 0..LANES {
            lanes[i] += chunk[i] * chunk[i];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x * x;
    }
    sum_of(lanes)
}

/// The upper half is added to the lower one until one number is left.
#[inline(always)]
fn sum_of(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[half + i];
        }
        half /= 2;
    }
    lanes[0]
}

/// The largest number, or NaN if there is one.
#[inline(always)]
fn top(line: &[f32]) -> f32 {
    let mut top = f32::NEG_INFINITY;
    for &x in line {
        top = if x > top || x.is_nan() { x } else { top };
    }
    top
}
