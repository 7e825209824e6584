//! Softmax and the norms. Statistics are taken in f32 at least, whatever the type of the operand.

use crate::builder::Tensor;
use crate::dtype::DType;
use crate::op::ReduceOp;
use crate::shape::Dim;

/// The type statistics are computed in.
pub(super) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

pub(super) fn softmax(x: Tensor<'_>, axis: usize) -> Tensor<'_> {
    let w = x.cast(wide(x.dtype()));
    let e = (w - w.reduce_keep(ReduceOp::Max, axis)).exp();
    (e / e.reduce_keep(ReduceOp::Sum, axis)).cast(x.dtype())
}

pub(super) fn layer_norm<'g>(
    x: Tensor<'g>,
    eps: f64,
    weight: Option<Tensor<'g>>,
    bias: Option<Tensor<'g>>,
) -> Tensor<'g> {
    let (axis, w) = (x.rank() - 1, x.cast(wide(x.dtype())));
    let mut y = normalise(w, axis, eps);
    if let Some(weight) = weight {
        y = y * weight.cast(y.dtype());
    }
    if let Some(bias) = bias {
        y = y + bias.cast(y.dtype());
    }
    y.cast(x.dtype())
}

/// Zero mean and unit variance along an axis.
fn normalise(x: Tensor<'_>, axis: usize, eps: f64) -> Tensor<'_> {
    let centred = x - x.mean_keep(axis);
    centred * ((centred * centred).mean_keep(axis) + eps).rsqrt()
}

pub(super) fn rms_norm<'g>(x: Tensor<'g>, eps: f64, weight: Option<Tensor<'g>>) -> Tensor<'g> {
    let (axis, w) = (x.rank() - 1, x.cast(wide(x.dtype())));
    let y = w * ((w * w).mean_keep(axis) + eps).rsqrt();
    weight.map_or(y, |weight| y * weight.cast(y.dtype())).cast(x.dtype())
}

pub(super) fn group_norm<'g>(x: &[Tensor<'g>], eps: f64, groups: usize) -> Tensor<'g> {
    let full = x[0].shape();
    let (n, c) = (full[0].clone(), full[1].clone());
    let rest =
        crate::shape::product(&full[1..]).divide(&Dim::fixed(groups)).expect("groups divide the channels");
    let wide = x[0].cast(wide(x[0].dtype()));
    let y = normalise(wide.reshape(vec![n, Dim::fixed(groups), rest]), 2, eps).reshape(full.clone());
    let mut per_channel = vec![Dim::fixed(1); full.len()];
    per_channel[1] = c;
    let parameter = |t: Tensor<'g>| t.cast(y.dtype()).reshape(per_channel.clone());
    (y * parameter(x[1]) + parameter(x[2])).cast(x[0].dtype())
}
