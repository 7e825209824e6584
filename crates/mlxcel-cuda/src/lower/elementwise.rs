//! Elementwise ops and regions.

use mlxcel_ir::{DType, Graph, Node, Op, Type};

use super::{Lower, Result, grid};
use crate::code::{CONSTANTS_MAX, Code, INPUTS_MAX, INSTRUCTIONS_MAX, gated};
use crate::params::Params;
use crate::view::{View, code as type_code, size, strides};

/// Axes that the kernel can tell apart.
const RANK_MAX: usize = 6;

impl Lower<'_> {
    pub(super) fn elementwise(&mut self, node: &Node, x: &[View], types: &[Type]) -> Result<View> {
        if let Some(out) = self.gated(node, x)? {
            return Ok(out);
        }
        let Some(code) = Code::compile(node, types) else {
            let region: &Graph = node.regions.first().ok_or_else(|| crate::unsupported(&node.op, types))?;
            let mut results = self.region(region, x)?;
            return Ok(results.remove(0));
        };
        let out = self.fresh_like(&node.types[0])?;
        self.interpret(&code, &out, x)?;
        Ok(out)
    }

    /// An activated gate times a factor, which models have in every layer, if it is that.
    fn gated(&mut self, node: &Node, x: &[View]) -> Result<Option<View>> {
        let Some((activation, gate, factor)) = node.regions.first().and_then(gated) else { return Ok(None) };
        let (a, b) = (&x[gate], &x[factor]);
        let (Some((rows, width, gate_stride)), Some((.., factor_stride))) = (a.rows(), b.rows()) else {
            return Ok(None);
        };
        let narrow = matches!(a.dtype, DType::BF16 | DType::F16) && a.shape == b.shape && a.dtype == b.dtype;
        let places = [width as i64, gate_stride, factor_stride, a.offset, b.offset];
        if !narrow || rows == 0 || rows > 65535 || places.iter().any(|n| n % 8 != 0) {
            return Ok(None);
        }
        let out = self.fresh_like(&node.types[0])?;
        let p = Params::new().view(a).view(b).view(&out).long(gate_stride).long(factor_stride);
        let p = p.int(rows).int(width).int(type_code(a.dtype)).int(activation as usize);
        self.launch("gated", grid([width.div_ceil(2048), rows, 1], 256, 0), p)?;
        Ok(Some(out))
    }

    /// Starts the interpreter of a program over `out`, which is dense.
    pub(super) fn interpret(&mut self, code: &Code, out: &View, x: &[View]) -> Result<()> {
        let spread: Vec<Vec<i64>> = x.iter().map(|v| v.broadcast_strides(&out.shape)).collect();
        let (shape, spread) = joined(&out.shape, &spread);
        if shape.len() > RANK_MAX {
            let mut dense = vec![];
            for v in x {
                let wide =
                    View { shape: out.shape.clone(), strides: v.broadcast_strides(&out.shape), ..v.clone() };
                dense.push(self.copied(&wide)?);
            }
            return self.interpret(code, out, &dense);
        }
        let mut p = Params::new().view(out).int(out.elements()).int(shape.len()).ints(&shape, RANK_MAX);
        p = p.int(type_code(out.dtype)).int(code.instructions.len());
        let dense = strides(&shape);
        for i in 0..INPUTS_MAX {
            p = match x.get(i).zip(spread.get(i)) {
                Some((v, s)) => {
                    let places = shape.iter().zip(s.iter().zip(&dense));
                    let same = places.clone().all(|(&n, (a, b))| n == 1 || a == b);
                    let single = places.clone().all(|(&n, (a, _))| n == 1 || *a == 0);
                    let mode = if single {
                        1
                    } else if same {
                        0
                    } else {
                        2
                    };
                    p.view(v).longs(s, RANK_MAX).int(type_code(v.dtype)).int(mode)
                }
                None => p.null().longs(&[], RANK_MAX).int(0).int(0),
            };
        }
        p = p.longs(&code.constants, CONSTANTS_MAX);
        for i in 0..INSTRUCTIONS_MAX {
            let c = code.instructions.get(i).copied().unwrap_or_default();
            let [a, b, d] = c.operands;
            p = [c.op, c.dtype, c.from, a, b, d, c.to, 0].into_iter().fold(p, Params::byte);
        }
        let (name, threads, width) =
            if code.is_wide { ("elementwise_wide", 128, 8) } else { ("elementwise_narrow", 256, 4) };
        let blocks = out.elements().div_ceil(threads).min(self.ctx.facts.multiprocessors as usize * 32);
        let shared = code.registers.max(1) * threads * width;
        self.launch(name, grid([blocks, 1, 1], threads as u32, shared), p)
    }

    /// The nodes of a region one by one, with these arguments.
    pub(super) fn region(&mut self, region: &Graph, arguments: &[View]) -> Result<Vec<View>> {
        let ends: Vec<_> = region.outputs().iter().map(|(_, v)| *v).collect();
        let mut frame = super::Frame::new(region, &ends, |_| false);
        let mut next = 0;
        for (i, node) in region.nodes().iter().enumerate() {
            if let Op::Input { .. } = node.op {
                let view = arguments[next].clone();
                next += 1;
                self.hold(&mut frame, i, 0, super::Held::Tensor(view));
            } else if frame.needed[i] {
                self.node(&mut frame, i)?;
            }
        }
        let mut outputs = vec![];
        for v in &ends {
            let view = self.tensor(&frame, *v)?;
            self.roots[view.root].uses -= 1;
            outputs.push(view);
        }
        Ok(outputs)
    }

    /// A copy of a view of any strides to another of the same shape.
    pub(crate) fn copy(&mut self, to: &View, from: &View) -> Result<()> {
        let (shape, both) = joined(&to.shape, &[to.strides.clone(), from.strides.clone()]);
        self.copy_at(&shape, (to, &both[0]), (from, &both[1]), None)
    }

    /// A copy over `shape`; `starts` says where a part begins in one of the two.
    pub(super) fn copy_at(
        &mut self,
        shape: &[usize],
        (to, to_strides): (&View, &[i64]),
        (from, from_strides): (&View, &[i64]),
        starts: Option<&Starts>,
    ) -> Result<()> {
        let count: usize = shape.iter().product();
        if count == 0 {
            return Ok(());
        }
        let mut p = Params::new().view(to).view(from).view_or_null(starts.map(|s| &s.view));
        p = p.int(count).int(shape.len()).int(size(to.dtype)).flag(starts.is_some_and(|s| s.in_destination));
        p = p.ints(shape, 8).longs(to_strides, 8).longs(from_strides, 8);
        let none = Starts::none();
        let s = starts.unwrap_or(&none);
        p = p.longs(&s.strides, 8).ints(&s.limits, 8).int(s.strides.len());
        self.spread("copy_strided", count, p)
    }
}

