//! The activation of one operand times another, in one pass: what gated feed-forward blocks compute. Only for `f32`
//! lines without gaps; everything else goes the general way, with the same results.

use mlxcel_ir::{Activation, BinaryOp, DType, Type};

use super::block::activate;
use super::code::{Code, Kind};
use crate::context::Context;
use crate::kernels::lines::Lines;
use crate::simd::{Kernel, Simd, SimdLevel};
use crate::view::{Out, View};

/// Which operand is activated, and how; the other one is the factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gated {
    pub(super) kind: Activation,
    /// Its number among the operands.
    pub(super) gate: usize,
}

impl Gated {
    /// The code as a gated activation, if it is one.
    pub(super) fn of(code: &Code, operands: &[Type]) -> Option<Self> {
        let [activation, product] = code.instructions.as_slice() else { return None };
        let (Kind::Activation(kind), Kind::Binary(BinaryOp::Mul)) = (activation.kind, product.kind) else {
            return None;
        };
        let [a, b] = code.loads.as_slice() else { return None };
        let gate = if activation.inputs[0] == *a { 0 } else { 1 };
        let factor = [b, a][gate];
        let multiplies = product.inputs.contains(&activation.output) && product.inputs.contains(factor);
        let plain = operands.len() == 2 && operands.iter().all(|t| t.dtype == DType::F32);
        (multiplies && plain && product.output == code.result).then_some(Gated { kind, gate })
    }

    /// Whether it was done: operands of other shapes or orders are left to the general way.
    pub(super) fn run(&self, ctx: &Context, operands: &[View<'_>], out: &mut Out<'_>) -> bool {
        let [gate, factor] = [&operands[self.gate], &operands[1 - self.gate]];
        if gate.shape() != &*out.shape || factor.shape() != &*out.shape {
            return false;
        }
        let (gate, factor) = (Lines::new(gate), Lines::new(factor));
        if gate.plain(0).is_none() || factor.plain(0).is_none() {
            return false;
        }
        let n = out.shape.last().copied().unwrap_or(1);
        let per_task = ctx.threads.lines_per_task(out.elements() / n, n);
        ctx.threads.chunks(out.slice::<f32>(), per_task * n, |task, part| {
            for (i, out) in part.chunks_mut(n).enumerate() {
                let line = task * per_task + i;
                let [gate, factor] = [&gate, &factor].map(|x| x.plain(line).expect("all lines are alike"));
                ctx.level.dispatch(Part { kind: self.kind, gate, factor, out });
            }
        });
        true
    }
}

struct Part<'a> {
    kind: Activation,
    gate: &'a [f32],
    factor: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        activate::<S>(self.kind, self.gate, self.out);
        for (x, factor) in self.out.iter_mut().zip(self.factor) {
            *x *= factor;
        }
    }
}

/// Numbers that a piece of a line has at most while it is activated in place.
const PIECE: usize = 256;

/// Activates numbers in place and multiplies them with others, as a step of its own would.
pub(crate) fn gate_lines(level: SimdLevel, kind: Activation, gate: &mut [f32], factor: &[f32]) {
    level.dispatch(InPlace { kind, gate, factor });
}

struct InPlace<'a> {
    kind: Activation,
    gate: &'a mut [f32],
    factor: &'a [f32],
}

impl Kernel for InPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut piece = [0.0; PIECE];
        for (gate, factor) in self.gate.chunks_mut(PIECE).zip(self.factor.chunks(PIECE)) {
            let piece = &mut piece[..gate.len()];
            activate::<S>(self.kind, gate, piece);
            for ((x, activated), factor) in gate.iter_mut().zip(&*piece).zip(factor) {
                *x = activated * factor;
            }
        }
    }
}
