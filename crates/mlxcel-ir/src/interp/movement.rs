//! Reshaping, slicing, joining and indexing.

use std::sync::Arc;

use super::{Array, Data, EvalError, broadcast_strides, each_index, places, strides};
use crate::dtype::DType;
use crate::op::{Op, ScatterMode};
use crate::shape::Bindings;

pub(super) fn eval(
    op: &Op,
    x: &[Arc<Array>],
    dtype: DType,
    shape: Vec<usize>,
    bindings: &Bindings,
) -> Result<Array, EvalError> {
    Ok(match op {
        Op::Iota { axis, .. } => iota(dtype, shape, *axis),
        Op::Reshape { .. } => Array { shape, ..(*x[0]).clone() },
        Op::Broadcast { .. } => {
            let from = places(&shape, &broadcast_strides(&x[0].shape, &shape), 0);
            x[0].pick(shape, from.into_iter())
        }
        Op::Transpose { perm } => {
            let s = strides(&x[0].shape);
            let from = places(&shape, &perm.iter().map(|&p| s[p]).collect::<Vec<_>>(), 0);
            x[0].pick(shape, from.into_iter())
        }
        Op::Slice { axis, start, step, end } => {
            let bound = |d: &crate::Dim| {
                d.eval(bindings).ok_or_else(|| EvalError::Unbound { op: op.name(), dim: d.clone() })
            };
            let (start, end, length) = (bound(start)?, bound(end)?, x[0].shape[*axis]);
            if end > length {
                let reason = format!("end {end} is beyond the axis of {length}");
                return Err(EvalError::Mismatch { op: op.name(), reason });
            }
            let mut s = strides(&x[0].shape);
            let offset = start * s[*axis];
            s[*axis] *= step;
            let from = places(&shape, &s, offset);
            x[0].pick(shape, from.into_iter())
        }
        Op::Concat { axis } => concat(x, *axis, shape),
        Op::Pad { low, .. } => pad(&x[0], &x[1], low, shape),
        Op::DynamicSlice { .. } => {
            let offset = start_offset(&x[0].shape, &shape, x[1].ints());
            let from = places(&shape, &strides(&x[0].shape), offset);
            x[0].pick(shape, from.into_iter())
        }
        Op::UpdateSlice => {
            let offset = start_offset(&x[0].shape, &x[1].shape, x[2].ints());
            let to = places(&x[1].shape, &strides(&x[0].shape), offset);
            let mut from: Vec<usize> = (0..x[0].len()).collect();
            to.into_iter().enumerate().for_each(|(i, place)| from[place] = x[0].len() + i);
            join(&[&x[0], &x[1]]).pick(shape, from.into_iter())
        }
        Op::Gather { axis } => gather(&x[0], &x[1], *axis, shape),
        Op::TakeAlong { axis } => take_along(&x[0], &x[1], *axis, shape),
        Op::Scatter { mode } => scatter(x, *mode),
        other => return Err(EvalError::Composite { op: other.name() }),
    })
}

fn iota(dtype: DType, shape: Vec<usize>, axis: usize) -> Array {
    let mut values = Vec::with_capacity(shape.iter().product());
    each_index(&shape, |i| values.push(i[axis] as i64));
    if dtype.is_float() {
        Array::rounded(dtype, shape, values.into_iter().map(|v| v as f64).collect())
    } else {
        Array::wrapped(dtype, shape, values)
    }
}

/// Arrays of one type laid end to end, as one long row.
pub(super) fn join(arrays: &[&Array]) -> Array {
    let data = match &arrays[0].data {
        Data::Float(_) => Data::Float(arrays.iter().flat_map(|a| a.floats()).copied().collect()),
        Data::Int(_) => Data::Int(arrays.iter().flat_map(|a| a.ints()).copied().collect()),
    };
    Array { dtype: arrays[0].dtype, shape: vec![arrays.iter().map(|a| a.len()).sum()], data }
}

pub(super) fn concat(x: &[Arc<Array>], axis: usize, shape: Vec<usize>) -> Array {
    let outer: usize = shape[..axis].iter().product();
    let all = join(&x.iter().map(|a| a.as_ref()).collect::<Vec<_>>());
    let mut from = Vec::with_capacity(all.len());
    for o in 0..outer {
        let mut base = 0;
        for a in x {
            let run = a.len() / outer;
            from.extend(base + o * run..base + (o + 1) * run);
            base += a.len();
        }
    }
    all.pick(shape, from.into_iter())
}

