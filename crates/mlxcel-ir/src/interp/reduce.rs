//! Reductions, running reductions and sorting, one line of an axis at a time.

use std::cmp::Ordering;

use super::elementwise::rank;
use super::{Array, Data, places, round, strides, wrap};
use crate::dtype::DType;
use crate::op::{Op, ReduceOp};

pub(super) fn eval(op: &Op, x: &Array, shape: Vec<usize>) -> Vec<Array> {
    match op {
        Op::Reduce { op, axes } => vec![reduce(*op, x, axes, shape)],
        Op::Cumulative { op, axis } => vec![cumulative(*op, x, *axis)],
        Op::Sort { axis, descending } => sort(x, *axis, *descending),
        other => unreachable!("{} is not a reduction", other.name()),
    }
}

fn combine_float(op: ReduceOp, a: f64, b: f64) -> f64 {
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        ReduceOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
        ReduceOp::Min if a.is_nan() || b.is_nan() => f64::NAN,
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
    }
}

fn combine_int(op: ReduceOp, a: i64, b: i64, dtype: DType) -> i64 {
    match op {
        ReduceOp::Sum => a.wrapping_add(b),
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Max if rank(dtype, b) > rank(dtype, a) => b,
        ReduceOp::Min if rank(dtype, b) < rank(dtype, a) => b,
        ReduceOp::Max | ReduceOp::Min => a,
    }
}

/// The result of reducing nothing.
fn neutral(op: ReduceOp, dtype: DType) -> (f64, i64) {
    let (low, high) = match dtype {
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::U32 => (0, u32::MAX as i64),
        DType::U8 => (0, u8::MAX as i64),
        DType::I8 => (i8::MIN as i64, i8::MAX as i64),
        DType::I16 => (i16::MIN as i64, i16::MAX as i64),
        DType::U16 => (0, u16::MAX as i64),
        DType::U64 => (0, u64::MAX as i64),
        _ => (i64::MIN, i64::MAX),
    };
    match op {
        ReduceOp::Sum => (0.0, 0),
        ReduceOp::Prod => (1.0, 1),
        ReduceOp::Max => (f64::NEG_INFINITY, low),
        ReduceOp::Min => (f64::INFINITY, high),
    }
}

/// The start of every line and the places along it.
fn lines(x: &Array, axes: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let s = strides(&x.shape);
    let part = |keep: bool| {
        let chosen: Vec<usize> = (0..x.shape.len()).filter(|a| axes.contains(a) != keep).collect();
        let shape: Vec<usize> = chosen.iter().map(|&a| x.shape[a]).collect();
        places(&shape, &chosen.iter().map(|&a| s[a]).collect::<Vec<_>>(), 0)
    };
    (part(true), part(false))
}

fn reduce(op: ReduceOp, x: &Array, axes: &[usize], shape: Vec<usize>) -> Array {
    let (starts, along) = lines(x, axes);
    let (zero_float, zero_int) = neutral(op, x.dtype);
    match &x.data {
        Data::Float(v) => {
            let line = |&s: &usize| along.iter().fold(zero_float, |a, &p| combine_float(op, a, v[s + p]));
            Array::rounded(x.dtype, shape, starts.iter().map(line).collect())
        }
        Data::Int(v) => {
            let line =
                |&s: &usize| along.iter().fold(zero_int, |a, &p| combine_int(op, a, v[s + p], x.dtype));
            Array::wrapped(x.dtype, shape, starts.iter().map(line).collect())
        }
    }
}

fn cumulative(op: ReduceOp, x: &Array, axis: usize) -> Array {
    let (starts, along) = lines(x, &[axis]);
    let mut out = x.clone();
    for s in starts {
        for pair in along.windows(2) {
            let (before, here) = (s + pair[0], s + pair[1]);
            match &mut out.data {
                Data::Float(v) => v[here] = combine_float(op, v[before], v[here]),
                Data::Int(v) => v[here] = wrap(x.dtype, combine_int(op, v[before], v[here], x.dtype)),
            }
        }
    }
    if let Data::Float(v) = &mut out.data {
        v.iter_mut().for_each(|f| *f = round(x.dtype, *f));
    }
    out
}

/// Stable; NaN counts as the largest.
fn sort(x: &Array, axis: usize, descending: bool) -> Vec<Array> {
    let (starts, along) = lines(x, &[axis]);
    let order = |a: usize, b: usize| -> Ordering {
        let rising = match &x.data {
            Data::Float(v) => match (v[a].is_nan(), v[b].is_nan()) {
                (false, false) => v[a].partial_cmp(&v[b]).expect("neither is NaN"),
                (a, b) => a.cmp(&b),
            },
            Data::Int(v) => rank(x.dtype, v[a]).cmp(&rank(x.dtype, v[b])),
        };
        if descending { rising.reverse() } else { rising }
    };
    let mut from = vec![0; x.len()];
    let mut index = vec![0; x.len()];
    for s in starts {
        let mut line: Vec<usize> = (0..along.len()).collect();
        line.sort_by(|&a, &b| order(s + along[a], s + along[b]));
        for (to, i) in line.into_iter().enumerate() {
            from[s + along[to]] = s + along[i];
            index[s + along[to]] = i as i64;
        }
    }
    vec![x.pick(x.shape.clone(), from.into_iter()), Array::wrapped(DType::I32, x.shape.clone(), index)]
}