/// Where a part begins, as numbers on the device.
pub(super) struct Starts {
    pub(super) view: View,
    pub(super) in_destination: bool,
    pub(super) strides: Vec<i64>,
    pub(super) limits: Vec<usize>,
}

impl Starts {
    fn none() -> Self {
        let view = View::dense(0, mlxcel_ir::DType::I32, &[]);
        Starts { view, in_destination: false, strides: vec![], limits: vec![] }
    }
}

/// A shape and strides over it with axes joined where all of them allow.
pub(super) fn joined(shape: &[usize], strides: &[Vec<i64>]) -> (Vec<usize>, Vec<Vec<i64>>) {
    let mut out: Vec<usize> = vec![];
    let mut kept: Vec<Vec<i64>> = vec![vec![]; strides.len()];
    for (axis, &n) in shape.iter().enumerate().filter(|(_, n)| **n != 1) {
        let follows = !out.is_empty()
            && strides
                .iter()
                .zip(&kept)
                .all(|(s, k)| k.last().is_some_and(|last| *last == s[axis] * n as i64));
        if follows {
            let last = out.last_mut().expect("it is not empty");
            *last *= n;
            kept.iter_mut().zip(strides).for_each(|(k, s)| *k.last_mut().expect("it is not empty") = s[axis]);
        } else {
            out.push(n);
            kept.iter_mut().zip(strides).for_each(|(k, s)| k.push(s[axis]));
        }
    }
    (out, kept)
}
