//! Products of the norm of a sum. Where a prompt is multiplied in tiles, every line is summed, normed and laid into them at once,
//! and nobody writes what only a product would read.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::slice;

use mlxcel_engine::EngineError;

use super::{Panel, times};
use crate::context::{Context, Operand};
use crate::kernels::norm::{self, SumNorm};
use crate::kernels::packed;
use crate::roles::Roles;
use crate::view::{Out, Shared, View};
use crate::weight::Matrix;

thread_local! {
    static LINE: RefCell<Vec<f32>> = RefCell::default();
}

/// A sum and its norm.
pub(super) struct Normed<'x> {
    /// The other addend; the sum holds the first one.
    residual: View<'x>,
    weight: View<'x>,
    eps: f32,
}

impl<'x> Normed<'x> {
    /// Operands that a step with a norm begins with.
    pub(super) const OPERANDS: usize = 3;

    pub(super) fn new(eps: f32, x: &[Operand<'x>]) -> Self {
        Normed { residual: x[1].view, weight: x[2].view, eps }
    }

    /// The norms as a product with `by` reads them. The results are the sums, and memory for norms.
    pub(super) fn panel<'a, 'r: 'a>(
        &self,
        ctx: &'a Context,
        results: &mut [Out<'r>],
        by: &Operand<'_>,
        roles: Option<&Roles>,
    ) -> Result<Panel<'a>, EngineError> {
        let [sum, normed] = results else { unreachable!("a norm of a sum has two results") };
        let n = sum.shape.last().copied().unwrap_or(0);
        let tokens = sum.elements() / n.max(1);
        let lines = tokens / sum.shape[0].max(1);
        let is_exact = |row: usize| roles.is_none_or(|roles| roles.is_end(row / lines));
        let tiles = match (by.matrix.and_then(Matrix::packed), roles) {
            (Some(by), Some(_)) => self.lay(ctx, by, (tokens, is_exact), [sum, normed])?,
            _ => None,
        };
        if tiles.is_none() {
            norm::add_rms(ctx, [&self.residual, &self.weight], self.eps, [sum, normed]);
        }
        let mut panel = Panel::new(ctx, &normed.view(), [tokens, n])?;
        panel.tiles = tiles;
        Ok(if roles.is_some() { panel.rounded(is_exact) } else { panel })
    }

    /// The norms in tiles, and those of exact tokens where they belong, too. `None` where there are no tiles.
    fn lay<'a>(
        &self,
        ctx: &'a Context,
        by: &packed::Packed,
        (tokens, is_exact): (usize, impl Fn(usize) -> bool + Copy + Sync),
        [sum, normed]: [&mut Out<'_>; 2],
    ) -> Result<Option<packed::Tokens<'a>>, EngineError> {
        let n = sum.shape.last().copied().unwrap_or(0);
        let weight = self.weight.floats();
        let norm = SumNorm::new(&self.residual, &weight, self.eps);
        let [sums, normed] = [sum, normed].map(|out| Shared(out.slice::<f32>().as_mut_ptr()));
        let line = |of: &Shared<f32>, t: usize| {
            // SAFETY: results have a line for every token, which one task asks for.
            unsafe { slice::from_raw_parts_mut(of.at(t * n), n) }
        };
        let make = |t: usize| {
            if is_exact(t) {
                let normed = line(&normed, t);
                norm.line(ctx, t, line(&sums, t), normed);
                return normed.as_ptr();
            }
            LINE.with_borrow_mut(|of_thread| {
                of_thread.resize(n, 0.0);
                norm.line(ctx, t, line(&sums, t), of_thread);
                of_thread.as_ptr()
            })
        };
        let exact: Vec<usize> = (0..tokens).filter(|&t| is_exact(t)).collect();
        let made = |t: usize| line(&normed, t).as_ptr();
        // SAFETY: rows have as many numbers as the weights have columns; the line of a thread stays until its next row is made.
        unsafe { by.lay(ctx, (tokens, &exact), make, made) }
    }
}

/// A product with the norm of a sum: `x`, the residual and the weight of the norm, and what [`super::linear`] takes. The results are
/// the product, the sum, which holds `x`, and memory for its norm.
pub(crate) fn normed(
    ctx: &Context,
    eps: f32,
    x: &[Operand<'_>],
    outs: &mut [Out<'_>],
    roles: Option<&Roles>,
) -> Result<(), EngineError> {
    let (of_norm, w) = x.split_at(Normed::OPERANDS);
    let [out, sums @ ..] = outs else { unreachable!("a product has a result") };
    let panel = Normed::new(eps, of_norm).panel(ctx, sums, &w[0], roles)?;
    times(ctx, &panel, w, out)
}
