//! Ops that only look at memory differently.

use mlxcel_engine::EngineError;
use mlxcel_ir::Op;
use mlxcel_ir::interp::EvalError;

use super::Run;
use crate::kernels::copy::clamped_start;
use crate::lanes::indices;
use crate::layout::{Dims, Layout};
use crate::plan::Step;
use crate::view::View;

impl<'a> Run<'a> {
    /// The operand as the op shows it; `None` if that takes a copy.
    pub(super) fn moved(
        &self,
        step: &Step,
        x: &[View<'a>],
        shape: &Dims,
    ) -> Result<Option<View<'a>>, EngineError> {
        let view = &x[0];
        let l = &view.layout;
        Ok(Some(match &step.op {
            Op::Reshape { .. } => return Ok(l.reshape(shape).map(|l| view.with_layout(0, l))),
            Op::Broadcast { .. } => view.with_layout(0, l.broadcast(shape)),
            Op::Transpose { perm } => view.with_layout(0, l.transpose(perm)),
            Op::Slice { axis, step: stride, .. } => {
                let (sizes, length) = (self.plan.shape(step.sizes, &self.sizes), l.shape[*axis]);
                let (start, end) = (sizes[0], sizes[1]);
                if end > length {
                    let reason = format!("end {end} is beyond the axis of {length}");
                    return Err(EvalError::Mismatch { op: step.op.name(), reason }.into());
                }
                view.with_layout(start * l.strides[*axis], l.cut(*axis, shape[*axis], *stride))
            }
            Op::DynamicSlice { .. } => {
                let starts = clamped_start(&l.shape, shape, &indices(&x[1]));
                if shape.iter().zip(l.shape.iter()).any(|(part, whole)| part > whole) {
                    let reason = format!("{shape:?} does not fit in {:?}", l.shape);
                    return Err(EvalError::Mismatch { op: step.op.name(), reason }.into());
                }
                let offset = starts.iter().zip(l.strides.iter()).map(|(i, s)| i * s).sum();
                view.with_layout(offset, Layout { shape: *shape, strides: l.strides })
            }
            other => unreachable!("{} is not a view", other.name()),
        }))
    }
}
