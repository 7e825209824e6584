//! Products of two computed tensors, and convolutions.

use mlxcel_ir::{DType, Node, Op};

use super::{Lower, Result, grid};
use crate::params::Params;
use crate::view::{View, code, merge};

/// One side of a product: batch, free and contracted axes, each as one.
struct Side {
    view: View,
    sizes: [usize; 3],
    strides: [i64; 3],
}

impl Lower<'_> {
    pub(super) fn contraction(&mut self, node: &Node, x: &[View]) -> Result<View> {
        match &node.op {
            Op::DotGeneral { batch, contract, .. } => {
                let pick = |pairs: &[(usize, usize)], right: bool| {
                    pairs.iter().map(|p| if right { p.1 } else { p.0 }).collect::<Vec<_>>()
                };
                let a = self.side(&x[0], &pick(batch, false), &pick(contract, false))?;
                let b = self.side(&x[1], &pick(batch, true), &pick(contract, true))?;
                self.dot(node, &a, &b)
            }
            Op::Conv { .. } => self.conv(node, x),
            op => Err(crate::unsupported(op, &node.types)),
        }
    }

    fn side(&mut self, x: &View, batch: &[usize], contract: &[usize]) -> Result<Side> {
        let free: Vec<usize> =
            (0..x.shape.len()).filter(|a| !batch.contains(a) && !contract.contains(a)).collect();
        let groups = [batch, &free, contract];
        let one = |v: &View, axes: &[usize]| {
            let (shape, strides): (Vec<usize>, Vec<i64>) =
                axes.iter().map(|&a| (v.shape[a], v.strides[a])).unzip();
            let merged = merge(&shape, &strides);
            (merged.len() <= 1).then(|| (shape.iter().product::<usize>(), merged.first().map_or(0, |m| m.1)))
        };
        let sides: Option<Vec<(usize, i64)>> = groups.iter().map(|g| one(x, g)).collect();
        let (view, sides) = match sides {
            Some(sides) => (x.clone(), sides),
            None => {
                // Brought into the order of the groups, each of them is one axis.
                let order: Vec<usize> = groups.concat();
                let turned = View {
                    shape: order.iter().map(|&a| x.shape[a]).collect(),
                    strides: order.iter().map(|&a| x.strides[a]).collect(),
                    ..x.clone()
                };
                let dense = self.copied(&turned)?;
                let sizes = groups.map(|g| g.iter().map(|&a| x.shape[a]).product::<usize>());
                let strides = [(sizes[1] * sizes[2]) as i64, sizes[2] as i64, 1];
                (dense, sizes.into_iter().zip(strides).collect())
            }
        };
        let at = |i: usize| sides[i];
        Ok(Side { view, sizes: [at(0).0, at(1).0, at(2).0], strides: [at(0).1, at(1).1, at(2).1] })
    }

    fn dot(&mut self, node: &Node, a: &Side, b: &Side) -> Result<View> {
        let out = self.fresh_like(&node.types[0])?;
        let ([batches, m, k], n) = (a.sizes, b.sizes[1]);
        let p = Params::new().view(&out).view(&a.view).view(&b.view);
        let p = p.int(code(a.view.dtype)).int(code(out.dtype)).int(batches).int(m).int(n).int(k);
        let p = p.longs(&a.strides, 3).longs(&b.strides, 3);
        if a.view.dtype.is_float() && a.view.dtype != DType::F64 {
            let blocks = [m.div_ceil(64), n.div_ceil(64), batches.min(65535)];
            self.launch("dot_float", grid(blocks, 256, 0), p)?;
        } else {
            self.spread("dot_exact", out.elements(), p)?;
        }
        Ok(out)
    }

    fn conv(&mut self, node: &Node, x: &[View]) -> Result<View> {
        let Op::Conv { strides, padding, dilation, groups } = &node.op else {
            return Err(crate::unsupported(&node.op, &node.types));
        };
        let (input, w) = (self.dense(&x[0])?, self.dense(&x[1])?);
        let out = self.fresh_like(&node.types[0])?;
        let p = Params::new().view(&out).view(&input).view(&w).int(code(out.dtype)).int(out.elements());
        let p = p.int(w.shape[0]).int(w.shape[1]).int(*groups).int(input.shape[1]);
        let low: Vec<usize> = padding.iter().map(|p| p.0).collect();
        let p = p.ints(&out.shape[2..], 3).ints(&input.shape[2..], 3).ints(&w.shape[2..], 3);
        // Axes that are missing have no padding.
        let p = p.ints(strides, 3).ints(dilation, 3);
        let p = (0..3).fold(p, |p, i| p.int(low.get(i).copied().unwrap_or(0)));
        self.spread("conv", out.elements(), p)?;
        Ok(out)
    }
}
