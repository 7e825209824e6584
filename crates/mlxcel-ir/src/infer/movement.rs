//! Typing of the ops that move, index, reduce and contract.

use super::{Inferred, axis_in, ensure, int, one, rank_is, same_dtype, same_shape};
use crate::dtype::DType;
use crate::op::Op;
use crate::shape::{Dim, Shape, Type, product};

pub(super) fn infer(op: &Op, x: &[&Type]) -> Inferred {
    match op {
        Op::Reshape { shape } => {
            let (have, want) = (x[0].elements(), product(shape));
            ensure(have == want, || format!("cannot reshape {have} elements to {shape:?}"))?;
            one(x[0].with_shape(shape.clone()))
        }
        Op::Broadcast { shape } => {
            let result = super::broadcast(&x[0].shape, shape)?;
            ensure(&result == shape, || format!("{:?} does not broadcast to {shape:?}", x[0].shape))?;
            one(x[0].with_shape(result))
        }
        Op::Transpose { perm } => {
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            ensure(sorted.iter().copied().eq(0..x[0].rank()), || {
                format!("{perm:?} is not a permutation of {} axes", x[0].rank())
            })?;
            one(x[0].with_shape(perm.iter().map(|&p| x[0].shape[p].clone()).collect()))
        }
        Op::Slice { axis, start, end, step } => slice(x[0], *axis, (start, end), *step),
        Op::Concat { axis } => concat(x, *axis),
        Op::Pad { low, high } => pad(x[0], x[1], low, high),
        Op::DynamicSlice { sizes } => {
            starts(x[0], x[1])?;
            ensure(sizes.len() == x[0].rank(), || format!("{} sizes for rank {}", sizes.len(), x[0].rank()))?;
            fits(sizes, &x[0].shape)?;
            one(x[0].with_shape(sizes.clone()))
        }
        Op::UpdateSlice => {
            same_dtype(x[0], x[1])?;
            rank_is("the update", x[1], x[0].rank())?;
            fits(&x[1].shape, &x[0].shape)?;
            starts(x[0], x[2])?;
            one(x[0].clone())
        }
        Op::Gather { .. } | Op::TakeAlong { .. } | Op::Scatter { .. } => indexed(op, x),
        Op::Reduce { axes, .. } => {
            axes.iter().try_for_each(|&a| axis_in(a, x[0]))?;
            numeric(x[0])?;
            let kept = x[0].shape.iter().enumerate().filter(|(i, _)| !axes.contains(i));
            one(x[0].with_shape(kept.map(|(_, d)| d.clone()).collect()))
        }
        Op::Cumulative { axis, .. } => {
            axis_in(*axis, x[0])?;
            numeric(x[0])?;
            one(x[0].clone())
        }
        Op::Sort { axis, .. } => {
            axis_in(*axis, x[0])?;
            Ok(vec![x[0].clone(), x[0].with_dtype(DType::I32)])
        }
        Op::AllReduce => {
            numeric(x[0])?;
            one(x[0].clone())
        }
        Op::AllGather { axis, members } => {
            axis_in(*axis, x[0])?;
            ensure(*members > 0, || "a group of nobody".into())?;
            let mut shape = x[0].shape.clone();
            shape[*axis] = shape[*axis].times(&Dim::fixed(*members));
            one(x[0].with_shape(shape))
        }
        Op::DotGeneral { batch, contract, dtype } => dot(x[0], x[1], (batch, contract), *dtype),
        Op::Conv { strides, padding, dilation, groups } => {
            conv(x[0], x[1], (strides, padding, dilation), *groups)
        }
        other => unreachable!("{} is typed elsewhere", other.name()),
    }
}

fn indexed(op: &Op, x: &[&Type]) -> Inferred {
    int("the index", x[1])?;
    match op {
        Op::Gather { axis } => {
            axis_in(*axis, x[0])?;
            let mut shape = x[0].shape[..*axis].to_vec();
            shape.extend(x[1].shape.iter().cloned());
            shape.extend(x[0].shape[axis + 1..].iter().cloned());
            one(x[0].with_shape(shape))
        }
        Op::TakeAlong { axis } => {
            axis_in(*axis, x[0])?;
            let mut expected = x[0].shape.clone();
            rank_is("the index", x[1], expected.len())?;
            expected[*axis] = x[1].shape[*axis].clone();
            same_shape("the index", x[1], &expected)?;
            one(x[0].with_shape(expected))
        }
        Op::Scatter { .. } => {
            same_dtype(x[0], x[2])?;
            axis_in(0, x[0])?;
            rank_is("the index", x[1], 1)?;
            let mut expected = x[0].shape.clone();
            expected[0] = x[1].shape[0].clone();
            same_shape("the update", x[2], &expected)?;
            one(x[0].clone())
        }
        other => unreachable!("{} takes no index", other.name()),
    }
}

fn numeric(t: &Type) -> Result<(), String> {
    ensure(t.dtype.is_int() || t.dtype.is_float(), || format!("{} cannot be reduced", t.dtype))
}

fn starts(x: &Type, starts: &Type) -> Result<(), String> {
    int("starts", starts)?;
    same_shape("starts", starts, &[Dim::fixed(x.rank())])
}

/// Fixed sizes cannot exceed the fixed axes they are cut from, so that clamped starts keep the part inside.
fn fits(part: &[Dim], whole: &[Dim]) -> Result<(), String> {
    let exceeds = |(p, w): (&Dim, &Dim)| matches!((p.as_fixed(), w.as_fixed()), (Some(p), Some(w)) if p > w);
    ensure(!part.iter().zip(whole).any(exceeds), || format!("{part:?} does not fit in {whole:?}"))
}

