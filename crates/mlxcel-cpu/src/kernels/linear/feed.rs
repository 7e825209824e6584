//! A gated feed-forward block in one step: `down(act(gate x) * up x)`.

use mlxcel_engine::EngineError;
use mlxcel_ir::Activation;

use super::normed::Normed;
use super::{Panel, Sink, linear, panel_of, times};
use crate::context::{Context, Operand};
use crate::kernels::elementwise::gate_lines;
use crate::kernels::packed;
use crate::layout::Layout;
use crate::roles::Roles;
use crate::view::Out;
use crate::weight::Matrix;

/// What a block computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Feed {
    pub(crate) kind: Activation,
    /// Which half of the first weight's rows is the gate, 0 or 1; the other is its factor.
    pub(crate) gate: usize,
    /// Whether the first weight has a bias.
    pub(crate) has_bias: bool,
}

impl Feed {
    /// `x […, k]`, the weight of gate and factor with its bias, the last weight with its. The results are the block's,
    /// and memory for the first product. Where `x` is the norm of a sum, its operands are in place of it, and its results last.
    pub(crate) fn run(
        &self,
        ctx: &Context,
        (norm, x): (Option<f32>, &[Operand<'_>]),
        outs: &mut [Out<'_>],
        roles: Option<&Roles>,
    ) -> Result<(), EngineError> {
        let [out, both, sums @ ..] = outs else { unreachable!("a block has two results") };
        let (x, weights) = x.split_at(if norm.is_some() { Normed::OPERANDS } else { 1 });
        let (first, last) = weights.split_at(1 + self.has_bias as usize);
        if out.elements() == 0 {
            return Ok(());
        }
        let panel = match norm {
            Some(eps) => Normed::new(eps, x).panel(ctx, sums, &first[0], roles)?,
            None => panel_of(ctx, &x[0], both, roles)?,
        };
        if roles.is_some() && self.in_tiles(ctx, (&panel, first, last), [out, both])? {
            return Ok(());
        }
        times(ctx, &panel, first, both)?;
        let n = both.shape.last().copied().unwrap_or(0);
        let per_task = ctx.threads.lines_per_task(both.elements() / n, n);
        ctx.threads.chunks(both.slice::<f32>(), per_task * n, |_, part| {
            part.chunks_mut(n).for_each(|line| self.activate(ctx, line));
        });
        let gated = self.gated(both);
        linear(ctx, (&gated, last), out, roles)
    }

    /// Gates a line of both in place, in the half of the gate.
    fn activate(&self, ctx: &Context, line: &mut [f32]) {
        let (low, high) = line.split_at_mut(line.len() / 2);
        let (gate, factor) = if self.gate == 0 { (low, high) } else { (high, low) };
        gate_lines(ctx.level, self.kind, gate, factor);
    }

    /// The half of the gate.
    fn gated<'a>(&self, both: &Out<'a>) -> Operand<'a> {
        let n = both.shape.last().copied().unwrap_or(0);
        let lines = Layout::contiguous(&[both.elements() / n, n]);
        let half = lines.cut(1, n / 2, 1);
        Operand { view: both.view().with_layout(self.gate * (n / 2), half), matrix: None }
    }

    /// The way of prompts, where the machine has tiles: whether it was gone.
    fn in_tiles(
        &self,
        ctx: &Context,
        (panel, first, last): (&Panel<'_>, &[Operand<'_>], &[Operand<'_>]),
        [out, both]: [&mut Out<'_>; 2],
    ) -> Result<bool, EngineError> {
        let packed = [first, last].map(|w| w[0].matrix.and_then(Matrix::packed));
        let [Some(of_both), Some(next)] = packed else { return Ok(false) };
        let biases = [first, last].map(|w| w.get(1).map(|bias| bias.view.floats()));
        let n = both.shape.last().copied().unwrap_or(0);
        let sink = Sink::new(both, n, biases[0].as_deref());
        let Some(gated) = packed::gated(ctx, (of_both, next), panel, (self, biases[0].as_deref()), &sink)?
        else {
            return Ok(false);
        };
        let lines = both.slice::<f32>();
        gated.exact.iter().for_each(|t| self.activate(ctx, &mut lines[t * n..(t + 1) * n]));
        let rows = Panel::new(ctx, &self.gated(both).view, [panel.tokens, n / 2])?;
        let n = out.shape.last().copied().unwrap_or(0);
        gated.multiply(ctx, next, &rows, &Sink::new(out, n, biases[1].as_deref()))?;
        Ok(true)
    }
}
