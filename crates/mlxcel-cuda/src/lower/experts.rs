//! Products of many rows with the experts they chose: rows are put in the order of their experts, so that a tile of rows
//! shares what is read of a matrix.

use mlxcel_ir::DType;

use super::linear::{Job, Product, product};
use super::{Held, Lower, Result, grid};
use crate::params::Params;

/// Sizes of `kernels/experts.cu`.
const STACK: usize = 1024;
const TOKENS: usize = 64;
const FEATURES: usize = 128;
const STAGES: usize = 3;
const STEP: usize = 64;

/// Tokens up to which a row's bits do not depend on its company, which is the other kernel's doing.
const ALONE: usize = 8;

impl Lower<'_> {
    /// Whether it was done: it pays where experts are chosen more than once.
    pub(super) fn multiply_grouped(&mut self, job: &Job<'_>) -> Result<bool> {
        let Some(chosen) = job.ids else { return Ok(false) };
        let tokens = job.m / chosen.choices.max(1);
        let pays = tokens > ALONE && job.m > chosen.experts && chosen.experts <= STACK;
        if !pays || !matches!(product(job), Product::Tensor(..)) {
            return Ok(false);
        }
        let plain = match &job.w.held {
            Held::Tensor(view) => view.dtype == job.x.dtype && view.byte_offset() % 16 == 0,
            Held::Packed(_) => false,
        };
        let name = match (job.x.dtype, plain) {
            (DType::BF16, true) => "experts_bf16_plain",
            (DType::BF16, false) => "experts_bf16_packed",
            (_, true) => "experts_f16_plain",
            (_, false) => "experts_f16_packed",
        };
        let mut numbers = |count: usize| self.fresh(DType::U32, &[count]);
        let (rows, tiles) = (numbers(chosen.experts + 1)?, numbers(chosen.experts + 1)?);
        let order = numbers(job.m)?;
        let p = |lower: &Self| {
            Params::new().join(lower.linear_params(job, false).end()).view(&rows).view(&tiles).view(&order)
        };
        let (sorts, multiplies) = (p(self), p(self));
        self.launch("experts_sort", grid([1, 1, 1], STACK as u32, 0), sorts)?;
        // Every expert may leave one tile that is not full.
        let most = job.m.div_ceil(TOKENS) + chosen.experts;
        let shared = STAGES * (TOKENS + FEATURES) * 2 * STEP;
        self.launch(name, grid([job.n.div_ceil(FEATURES), most, 1], 256, shared), multiplies)?;
        Ok(true)
    }
}
