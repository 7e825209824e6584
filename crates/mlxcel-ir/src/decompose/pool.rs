//! Pooling: one strided slice of the padded operand per offset in the window, combined.

use crate::builder::Tensor;
use crate::op::{PoolKind, ReduceOp};

type Windowing<'a> = (&'a [usize], &'a [usize], &'a [(usize, usize)]);

pub(super) fn pool<'g>(
    x: Tensor<'g>,
    kind: PoolKind,
    (window, strides, padding): Windowing<'_>,
) -> Tensor<'g> {
    let low: Vec<usize> = [0, 0].into_iter().chain(padding.iter().map(|p| p.0)).collect();
    let high: Vec<usize> = [0, 0].into_iter().chain(padding.iter().map(|p| p.1)).collect();
    let combine = |t: Tensor<'g>, op: ReduceOp, neutral: f64| {
        let padded = t.pad(&low, &high, t.number(neutral));
        let parts = offsets(window).into_iter().map(|o| window_slice(padded, &o, window, strides));
        let join = |a: Tensor<'g>, b: Tensor<'g>| match op {
            ReduceOp::Sum => a + b,
            ReduceOp::Prod => a * b,
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
        };
        parts.reduce(join).expect("a window has at least one element")
    };
    let bound = lowest(x);
    match kind {
        PoolKind::Max => combine(x, ReduceOp::Max, bound),
        PoolKind::Min => combine(x, ReduceOp::Min, -bound),
        PoolKind::Sum => combine(x, ReduceOp::Sum, 0.0),
        PoolKind::Prod => combine(x, ReduceOp::Prod, 1.0),
        PoolKind::Mean => {
            let ones = x.number(1.0).broadcast(x.shape());
            combine(x, ReduceOp::Sum, 0.0) / combine(ones, ReduceOp::Sum, 0.0)
        }
    }
}

/// A number below everything the type of `x` holds; its negation saturates to the highest.
fn lowest(x: Tensor<'_>) -> f64 {
    if x.dtype().is_float() { f64::NEG_INFINITY } else { -1e19 }
}

/// Every place in the window, last axis fastest.
fn offsets(window: &[usize]) -> Vec<Vec<usize>> {
    window.iter().fold(vec![vec![]], |places, &w| {
        places.iter().flat_map(|p| (0..w).map(move |i| [p.as_slice(), &[i]].concat())).collect()
    })
}

fn window_slice<'g>(padded: Tensor<'g>, offset: &[usize], window: &[usize], strides: &[usize]) -> Tensor<'g> {
    let mut part = padded;
    for (i, (&at, (&w, &s))) in offset.iter().zip(window.iter().zip(strides)).enumerate() {
        let n = padded.dim(i + 2);
        part = match n.as_fixed() {
            Some(n) => part.slice_step(i + 2, at, n - w + at + 1, s),
            None => part.slice(i + 2, at, n.minus(&crate::Dim::fixed(w - 1 - at))),
        };
    }
    part
}
