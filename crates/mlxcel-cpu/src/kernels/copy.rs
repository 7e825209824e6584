//! Moving elements without looking at them: strided copies, joins, padding and slices. Types matter only by their
//! size.
//!
//! Algorithm: axes that continue each other are merged; what is left is copied run by run, whole runs at once where
//! the source is contiguous, so a copy of contiguous memory is one `memcpy`. Large copies are cut over the threads.
//! Checked against the interpreter of primitives.

use crate::context::Context;
use crate::layout::{Layout, Walk};
use crate::view::{Out, Plain, View};

/// Elements that make a task of their own worth its start.
const PARALLEL_MIN: usize = 64 * 1024;

/// Fills `out` with the elements of `view` in row-major order.
pub(crate) fn strided(ctx: &Context, view: &View<'_>, out: &mut Out<'_>) {
    assert_eq!(view.elements(), out.elements(), "a copy of another size");
    match view.size() {
        1 => typed::<u8>(ctx, view, out.slice()),
        2 => typed::<u16>(ctx, view, out.slice()),
        4 => typed::<u32>(ctx, view, out.slice()),
        _ => typed::<u64>(ctx, view, out.slice()),
    }
}

fn typed<T: Plain>(ctx: &Context, view: &View<'_>, out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    let source = view.elements_of::<T>();
    let layouts = [view.layout.merged()];
    let rank = layouts[0].rank();
    if rank == 0 {
        out[0] = source[0];
        return;
    }
    let (run, stride) = (layouts[0].shape[rank - 1], layouts[0].strides[rank - 1]);
    let lines = out.len() / run;
    let per_task = if out.len() < PARALLEL_MIN { lines } else { ctx.threads.lines_per_task(lines, run) };
    ctx.threads.chunks(out, per_task * run, |task, part| {
        let mut walk = Walk::new(&layouts, rank - 1, task * per_task);
        for line in part.chunks_mut(run) {
            copy_run(&source[walk.offsets[0]..], stride, line);
            walk.step();
        }
    });
}

fn copy_run<T: Copy>(from: &[T], stride: usize, to: &mut [T]) {
    match stride {
        0 => to.fill(from[0]),
        1 => to.copy_from_slice(&from[..to.len()]),
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(t, &f)| *t = f),
    }
}

/// Writes `view` into the part of `target` (row-major, of shape `shape`) that starts at element `offset`.
pub(crate) fn place(view: &View<'_>, target: &mut Out<'_>, offset: usize) {
    match view.size() {
        1 => place_typed::<u8>(view, target, offset),
        2 => place_typed::<u16>(view, target, offset),
        4 => place_typed::<u32>(view, target, offset),
        _ => place_typed::<u64>(view, target, offset),
    }
}

fn place_typed<T: Plain>(view: &View<'_>, target: &mut Out<'_>, offset: usize) {
    if view.elements() == 0 {
        return;
    }
    let into = Layout { shape: view.layout.shape, strides: Layout::contiguous(&target.shape).strides };
    let layouts = crate::layout::merge([view.layout, into]);
    let (source, to) = (view.elements_of::<T>(), target.slice::<T>());
    let rank = layouts[0].rank();
    if rank == 0 {
        to[offset] = source[0];
        return;
    }
    let (run, [from_stride, to_stride]) =
        (layouts[0].shape[rank - 1], [0, 1].map(|i: usize| layouts[i].strides[rank - 1]));
    let mut walk = Walk::new(&layouts, rank - 1, 0);
    for _ in 0..view.elements() / run {
        let (from, at) = (&source[walk.offsets[0]..], offset + walk.offsets[1]);
        if to_stride == 1 {
            copy_run(from, from_stride, &mut to[at..at + run]);
        } else {
            for i in 0..run {
                to[at + i * to_stride] = from[i * from_stride];
            }
        }
        walk.step();
    }
}

/// Operands one after the other along an axis.
pub(crate) fn concat(parts: &[View<'_>], axis: usize, out: &mut Out<'_>) {
    let inner: usize = out.shape[axis + 1..].iter().product();
    let mut offset = 0;
    for part in parts {
        place(part, out, offset);
        offset += part.shape()[axis] * inner;
    }
}

/// `low[i]` copies of the scalar before axis `i`, and as many after it as the result has room for.
pub(crate) fn pad(x: &View<'_>, value: &View<'_>, low: &[usize], out: &mut Out<'_>) {
    match x.size() {
        1 => fill::<u8>(value, out),
        2 => fill::<u16>(value, out),
        4 => fill::<u32>(value, out),
        _ => fill::<u64>(value, out),
    }
    let strides = Layout::contiguous(&out.shape).strides;
    place(x, out, low.iter().zip(strides.iter()).map(|(l, s)| l * s).sum());
}

fn fill<T: Plain>(value: &View<'_>, out: &mut Out<'_>) {
    out.slice::<T>().fill(value.elements_of::<T>()[0]);
}

/// Where a part of the given shape starts in the whole, with starts clamped so that it fits.
pub(crate) fn clamped_start(whole: &[usize], part: &[usize], starts: &[i64]) -> Vec<usize> {
    let clamp = |i: usize| starts[i].clamp(0, whole[i].saturating_sub(part[i]) as i64) as usize;
    (0..whole.len()).map(clamp).collect()
}
