//! `dot_general`: any batch and contracted axes, brought to `[batch, m, k]` times `[batch, n, k]`.
//!
//! Algorithm: both sides are permuted to that form by strides and copied only where their elements are not in order.
//! Floats up to 32 bits go through the product kernel of [`super::linear`], one batch after the other; doubles and
//! integers through plain loops. Checked against the interpreter.

use mlxcel_engine::EngineError;

use super::linear::{Job, Panel, each_tile};
use crate::context::Context;
use crate::lanes::{Class, Lane};
use crate::layout::Layout;
use crate::view::{Out, Shared, View};
use crate::weight::Rows;

/// Pairs of axes of the two sides.
pub(crate) type Pairs<'a> = &'a [(usize, usize)];

pub(crate) fn dot_general(
    ctx: &Context,
    [a, b]: [View<'_>; 2],
    (batch, contract): (Pairs<'_>, Pairs<'_>),
    out: &mut Out<'_>,
) -> Result<(), EngineError> {
    let left = |p: Pairs<'_>| p.iter().map(|x| x.0).collect::<Vec<_>>();
    let right = |p: Pairs<'_>| p.iter().map(|x| x.1).collect::<Vec<_>>();
    let (a, [count, m, k]) = canonical(&a, &left(batch), &left(contract));
    let (b, [_, n, _]) = canonical(&b, &right(batch), &right(contract));
    if out.elements() == 0 {
        return Ok(());
    }
    let (a, b) = (ctx.dense(&a)?, ctx.dense(&b)?);
    let sides = Sides { a: a.view, b: b.view, size: [count, m, n, k] };
    match Class::of(a.view.dtype) {
        Class::F32 => floats(ctx, &sides, out)?,
        Class::F64 => plain::<f64>(ctx, &sides, out, |s, x, y| s + x * y),
        Class::I64 => plain::<i64>(ctx, &sides, out, |s, x, y| s.wrapping_add(x.wrapping_mul(y))),
    }
    Ok(())
}

/// Both sides in row-major order, and `[batch, m, n, k]`.
struct Sides<'a> {
    a: View<'a>,
    b: View<'a>,
    size: [usize; 4],
}

/// The view with batch axes first, contracted ones last, and the sizes of the three groups.
fn canonical<'a>(x: &View<'a>, batch: &[usize], contract: &[usize]) -> (View<'a>, [usize; 3]) {
    let free: Vec<usize> =
        (0..x.layout.rank()).filter(|i| !batch.contains(i) && !contract.contains(i)).collect();
    let perm = [batch, &free, contract].concat();
    let size = |axes: &[usize]| axes.iter().map(|&i| x.shape()[i]).product();
    (x.with_layout(0, x.layout.transpose(&perm)), [size(batch), size(&free), size(contract)])
}

fn floats(ctx: &Context, sides: &Sides<'_>, out: &mut Out<'_>) -> Result<(), EngineError> {
    let [count, m, n, k] = sides.size;
    let a = sides.a.with_layout(0, Layout::contiguous(&[count * m, k]));
    let panel = Panel::new(ctx, &a, [count * m, k])?;
    let rows = Rows::of_view(&sides.b.with_layout(0, Layout::contiguous(&[count * n, k])));
    let (dtype, size) = (out.dtype, out.size());
    let to = Shared(out.bytes().as_mut_ptr());
    for i in 0..count {
        let part = panel.part(i * m..(i + 1) * m);
        let job = Job { panel: &part, paired: None, rows: &rows, first: i * n, n };
        each_tile(ctx, &job, &|t, row, sum| {
            super::linear::store(to, ((i * m + t) * n + row) * size, dtype, sum)
        });
    }
    Ok(())
}

fn plain<L: Lane>(ctx: &Context, sides: &Sides<'_>, out: &mut Out<'_>, step: impl Fn(L, L, L) -> L + Sync) {
    let [_, m, n, k] = sides.size;
    let (a, b) = (sides.a.numbers::<L>(), sides.b.numbers::<L>());
    let (dtype, size) = (out.dtype, out.size());
    let per_task = ctx.threads.lines_per_task(out.elements() / n, n * k);
    ctx.threads.chunks(out.bytes(), per_task * n * size, |task, bytes| {
        for (i, line) in bytes.chunks_mut(n * size).enumerate() {
            let row = task * per_task + i;
            let x = &a[row * k..(row + 1) * k];
            let dot = |j: usize| {
                let y = &b[(row / m * n + j) * k..][..k];
                x.iter().zip(y).fold(L::default(), |s, (&x, &y)| step(s, x, y))
            };
            L::store(dtype, &(0..n).map(dot).collect::<Vec<_>>(), line);
        }
    });
}
