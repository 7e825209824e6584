//! Products of tensors.

use std::sync::Arc;

use super::{Array, Data, each_index, places, strides};
use crate::dtype::DType;
use crate::op::Op;

pub(super) fn eval(op: &Op, x: &[Arc<Array>], dtype: DType, shape: Vec<usize>) -> Array {
    match op {
        Op::DotGeneral { batch, contract, .. } => dot(&x[0], &x[1], (batch, contract), (dtype, shape)),
        Op::Conv { strides, padding, dilation, groups } => {
            conv(&x[0], &x[1], (strides, padding, dilation, *groups), (dtype, shape))
        }
        other => unreachable!("{} is not a contraction", other.name()),
    }
}

/// Places of one operand: `[batch][free][contracted]`.
fn sides(x: &Array, batch: &[usize], contract: &[usize]) -> [Vec<usize>; 3] {
    let s = strides(&x.shape);
    let of = |axes: &[usize]| {
        let shape: Vec<usize> = axes.iter().map(|&a| x.shape[a]).collect();
        places(&shape, &axes.iter().map(|&a| s[a]).collect::<Vec<_>>(), 0)
    };
    let free: Vec<usize> =
        (0..x.shape.len()).filter(|a| !batch.contains(a) && !contract.contains(a)).collect();
    [of(batch), of(&free), of(contract)]
}

type Axes<'a> = (&'a [(usize, usize)], &'a [(usize, usize)]);

fn dot(a: &Array, b: &Array, (batch, contract): Axes<'_>, (dtype, shape): (DType, Vec<usize>)) -> Array {
    let left = |p: &[(usize, usize)]| p.iter().map(|x| x.0).collect::<Vec<_>>();
    let right = |p: &[(usize, usize)]| p.iter().map(|x| x.1).collect::<Vec<_>>();
    let [ab, af, ac] = sides(a, &left(batch), &left(contract));
    let [bb, bf, bc] = sides(b, &right(batch), &right(contract));
    let mut floats = vec![];
    let mut ints = vec![];
    for (&ba, &bb) in ab.iter().zip(&bb) {
        for &i in &af {
            for &j in &bf {
                let places = ac.iter().zip(&bc).map(|(x, y)| (ba + i + x, bb + j + y));
                match (&a.data, &b.data) {
                    (Data::Float(u), Data::Float(v)) => floats.push(places.map(|(x, y)| u[x] * v[y]).sum()),
                    (Data::Int(u), Data::Int(v)) => {
                        ints.push(places.fold(0i64, |s, (x, y)| s.wrapping_add(u[x].wrapping_mul(v[y]))));
                    }
                    _ => unreachable!("the verifier makes the types agree"),
                }
            }
        }
    }
    match (a.dtype.is_float(), dtype.is_float()) {
        (true, true) => Array::rounded(dtype, shape, floats),
        (true, false) => Array::wrapped(dtype, shape, floats.into_iter().map(|f| f as i64).collect()),
        (false, true) => Array::rounded(dtype, shape, ints.into_iter().map(|i| i as f64).collect()),
        (false, false) => Array::wrapped(dtype, shape, ints),
    }
}

type Windowing<'a> = (&'a [usize], &'a [(usize, usize)], &'a [usize], usize);

fn conv(
    x: &Array,
    w: &Array,
    (step, padding, dilation, groups): Windowing<'_>,
    (dtype, shape): (DType, Vec<usize>),
) -> Array {
    let (xs, ws) = (strides(&x.shape), strides(&w.shape));
    let (kernel, channels) = (&w.shape[2..], w.shape[1]);
    let outputs_per_group = w.shape[0] / groups;
    let mut out = Vec::with_capacity(shape.iter().product());
    each_index(&shape, |o| {
        let group = o[1] / outputs_per_group;
        let mut sum = 0.0;
        each_index(kernel, |k| {
            let at = |i: usize| (o[i + 2] * step[i] + k[i] * dilation[i]).checked_sub(padding[i].0);
            let inside: Option<Vec<usize>> =
                (0..k.len()).map(|i| at(i).filter(|&p| p < x.shape[i + 2])).collect();
            let Some(place) = inside else { return };
            let xp: usize = o[0] * xs[0] + place.iter().zip(&xs[2..]).map(|(p, s)| p * s).sum::<usize>();
            let wp: usize = o[1] * ws[0] + k.iter().zip(&ws[2..]).map(|(p, s)| p * s).sum::<usize>();
            for c in 0..channels {
                sum += x.floats()[xp + (group * channels + c) * xs[1]] * w.floats()[wp + c * ws[1]];
            }
        });
        out.push(sum);
    });
    Array::rounded(dtype, shape, out)
}
