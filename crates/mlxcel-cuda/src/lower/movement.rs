//! Views, copies, joins and indexing.

use mlxcel_ir::{HostTensor, Node, Op, ScatterMode, Type};

use super::elementwise::Starts;
use super::{Lower, Result};
use crate::error::CudaError;
use crate::exchange::Kind;
use crate::params::Params;
use crate::tape::Step;
use crate::view::{View, code, size, strides};

impl Lower<'_> {
    pub(super) fn movement(&mut self, node: &Node, x: &[View], types: &[Type]) -> Result<View> {
        let shape = self.shape(&node.types[0])?;
        let dtype = node.types[0].dtype;
        Ok(match &node.op {
            Op::Reshape { .. } => match x[0].reshaped(&shape) {
                Some(view) => view,
                None => {
                    let dense = self.copied(&x[0])?;
                    View { strides: strides(&shape), shape, ..dense }
                }
            },
            Op::Broadcast { .. } => View { strides: x[0].broadcast_strides(&shape), shape, ..x[0].clone() },
            Op::Transpose { perm } => {
                View { strides: perm.iter().map(|&p| x[0].strides[p]).collect(), shape, ..x[0].clone() }
            }
            Op::Slice { axis, start, step, .. } => {
                let mut view = View { shape, ..x[0].clone() };
                view.offset += self.size_of(start)? as i64 * view.strides[*axis];
                view.strides[*axis] *= *step as i64;
                view
            }
            Op::Iota { axis, .. } => {
                let out = self.fresh(dtype, &shape)?;
                let inner: usize = shape[axis + 1..].iter().product();
                let p = Params::scalars().view(&out).int(code(dtype)).int(out.elements());
                self.spread("iota", out.elements(), p.int(inner.max(1)).int(shape[*axis].max(1)))?;
                out
            }
            Op::Size { dim } => {
                let n = self.size_of(dim)?;
                let value = HostTensor::scalar(i32::try_from(n).unwrap_or(i32::MAX));
                let at = self.leaves.constants.address(self.ctx, &value)?;
                let root = self.memory(crate::tape::RootKind::Fixed(at), 4);
                View::dense(root, dtype, &[])
            }
            Op::Concat { axis } => self.concat(x, *axis, (dtype, &shape))?,
            Op::Pad { low, .. } => self.pad(x, low, &shape)?,
            Op::DynamicSlice { .. } => {
                let out = self.fresh(dtype, &shape)?;
                let limits = x[0].shape.iter().zip(&shape).map(|(n, p)| n.saturating_sub(*p)).collect();
                let view = self.dense(&x[1])?;
                let s = Starts { view, in_destination: false, strides: x[0].strides.clone(), limits };
                self.copy_at(&shape, (&out, &out.strides), (&x[0], &x[0].strides), Some(&s))?;
                out
            }
            Op::UpdateSlice => {
                let out = self.taken(&x[0])?;
                let limits = out.shape.iter().zip(&x[1].shape).map(|(n, p)| n.saturating_sub(*p)).collect();
                let view = self.dense(&x[2])?;
                let s = Starts { view, in_destination: true, strides: out.strides.clone(), limits };
                self.copy_at(&x[1].shape, (&out, &out.strides), (&x[1], &x[1].strides), Some(&s))?;
                out
            }
            Op::Gather { axis } => self.gather(x, *axis, &shape)?,
            Op::TakeAlong { axis } => self.take_along(x, *axis, &shape)?,
            Op::Scatter { mode } => self.scatter(x, *mode)?,
            op => return Err(crate::unsupported(op, types)),
        })
    }

    /// What all members of the group send, added up or side by side.
    pub(super) fn exchange(&mut self, node: &Node, x: &View) -> Result<View> {
        if self.ctx.exchange.get().is_none() {
            return Err(CudaError::NoGroup.into());
        }
        let shape = self.shape(&node.types[0])?;
        let from = self.dense(x)?;
        let (kind, out) = match node.op {
            Op::AllGather { members, .. } => {
                let parts = [&[members], &from.shape[..]].concat();
                (Kind::Join, self.fresh(from.dtype, &parts)?)
            }
            _ => (Kind::Sum, self.fresh(from.dtype, &from.shape)?),
        };
        if from.elements() > 0 {
            self.steps.push(Step::Exchange {
                kind,
                to: (out.root, out.byte_offset()),
                from: (from.root, from.byte_offset()),
                numbers: (from.elements(), from.dtype),
            });
        }
        let Op::AllGather { axis, .. } = node.op else { return Ok(out) };
        // Members come first in memory, and before the axis in the result.
        let mut view = out;
        let (members, stride) = (view.shape.remove(0), view.strides.remove(0));
        view.shape.insert(axis, members);
        view.strides.insert(axis, stride);
        match view.reshaped(&shape) {
            Some(view) => Ok(view),
            None => {
                let dense = self.copied(&view)?;
                Ok(View { strides: strides(&shape), shape, ..dense })
            }
        }
    }

    fn concat(
        &mut self,
        x: &[View],
        axis: usize,
        (dtype, shape): (mlxcel_ir::DType, &[usize]),
    ) -> Result<View> {
        let out = self.fresh(dtype, shape)?;
        let mut at = 0;
        for part in x {
            let offset = at * out.strides[axis];
            self.copy(&View { shape: part.shape.clone(), offset, ..out.clone() }, part)?;
            at += part.shape[axis] as i64;
        }
        Ok(out)
    }

    fn pad(&mut self, x: &[View], low: &[usize], shape: &[usize]) -> Result<View> {
        let out = self.fresh(x[0].dtype, shape)?;
        let p = Params::scalars().view(&out).view(&x[1]).long(0).int(out.elements()).int(size(out.dtype));
        self.spread("fill", out.elements(), p)?;
        let offset = low.iter().zip(&out.strides).map(|(l, s)| *l as i64 * s).sum();
        self.copy(&View { shape: x[0].shape.clone(), offset, ..out.clone() }, &x[0])?;
        Ok(out)
    }

    fn gather(&mut self, x: &[View], axis: usize, shape: &[usize]) -> Result<View> {
        let out = self.fresh(x[0].dtype, shape)?;
        let (source, indices) = (self.dense(&x[0])?, self.dense(&x[1])?);
        let (mut inner, mut width) = (source.shape[axis + 1..].iter().product::<usize>(), size(source.dtype));
        let mut count = out.elements();
        // Rows are moved in the largest pieces that divide them.
        while width < 16 && inner % 2 == 0 && inner > 0 {
            (inner, width, count) = (inner / 2, width * 2, count / 2);
        }
        let p = Params::new().view(&out).view(&source).view(&indices).int(code(indices.dtype)).int(count);
        let p = p.int(indices.elements()).int(source.shape[axis]).int(inner).int(width);
        self.spread("gather", count, p)?;
        Ok(out)
    }

    fn take_along(&mut self, x: &[View], axis: usize, shape: &[usize]) -> Result<View> {
        let out = self.fresh(x[0].dtype, shape)?;
        let indices = self.dense(&x[1])?;
        let p = Params::new().view(&out).view(&x[0]).view(&indices).int(code(indices.dtype));
        let p = p.int(out.elements()).int(shape.len()).int(axis).int(x[0].shape[axis]).int(size(out.dtype));
        self.spread("take_along", out.elements(), p.ints(shape, 8).longs(&x[0].strides, 8))?;
        Ok(out)
    }

    fn scatter(&mut self, x: &[View], mode: ScatterMode) -> Result<View> {
        let out = self.taken(&x[0])?;
        let (indices, updates) = (self.dense(&x[1])?, self.dense(&x[2])?);
        let row: usize = out.shape[1..].iter().product();
        let p = Params::new().view(&out).view(&indices).view(&updates);
        let p = p.int(code(indices.dtype)).int(code(out.dtype)).int(out.shape[0]).int(row);
        self.spread("scatter", row, p.int(indices.elements()).flag(mode == ScatterMode::Add))?;
        Ok(out)
    }
}
