//! Norms and softmax over lines of the last axis (softmax: of any axis).
//!
//! Algorithm: a line is widened to `f32` in scratch, statistics are taken over [`LANES`] partial sums in a fixed
//! order, and the result is rounded once. Lines are cut over the threads; a line never depends on its neighbours.
//! Checked against the decompositions, which compute in `f64`.
#![allow(unsafe_code)]

use crate::context::Context;
use crate::lanes::Lane;
use crate::layout::{Layout, Walk};
use crate::math;
use crate::simd::{Kernel, Simd};
use crate::view::{Out, Shared, View};

/// Partial sums of a line.
const LANES: usize = 16;

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
    let [weight, bias] = parameters.map(|p| p.map(|v| v.numbers::<f32>()));
    let job = Lines { kind, weight: weight.as_deref(), bias: bias.as_deref() };
    each_line(ctx, x, n, out, &job);
}

/// `(x + residual, rms_norm of it)`.
pub(crate) fn add_rms(ctx: &Context, [x, residual, weight]: [&View<'_>; 3], eps: f32, outs: &mut [Out<'_>]) {
    let [sum, normed] = outs else { unreachable!("the op has two results") };
    let (n, dtype, size) = (sum.shape[sum.shape.len() - 1], sum.dtype, sum.size());
    if sum.elements() == 0 {
        return;
    }
    let weight = weight.numbers::<f32>();
    let (a, b) = (Source::new(x, n), Source::new(residual, n));
    let job = Lines { kind: Norm::Rms { eps }, weight: Some(&weight), bias: None };
    let lines = sum.elements() / n;
    let per_task = ctx.threads.lines_per_task(lines, n);
    let normed = Shared(normed.bytes().as_mut_ptr());
    ctx.threads.chunks(sum.bytes(), per_task * n * size, |task, sums| {
        let (mut line, mut other) = (vec![0.0; n], vec![0.0; n]);
        for (i, sum) in sums.chunks_mut(n * size).enumerate() {
            let at = task * per_task + i;
            // SAFETY: both results have the same lines, and each belongs to one task.
            let out = unsafe { std::slice::from_raw_parts_mut(normed.at(at * n * size), n * size) };
            a.load(at, &mut line);
            b.load(at, &mut other);
            line.iter_mut().zip(&other).for_each(|(l, o)| *l += o);
            f32::store(dtype, &line, sum);
            // The norm sees the sum as it was rounded.
            f32::load(dtype, sum, (0, 1), &mut line);
            ctx.level.dispatch(Line { job: &job, line: &mut line });
            f32::store(dtype, &line, out);
        }
    });
}

/// Softmax along `axis`.
pub(crate) fn softmax(ctx: &Context, x: &View<'_>, axis: usize, out: &mut Out<'_>) {
    let job = Lines { kind: Norm::Softmax, weight: None, bias: None };
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

/// Lines of the last axis of a strided view.
struct Source<'a> {
    view: View<'a>,
    /// Of the other axes.
    outer: Layout,
    stride: usize,
}

impl<'a> Source<'a> {
    fn new(view: &View<'a>, n: usize) -> Self {
        let last = view.layout.rank().saturating_sub(1);
        debug_assert!(view.shape().last().copied().unwrap_or(1) == n, "lines of another length");
        let stride = view.layout.strides.last().copied().unwrap_or(1);
        let outer = Layout {
            shape: view.layout.shape[..last].iter().copied().collect(),
            strides: view.layout.strides[..last].iter().copied().collect(),
        };
        Source { view: *view, outer: outer.merged(), stride }
    }

    fn load(&self, line: usize, out: &mut [f32]) {
        let layouts = [self.outer];
        let offset = Walk::new(&layouts, self.outer.rank(), line).offsets[0];
        f32::load(self.view.dtype, self.view.bytes(), (offset, self.stride), out);
    }
}

fn each_line(ctx: &Context, x: &View<'_>, n: usize, out: &mut Out<'_>, job: &Lines<'_>) {
    let (dtype, size) = (out.dtype, out.size());
    if out.elements() == 0 {
        return;
    }
    let source = Source::new(x, n);
    let per_task = ctx.threads.lines_per_task(out.elements() / n, n);
    ctx.threads.chunks(out.bytes(), per_task * n * size, |task, bytes| {
        let mut line = vec![0.0; n];
        for (i, out) in bytes.chunks_mut(n * size).enumerate() {
            source.load(task * per_task + i, &mut line);
            ctx.level.dispatch(Line { job, line: &mut line });
            f32::store(dtype, &line, out);
        }
    });
}

struct Lines<'a> {
    kind: Norm,
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
}

struct Line<'a> {
    job: &'a Lines<'a>,
    line: &'a mut [f32],
}

impl Kernel for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let line = self.line;
        let n = line.len() as f32;
        match self.job.kind {
            Norm::Rms { eps } => {
                let scale = 1.0 / (sum(line, |x| x * x) / n + eps).sqrt();
                line.iter_mut().for_each(|x| *x *= scale);
            }
            Norm::Layer { eps } => {
                let mean = sum(line, |x| x) / n;
                line.iter_mut().for_each(|x| *x -= mean);
                let scale = 1.0 / (sum(line, |x| x * x) / n + eps).sqrt();
                line.iter_mut().for_each(|x| *x *= scale);
            }
            Norm::Softmax => {
                let top =
                    line.iter().fold(f32::NEG_INFINITY, |a, &x| if x > a || x.is_nan() { x } else { a });
                line.iter_mut().for_each(|x| *x = math::exp(*x - top));
                let total = sum(line, |x| x);
                line.iter_mut().for_each(|x| *x /= total);
            }
        }
        if let Some(w) = self.job.weight {
            line.iter_mut().zip(w).for_each(|(x, w)| *x *= w);
        }
        if let Some(b) = self.job.bias {
            line.iter_mut().zip(b).for_each(|(x, b)| *x += b);
        }
    }
}

/// A sum over lanes, then of the lanes.
#[inline(always)]
fn sum(line: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = line.as_chunks::<LANES>();
    for chunk in whole {
        for i in 0..LANES {
            lanes[i] += f(chunk[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f(x);
    }
    lanes.iter().sum()
}
