//! Reductions, running reductions, sorting and the largest of a line.

use mlxcel_ir::{DType, Node, Op, ReduceOp};

use super::{Lower, Result, grid};
use crate::params::Params;
use crate::view::{View, code, merge};

fn number(op: ReduceOp) -> usize {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}

/// Pairs the kernel sorts in shared memory.
const SORTED_TOGETHER: usize = 1024;

impl Lower<'_> {
    pub(super) fn reduction(&mut self, node: &Node, x: &[View]) -> Result<Vec<View>> {
        match &node.op {
            Op::Reduce { op, axes } => Ok(vec![self.reduce(node, &x[0], *op, axes)?]),
            Op::Cumulative { op, axis } => {
                let from = self.dense(&x[0])?;
                let out = self.fresh(from.dtype, &from.shape)?;
                let lines = Lines::of(&from, *axis);
                let p = lines.params((&out, &from), number(*op)).null().null().null().int(0);
                self.launch("cumulative", grid([lines.count.div_ceil(8), 1, 1], 256, 0), p)?;
                Ok(vec![out])
            }
            Op::Sort { axis, descending } => self.sort(&x[0], *axis, *descending),
            Op::ArgMax { axis } => {
                let from = self.dense(&x[0])?;
                let out = self.fresh_like(&node.types[0])?;
                let lines = Lines::of(&from, *axis);
                let p = lines.params((&out, &from), 0).null().null().null().int(0);
                self.launch("argmax", grid([lines.count, 1, 1], 1024, 0), p)?;
                Ok(vec![out])
            }
            op => Err(crate::unsupported(op, &node.types)),
        }
    }

    fn reduce(&mut self, node: &Node, x: &View, op: ReduceOp, axes: &[usize]) -> Result<View> {
        let out = self.fresh_like(&node.types[0])?;
        let side = |reduced: bool, x: &View| {
            let of = (0..x.shape.len()).filter(|a| axes.contains(a) == reduced);
            let (shape, strides): (Vec<usize>, Vec<i64>) = of.map(|a| (x.shape[a], x.strides[a])).unzip();
            merge(&shape, &strides)
        };
        let (mut kept, mut gone) = (side(false, x), side(true, x));
        if kept.len() > 6 || gone.len() > 6 {
            let dense = self.copied(x)?;
            (kept, gone) = (side(false, &dense), side(true, &dense));
            if kept.len() > 6 || gone.len() > 6 {
                return Err(crate::unsupported(&node.op, &node.types));
            }
        }
        let length: usize = axes.iter().map(|&a| x.shape[a]).product();
        let unzip = |m: &[(usize, i64)]| -> (Vec<usize>, Vec<i64>) { m.iter().copied().unzip() };
        let ((ks, kt), (gs, gt)) = (unzip(&kept), unzip(&gone));
        let p = Params::new().view(&out).view(x).int(code(x.dtype)).int(number(op));
        let p = p.int(out.elements()).int(length).int(ks.len()).int(gs.len());
        let p = p.ints(&ks, 6).ints(&gs, 6).longs(&kt, 6).longs(&gt, 6);
        let blocks = out.elements().div_ceil(8).min(self.ctx.facts.multiprocessors as usize * 16);
        self.launch("reduce", grid([blocks, 1, 1], 256, 0), p)?;
        Ok(out)
    }

    fn sort(&mut self, x: &View, axis: usize, descending: bool) -> Result<Vec<View>> {
        let from = self.dense(x)?;
        let (out, indices) = (self.fresh(from.dtype, &from.shape)?, self.fresh(DType::I32, &from.shape)?);
        let lines = Lines::of(&from, axis);
        let padded = lines.length.next_power_of_two().max(2);
        let count = lines.count * padded;
        let (keys, order) = (self.fresh(DType::U64, &[count])?, self.fresh(DType::U32, &[count])?);
        let params = || {
            let p = lines.params((&out, &from), usize::from(descending));
            p.view(&indices).view(&keys).view(&order).int(padded)
        };
        self.spread("sort_keys", count, params())?;
        let block = |l: &mut Self, first: usize, last: usize| {
            let p = Params::scalars()
                .view(&keys)
                .view(&order)
                .long(count as i64)
                .int(first)
                .int(last)
                .int(padded);
            l.launch("sort_block", grid([count.div_ceil(SORTED_TOGETHER), 1, 1], 512, 0), p)
        };
        block(self, 2, padded.min(SORTED_TOGETHER))?;
        let mut run = 2 * SORTED_TOGETHER;
        while run <= padded {
            let mut distance = run / 2;
            while distance >= SORTED_TOGETHER {
                let p = Params::scalars().view(&keys).view(&order).long(count as i64 / 2);
                self.spread("sort_step", count / 2, p.int(distance).int(run).int(padded))?;
                distance /= 2;
            }
            block(self, run, run)?;
            run *= 2;
        }
        self.spread("sort_results", from.elements(), params())?;
        Ok(vec![out, indices])
    }
}

/// Lines of a dense tensor along an axis.
struct Lines {
    count: usize,
    length: usize,
    inner: usize,
}

impl Lines {
    fn of(v: &View, axis: usize) -> Self {
        let length = v.shape[axis];
        let inner = v.shape[axis + 1..].iter().product::<usize>();
        let outer = v.shape[..axis].iter().product::<usize>();
        Lines { count: outer * inner, length, inner }
    }

    /// The first fields of the kernels' struct.
    fn params(&self, (to, from): (&View, &View), op: usize) -> Params {
        let p = Params::new().view(to).view(from).int(code(from.dtype)).int(op);
        p.int(self.count).int(self.length).int(self.inner.max(1))
    }
}
