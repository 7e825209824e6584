//! Sorting, the largest of a line, and drawing a token.
//!
//! Algorithm: lines are gathered as lanes; sorting is the library's stable sort of places, top-k selects before it
//! sorts. NaN counts as the largest. Lines are cut over the threads. Checked against the interpreter.

use std::cmp::Ordering;

use mlxcel_engine::sampling::{self, SamplingParams};
use mlxcel_ir::DType;

use crate::context::Context;
use crate::lanes::{Class, Lane, indices};
use crate::layout::{Layout, Walk};
use crate::view::{Out, Shared, View};

/// Rising, with NaN above everything.
fn compare<L: Lane>(a: L, b: L) -> Ordering {
    a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(Ordering::Equal))
}

/// Sorted values and their old places along `axis`.
pub(crate) fn sort(ctx: &Context, x: &View<'_>, axis: usize, descending: bool, outs: &mut [Out<'_>]) {
    let pick = Pick { axis, keep: x.shape()[axis], descending };
    each_class(ctx, x, pick, outs);
}

/// The `k` largest of the last axis and their places.
pub(crate) fn top_k(ctx: &Context, x: &View<'_>, k: usize, outs: &mut [Out<'_>]) {
    let pick = Pick { axis: x.layout.rank() - 1, keep: k, descending: true };
    each_class(ctx, x, pick, outs);
}

#[derive(Clone, Copy)]
struct Pick {
    axis: usize,
    keep: usize,
    descending: bool,
}

fn each_class(ctx: &Context, x: &View<'_>, pick: Pick, outs: &mut [Out<'_>]) {
    match Class::of(x.dtype) {
        Class::F32 => pick_lanes::<f32>(ctx, x, pick, outs),
        Class::F64 => pick_lanes::<f64>(ctx, x, pick, outs),
        Class::I64 if x.dtype == DType::U64 => pick_lanes::<u64>(ctx, x, pick, outs),
        Class::I64 => pick_lanes::<i64>(ctx, x, pick, outs),
    }
}

fn pick_lanes<L: Lane>(ctx: &Context, x: &View<'_>, pick: Pick, outs: &mut [Out<'_>]) {
    let [values, places] = outs else { unreachable!("the op has two results") };
    if values.elements() == 0 {
        return;
    }
    let (n, stride) = (x.shape()[pick.axis], x.layout.strides[pick.axis]);
    let target = Layout::contiguous(&values.shape);
    let layouts = [x.layout.cut(pick.axis, 1, 1), target.cut(pick.axis, 1, 1)];
    let lines = layouts[0].elements();
    let (dtype, size, step) = (values.dtype, values.size(), target.strides[pick.axis]);
    let (to, to_places) = (Shared(values.bytes().as_mut_ptr()), Shared(places.slice::<i32>().as_mut_ptr()));
    ctx.threads.each(lines, |line| {
        let walk = Walk::new(&layouts, layouts[0].rank(), line);
        let mut numbers = vec![L::default(); n];
        L::load(x.dtype, x.bytes(), (walk.offsets[0], stride), &mut numbers);
        for (i, place) in order(&numbers, pick).into_iter().enumerate() {
            let at = walk.offsets[1] + i * step;
            put(to, to_places, at, (dtype, size), (numbers[place as usize], place));
        }
    });
}

#[allow(unsafe_code)]
fn put<L: Lane>(
    to: Shared<u8>,
    places: Shared<i32>,
    at: usize,
    (dtype, size): (DType, usize),
    (value, place): (L, u32),
) {
    // SAFETY: lines are disjoint, each belongs to one task, and `at` lies within both results.
    unsafe {
        L::store(dtype, &[value], std::slice::from_raw_parts_mut(to.at(at * size), size));
        *places.at(at) = place as i32;
    }
}

/// The places of the first `keep` numbers in order; equal ones keep theirs.
fn order<L: Lane>(numbers: &[L], pick: Pick) -> Vec<u32> {
    let mut places: Vec<u32> = (0..numbers.len() as u32).collect();
    let by = |a: &u32, b: &u32| {
        let rising = compare(numbers[*a as usize], numbers[*b as usize]);
        (if pick.descending { rising.reverse() } else { rising }).then(a.cmp(b))
    };
    if pick.keep < places.len() && pick.keep > 0 {
        places.select_nth_unstable_by(pick.keep - 1, by);
    }
    places.truncate(pick.keep);
    places.sort_unstable_by(by);
    places
}

/// The place of the first of the largest along `axis`.
pub(crate) fn argmax(ctx: &Context, x: &View<'_>, axis: usize, out: &mut Out<'_>) {
    match Class::of(x.dtype) {
        Class::F32 => argmax_lanes::<f32>(ctx, x, axis, out),
        Class::F64 => argmax_lanes::<f64>(ctx, x, axis, out),
        Class::I64 if x.dtype == DType::U64 => argmax_lanes::<u64>(ctx, x, axis, out),
        Class::I64 => argmax_lanes::<i64>(ctx, x, axis, out),
    }
}

fn argmax_lanes<L: Lane>(ctx: &Context, x: &View<'_>, axis: usize, out: &mut Out<'_>) {
    let (n, stride) = (x.shape()[axis], x.layout.strides[axis]);
    let lines = [x.layout.cut(axis, 1, 1)];
    ctx.threads.chunks(out.slice::<i32>(), 1, |line, to| {
        let walk = Walk::new(&lines, lines[0].rank(), line);
        let mut numbers = vec![L::default(); n];
        L::load(x.dtype, x.bytes(), (walk.offsets[0], stride), &mut numbers);
        let better =
            |best: usize, i: usize| if compare(numbers[i], numbers[best]).is_gt() { i } else { best };
        to[0] = (1..n).fold(0, better) as i32;
    });
}

/// `(logits, temperature, top_k, top_p, min_p, seed, step)`: one token per row, as the host would draw it.
pub(crate) fn sample(ctx: &Context, x: &[View<'_>], out: &mut Out<'_>) {
    let [temperature, top_p, min_p] = [1, 3, 4].map(|i: usize| x[i].numbers::<f32>());
    let [top_k, seed, step] = [2, 5, 6].map(|i: usize| indices(&x[i]));
    let (logits, strides) = (&x[0], x[0].layout.strides);
    let row_layout = logits.layout.cut(0, 1, 1);
    ctx.threads.chunks(out.slice::<i32>(), 1, |row, to| {
        let line = logits.with_layout(row * strides[0], row_layout).floats();
        let params = SamplingParams {
            temperature: temperature[row],
            top_k: top_k[row].max(0) as u32,
            top_p: top_p[row],
            min_p: min_p[row],
            seed: seed[row] as u32,
        };
        to[0] = sampling::sample(&line, &params, step[row] as u32) as i32;
    });
}