fn slice(x: &Type, axis: usize, (start, end): (&Dim, &Dim), step: usize) -> Inferred {
    axis_in(axis, x)?;
    ensure(step > 0, || "a step of zero".into())?;
    let bounds = (start.as_fixed(), end.as_fixed());
    if let (Some(s), Some(e)) = bounds {
        ensure(s <= e, || format!("start {s} is after end {e}"))?;
        if let Some(n) = x.shape[axis].as_fixed() {
            ensure(e <= n, || format!("end {e} is beyond the axis of {n}"))?;
        }
    }
    let length = end.minus(start);
    let length = match (step, length.as_fixed()) {
        (1, _) => length,
        (_, Some(n)) => Dim::fixed(n.div_ceil(step)),
        _ => return Err("a stepped slice needs fixed bounds".into()),
    };
    let mut shape = x.shape.clone();
    shape[axis] = length;
    one(x.with_shape(shape))
}

fn concat(x: &[&Type], axis: usize) -> Inferred {
    let first = x.first().ok_or("takes at least one operand")?;
    axis_in(axis, first)?;
    let mut shape = first.shape.clone();
    for t in &x[1..] {
        same_dtype(first, t)?;
        rank_is("an operand", t, shape.len())?;
        let mut expected = first.shape.clone();
        expected[axis] = t.shape[axis].clone();
        same_shape("an operand", t, &expected)?;
        shape[axis] = shape[axis].plus(&t.shape[axis]);
    }
    one(first.with_shape(shape))
}

fn pad(x: &Type, value: &Type, low: &[usize], high: &[usize]) -> Inferred {
    same_dtype(x, value)?;
    rank_is("the padding value", value, 0)?;
    ensure(low.len() == x.rank() && high.len() == x.rank(), || "one low and one high per axis".into())?;
    let grown = |(i, d): (usize, &Dim)| d.plus(&Dim::fixed(low[i])).plus(&Dim::fixed(high[i]));
    one(x.with_shape(x.shape.iter().enumerate().map(grown).collect()))
}

/// Pairs of axes of two operands: batch, then contracted.
type Axes<'a> = (&'a [(usize, usize)], &'a [(usize, usize)]);

fn dot(a: &Type, b: &Type, (batch, contract): Axes<'_>, dtype: DType) -> Inferred {
    same_dtype(a, b)?;
    let mut used = (vec![], vec![]);
    for &(i, j) in batch.iter().chain(contract) {
        axis_in(i, a)?;
        axis_in(j, b)?;
        ensure(a.shape[i] == b.shape[j], || {
            format!("axis {i} of {:?} and axis {j} of {:?} differ", a.shape, b.shape)
        })?;
        ensure(!used.0.contains(&i) && !used.1.contains(&j), || "an axis is used twice".into())?;
        used.0.push(i);
        used.1.push(j);
    }
    let free = |t: &Type, used: &[usize]| -> Shape {
        t.shape.iter().enumerate().filter(|(i, _)| !used.contains(i)).map(|(_, d)| d.clone()).collect()
    };
    let mut shape: Shape = batch.iter().map(|&(i, _)| a.shape[i].clone()).collect();
    shape.extend(free(a, &used.0));
    shape.extend(free(b, &used.1));
    one(Type::new(dtype, shape))
}

fn conv(
    x: &Type,
    w: &Type,
    (strides, padding, dilation): (&[usize], &[(usize, usize)], &[usize]),
    groups: usize,
) -> Inferred {
    same_dtype(x, w)?;
    super::float("x", x)?;
    rank_is("the kernel", w, x.rank())?;
    let spatial =
        x.rank().checked_sub(2).filter(|s| (1..=3).contains(s)).ok_or("takes 1 to 3 spatial axes")?;
    ensure(strides.len() == spatial && padding.len() == spatial && dilation.len() == spatial, || {
        format!("{spatial} strides, paddings and dilations are needed")
    })?;
    let channels = w.shape[1].times(&Dim::fixed(groups));
    ensure(groups > 0 && channels == x.shape[1], || {
        format!("{channels} channels expected, not {}", x.shape[1])
    })?;
    ensure(w.shape[0].divide(&Dim::fixed(groups)).is_some(), || {
        format!("{groups} groups do not divide the outputs")
    })?;
    let mut shape = vec![x.shape[0].clone(), w.shape[0].clone()];
    for i in 0..spatial {
        let kernel =
            w.shape[i + 2].as_fixed().filter(|&k| k > 0).ok_or("the kernel must be fixed and not empty")?;
        let reach = dilation[i].saturating_mul(kernel - 1).saturating_add(1);
        shape.push(windows(&x.shape[i + 2], reach, strides[i], padding[i])?);
    }
    one(x.with_shape(shape))
}

/// How many windows of `reach` fit on an axis.
pub(super) fn windows(
    axis: &Dim,
    reach: usize,
    stride: usize,
    (low, high): (usize, usize),
) -> Result<Dim, String> {
    ensure(stride > 0, || "a stride of zero".into())?;
    let padded = axis.plus(&Dim::fixed(low)).plus(&Dim::fixed(high));
    match padded.as_fixed() {
        Some(n) if n >= reach => Ok(Dim::fixed((n - reach) / stride + 1)),
        Some(n) => Err(format!("a window of {reach} does not fit an axis of {n}")),
        None if stride == 1 => Ok(padded.minus(&Dim::fixed(reach - 1))),
        None => Err("a strided window needs a fixed axis".into()),
    }
}