fn pad(x: &Array, value: &Array, low: &[usize], shape: Vec<usize>) -> Array {
    let mut from = vec![x.len(); shape.iter().product()];
    let target = strides(&shape);
    let offset: usize = low.iter().zip(&target).map(|(l, s)| l * s).sum();
    places(&x.shape, &target, offset).into_iter().enumerate().for_each(|(i, place)| from[place] = i);
    join(&[x, value]).pick(shape, from.into_iter())
}

/// The place of the first element, with starts clamped so that `part` fits in `whole`.
fn start_offset(whole: &[usize], part: &[usize], starts: &[i64]) -> usize {
    let clamp = |i: usize| starts[i].clamp(0, whole[i].saturating_sub(part[i]) as i64) as usize;
    strides(whole).iter().enumerate().map(|(i, s)| clamp(i) * s).sum()
}

fn clamp_index(i: i64, n: usize) -> usize {
    i.clamp(0, n as i64 - 1) as usize
}

fn gather(x: &Array, index: &Array, axis: usize, shape: Vec<usize>) -> Array {
    let n = x.shape[axis];
    let inner: usize = x.shape[axis + 1..].iter().product();
    let outer: usize = x.shape[..axis].iter().product();
    let mut from = Vec::with_capacity(shape.iter().product());
    for o in 0..outer {
        for &i in index.ints() {
            let start = (o * n + clamp_index(i, n)) * inner;
            from.extend(start..start + inner);
        }
    }
    x.pick(shape, from.into_iter())
}

fn take_along(x: &Array, index: &Array, axis: usize, shape: Vec<usize>) -> Array {
    let s = strides(&x.shape);
    let mut from = Vec::with_capacity(index.len());
    let mut next = index.ints().iter();
    each_index(&shape, |i| {
        let taken = clamp_index(*next.next().expect("the index has the result's shape"), x.shape[axis]);
        let place = |a: usize| if a == axis { taken } else { i[a] };
        from.push((0..i.len()).map(|a| place(a) * s[a]).sum());
    });
    x.pick(shape, from.into_iter())
}

fn scatter(x: &[Arc<Array>], mode: ScatterMode) -> Array {
    let (base, index, updates) = (&x[0], x[1].ints(), &x[2]);
    let row = base.shape[1..].iter().product::<usize>();
    let mut out = (**base).clone();
    for (u, &i) in index.iter().enumerate().filter(|(_, i)| (0..base.shape[0] as i64).contains(*i)) {
        for j in 0..row {
            let (to, from) = (i as usize * row + j, u * row + j);
            match (&mut out.data, &updates.data, mode) {
                (Data::Float(a), Data::Float(b), ScatterMode::Set) => a[to] = b[from],
                (Data::Float(a), Data::Float(b), ScatterMode::Add) => {
                    a[to] = super::round(base.dtype, a[to] + b[from])
                }
                (Data::Int(a), Data::Int(b), ScatterMode::Set) => a[to] = b[from],
                (Data::Int(a), Data::Int(b), ScatterMode::Add) => {
                    a[to] = super::wrap(base.dtype, a[to].wrapping_add(b[from]));
                }
                _ => unreachable!("the verifier makes the types agree"),
            }
        }
    }
    out
}

/// Slice `i` of the first axis.
pub(super) fn row(a: &Array, i: usize) -> Array {
    let run = a.shape[1..].iter().product::<usize>();
    a.pick(a.shape[1..].to_vec(), i * run..(i + 1) * run)
}

/// Rows on top of each other; `shape` gives the shape of a row when there is none.
pub(super) fn stack(rows: &[&Array], dtype: DType, shape: impl FnOnce() -> Vec<usize>) -> Array {
    let Some(first) = rows.first() else {
        let data = if dtype.is_float() { Data::Float(vec![]) } else { Data::Int(vec![]) };
        return Array { dtype, shape: [&[0], shape().as_slice()].concat(), data };
    };
    let joined = join(rows);
    Array { shape: [&[rows.len()], first.shape.as_slice()].concat(), ..joined }
}
