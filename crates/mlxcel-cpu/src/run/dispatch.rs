//! From ops to kernels.

use mlxcel_engine::EngineError;
use mlxcel_ir::interp::EvalError;
use mlxcel_ir::{Op, ReduceOp};

use super::Run;
use crate::context::Operand;
use crate::kernels::{attention, conv, copy, dot, index, linear, norm, order, recurrent, reduce};
use crate::lanes::{Lane, indices};
use crate::layout::Layout;
use crate::plan::Step;
use crate::roles::Roles;
use crate::view::{Out, View};

impl Run<'_> {
    /// Calls the kernel of an op that reads weights in their stored form.
    pub(super) fn compute_rows(
        &self,
        op: &Op,
        x: &[Operand<'_>],
        out: &mut Out<'_>,
        roles: Option<&Roles>,
    ) -> Result<(), EngineError> {
        match op {
            Op::Linear { .. } => linear::linear(self.ctx, (&x[0], &x[1..]), out, roles),
            Op::ExpertLinear { .. } => linear::expert_linear(self.ctx, x, out, roles),
            Op::Embedding { .. } => index::embedding(self.ctx, &x[0], &x[1].view, out),
            Op::Dequantize { .. } => {
                self.dequantize(&x[0], out);
                Ok(())
            }
            other => unreachable!("{} reads no rows", other.name()),
        }
    }

    /// Calls the kernel of an op that is neither elementwise, a view nor control flow.
    pub(super) fn compute(
        &self,
        step: &Step,
        v: &[View<'_>],
        outs: &mut [Out<'_>],
    ) -> Result<(), EngineError> {
        let (ctx, op) = (self.ctx, &step.op);
        let out = &mut outs[0];
        match op {
            Op::DotGeneral { batch, contract, .. } => {
                dot::dot_general(ctx, [v[0], v[1]], (batch, contract), out)?
            }
            Op::Conv { strides, padding, dilation, groups } => {
                let windows = conv::Windows { strides, padding, dilation, groups: *groups };
                conv::conv(ctx, &v[0], &v[1], windows, out);
            }
            Op::Attention(spec) => attention::dense(ctx, spec, v, out),
            Op::SelectiveScan => recurrent::selective_scan(ctx, v, outs),
            Op::CausalConv => recurrent::causal_conv(ctx, v, outs),
            Op::Softmax { .. } | Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::AddRmsNorm { .. } => {
                self.normalise(op, v, outs);
            }
            Op::Sort { .. } | Op::TopK { .. } | Op::ArgMax { .. } | Op::Sample => self.order(op, v, outs),
            Op::Reduce { op, axes } => self.reduce(*op, &v[0], axes, out),
            Op::Cumulative { op, axis } => reduce::cumulative(ctx, *op, &v[0], *axis, out),
            Op::Size { .. } => {
                let n = self.plan.shape(step.sizes, &self.sizes)[0] as i64;
                i64::store(out.dtype, &[n], out.bytes());
            }
            _ => self.move_elements(op, v, out)?,
        }
        Ok(())
    }

    fn dequantize(&self, x: &Operand<'_>, out: &mut Out<'_>) {
        let matrix = x.matrix.expect("only weights are packed");
        index::dequantize(self.ctx, &matrix.rows(), out);
    }

    fn reduce(&self, op: ReduceOp, x: &View<'_>, axes: &[usize], out: &mut Out<'_>) {
        reduce::reduce(self.ctx, op, x, axes, out);
    }

    fn normalise(&self, op: &Op, v: &[View<'_>], outs: &mut [Out<'_>]) {
        let ctx = self.ctx;
        match op {
            Op::Softmax { axis } => norm::softmax(ctx, &v[0], *axis, &mut outs[0]),
            Op::RmsNorm { eps, .. } => {
                norm::norm(ctx, norm::Norm::Rms { eps: *eps as f32 }, &v[0], [v.get(1), None], &mut outs[0]);
            }
            Op::LayerNorm { eps, weight, bias } => {
                let w = if *weight { v.get(1) } else { None };
                let b = if *bias { v.last() } else { None };
                norm::norm(ctx, norm::Norm::Layer { eps: *eps as f32 }, &v[0], [w, b], &mut outs[0]);
            }
            Op::AddRmsNorm { eps } => {
                let [sum, normed] = outs else { unreachable!("the op has two results") };
                norm::add_rms(ctx, [&v[1], &v[2]], *eps as f32, [sum, normed]);
            }
            other => unreachable!("{} is not a norm", other.name()),
        }
    }

    fn order(&self, op: &Op, v: &[View<'_>], outs: &mut [Out<'_>]) {
        match op {
            Op::Sort { axis, descending } => order::sort(self.ctx, &v[0], *axis, *descending, outs),
            Op::TopK { k } => order::top_k(self.ctx, &v[0], *k, outs),
            Op::ArgMax { axis } => order::argmax(self.ctx, &v[0], *axis, &mut outs[0]),
            _ => order::sample(self.ctx, v, &mut outs[0]),
        }
    }

    /// Ops that put elements elsewhere.
    fn move_elements(&self, op: &Op, v: &[View<'_>], out: &mut Out<'_>) -> Result<(), EngineError> {
        let ctx = self.ctx;
        match op {
            Op::Iota { axis, .. } => index::iota(*axis, out),
            Op::Concat { axis } => copy::concat(v, *axis, out),
            Op::Pad { low, .. } => copy::pad(&v[0], &v[1], low, out),
            Op::UpdateSlice => {
                if v[1].shape().iter().zip(out.shape.iter()).any(|(part, whole)| part > whole) {
                    let reason = format!("{:?} does not fit in {:?}", v[1].shape(), out.shape);
                    return Err(EvalError::Mismatch { op: op.name(), reason }.into());
                }
                let starts = copy::clamped_start(&out.shape, v[1].shape(), &indices(&v[2]));
                let strides = Layout::contiguous(&out.shape).strides;
                copy::place(&v[1], out, starts.iter().zip(strides.iter()).map(|(i, s)| i * s).sum());
            }
            Op::Gather { axis } => index::gather(ctx, &ctx.dense(&v[0])?.view, &v[1], *axis, out),
            Op::TakeAlong { axis } => index::take_along(&v[0], &v[1], *axis, out),
            Op::Scatter { mode } => index::scatter(&v[1], &ctx.dense(&v[2])?.view, *mode, out),
            other => unreachable!("compiling refuses {}", other.name()),
        }
        Ok(())
    }
}
