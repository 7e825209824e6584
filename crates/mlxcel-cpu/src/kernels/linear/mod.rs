//! `x · wᵀ` straight from stored weights: `linear`, the experts' `expert_linear`, and the products of `dot_general`.
//!
//! Algorithm: the weight's rows are cut over the threads. A thread takes [`ROWS`] rows at a time and walks along `k`
//! in blocks: it decodes a block of the rows to `f32` in the first-level cache (plain `f32` rows are read where they
//! lie) and multiplies it with every token of a panel, four rows by `Simd::TOKENS` tokens in registers, before it
//! decodes the next. Sums stay vectors until the end of `k`, kept in the second-level cache between blocks.
//!
//! Layout: tokens are `f32` rows padded with zeros to whole vectors; weights lie as in the checkpoint.
//!
//! Batch invariance: element `k` of a row is always added to lane `k mod LANES` of one accumulator, in order of `k`,
//! and lanes are summed in one order; how many tokens or rows share a tile changes nothing of that.
//!
//! Checked against products of the decoded weights in `f64`.

mod decode;
mod feed;
mod normed;
#[cfg_attr(not(target_arch = "x86_64"), path = "unpaired.rs")]
mod pairs;
mod panel;
mod stream;
mod tile;

use std::slice;

use mlxcel_engine::EngineError;
use mlxcel_ir::DType;

use crate::context::{Context, Operand, Products};
use crate::lanes::{Lane, indices};
use crate::roles::Roles;
use crate::view::{Out, Shared};
use crate::weight::{Matrix, Rows};
pub(crate) use decode::{Store, decode, is_fast};
pub(crate) use feed::Feed;
pub(crate) use normed::normed;
pub(crate) use pairs::{Paired, suit};
pub(crate) use panel::{Halves, Panel};
pub(crate) use tile::k_step;
use tile::{Product, WORK};

/// Rows that a thread works on at a time.
const ROWS: usize = 16;
/// Products that make a task worth a thread.
const TASK_MIN: usize = 32 * 1024;

/// `x […, k]` with `w [n, k]` and `bias? [n]`; where tokens have roles, the first axis is theirs.
pub(crate) fn linear(
    ctx: &Context,
    (x, w): (&Operand<'_>, &[Operand<'_>]),
    out: &mut Out<'_>,
    roles: Option<&Roles>,
) -> Result<(), EngineError> {
    times(ctx, &panel_of(ctx, x, out, roles)?, w, out)
}

/// The tokens of a panel with `w [n, k]` and `bias? [n]`.
fn times(ctx: &Context, panel: &Panel<'_>, w: &[Operand<'_>], out: &mut Out<'_>) -> Result<(), EngineError> {
    let n = out.shape.last().copied().unwrap_or(0);
    if out.elements() == 0 {
        return Ok(());
    }
    let bias = w.get(1).map(|b| b.view.floats());
    if let Some(packed) = w[0].matrix.and_then(Matrix::packed) {
        return packed.multiply(ctx, panel, (0, n), &Sink::new(out, n, bias.as_deref()));
    }
    let dense;
    let rows = match w[0].matrix {
        Some(matrix) => matrix.rows(),
        None => {
            dense = ctx.dense(&w[0].view)?;
            Rows::of_view(&dense.view)
        }
    };
    let finish = |row: usize, sum: f32| bias.as_ref().map_or(sum, |b| sum + b[row]);
    let stored = (&rows, 0, n);
    match out.dtype {
        DType::F32 => {
            let to = Shared(out.slice::<f32>().as_mut_ptr());
            each_sum(ctx, panel, stored, &|t, row, sum| put(to, t * n + row, finish(row, sum)))
        }
        dtype => {
            let size = out.size();
            let to = Shared(out.bytes().as_mut_ptr());
            let put = |t, row, sum| store(to, (t * n + row) * size, dtype, finish(row, sum));
            each_sum(ctx, panel, stored, &put)
        }
    }
}

/// The tokens of a result's rows, rounded where their roles allow it.
fn panel_of<'a>(
    ctx: &'a Context,
    x: &Operand<'a>,
    out: &Out<'_>,
    roles: Option<&Roles>,
) -> Result<Panel<'a>, EngineError> {
    let k = x.view.shape().last().copied().unwrap_or(0);
    let tokens = out.elements() / out.shape.last().copied().unwrap_or(0).max(1);
    let panel = Panel::new(ctx, &x.view, [tokens, k])?;
    let Some(roles) = roles else { return Ok(panel) };
    let lines = tokens / out.shape[0].max(1);
    Ok(panel.rounded(|row| roles.is_end(row / lines)))
}

/// One product: all tokens of a panel with `n` rows from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) panel: &'a Panel<'a>,
    /// The same tokens in `bf16`, if they are to be multiplied like that.
    pub(crate) paired: Option<&'a Paired<'a>>,
    pub(crate) rows: &'a Rows<'a>,
    pub(crate) first: usize,
    pub(crate) n: usize,
}

/// Computes the products of all tokens with `n` rows from `first` on, and hands each to `emit(token, row, sum)`: of exact tokens
/// last, since they are fewer and may be among those that were rounded before.
fn each_sum(
    ctx: &Context,
    panel: &Panel<'_>,
    (rows, first, n): (&Rows<'_>, usize, usize),
    emit: &(impl Fn(usize, usize, f32) + Sync),
) -> Result<(), EngineError> {
    let job = Job { panel, paired: None, rows, first, n };
    if ctx.products == Products::Exact || !suit(ctx.level, rows.dtype, rows.cols) {
        each_tile(ctx, &job, emit);
        return Ok(());
    }
    let all = 0..panel.tokens;
    let exact = panel.exact.as_deref().unwrap_or(slice::from_ref(&all));
    if exact.iter().map(|run| run.len()).sum::<usize>() < panel.tokens {
        let paired = Paired::new(ctx, panel, rows, Halves::One)?;
        each_tile(ctx, &Job { paired: Some(&paired), ..job }, emit);
    }
    let halves = if panel.is_bf16 { Halves::One } else { Halves::Two };
    for run in exact {
        let some = panel.part(run.clone());
        let paired = Paired::new(ctx, &some, rows, halves)?;
        let job = Job { panel: &some, paired: Some(&paired), ..job };
        each_tile(ctx, &job, &|t, row, sum| emit(run.start + t, row, sum));
    }
    Ok(())
}

/// Where runs of sums of neighbouring rows go: biased, converted, to the token's place in the result.
pub(crate) struct Sink<'a> {
    to: Shared<u8>,
    dtype: DType,
    /// Rows of the result.
    n: usize,
    bias: Option<&'a [f32]>,
    /// Where tokens go, if not in order.
    places: Option<&'a [usize]>,
    /// The token that is counted as the first.
    start: usize,
}

impl<'a> Sink<'a> {
    fn new(out: &mut Out<'_>, n: usize, bias: Option<&'a [f32]>) -> Self {
        Sink { to: Shared(out.bytes().as_mut_ptr()), dtype: out.dtype, n, bias, places: None, start: 0 }
    }

    /// The same for tokens from `start` on.
    pub(crate) fn from(&self, start: usize) -> Sink<'_> {
        Sink { start: self.start + start, ..*self }
    }

    /// Where the result of the first token begins and the bias, if results are `f32` in order of the tokens.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn in_order(&self) -> Option<(Shared<u8>, Option<&'a [f32]>)> {
        let first = Shared(self.to.0.wrapping_add(self.start * self.n * 4));
        (self.dtype == DType::F32 && self.places.is_none()).then_some((first, self.bias))
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn rows(&self) -> usize {
        self.n
    }

    /// The sums of `token` from `row` on. One task puts a pair at a time.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn put(&self, token: usize, row: usize, sums: &[f32; RUN]) {
        assert!(row < self.n, "rows beyond the result");
        let place = self.start + token;
        let place = self.places.map_or(place, |p| p[place]);
        let count = RUN.min(self.n - row);
        let mut numbers = *sums;
        if let Some(bias) = self.bias {
            for (x, b) in numbers.iter_mut().zip(&bias[row..row + count]) {
                *x += b;
            }
        }
        if self.dtype == DType::F32 && count == RUN {
            // SAFETY: the run lies in the row of its token, within the result, and nobody else writes there.
            unsafe { self.to.at((place * self.n + row) * 4).cast::<[f32; RUN]>().write_unaligned(numbers) };
            return;
        }
        let size = self.dtype.size().expect("results are plain");
        // SAFETY: the run lies in the row of its token, within the result, and nobody else writes there.
        let to =
            unsafe { slice::from_raw_parts_mut(self.to.at((place * self.n + row) * size), count * size) };
        f32::store(self.dtype, &numbers[..count], to);
    }
}

/// Rows that a sink takes at a time; fewer at the end of the result.
const RUN: usize = 16;

/// Writes one element of a result that tasks share.
#[inline(always)]
#[allow(unsafe_code)]
fn put(to: Shared<f32>, at: usize, value: f32) {
    // SAFETY: every (token, row) is computed by one task, and lies within the result.
    unsafe { *to.at(at) = value }
}

#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn store(to: Shared<u8>, at: usize, dtype: DType, value: f32) {
    let size = dtype.size().expect("results are plain");
    // SAFETY: every (token, row) is computed by one task, and lies within the result.
    f32::store(dtype, &[value], unsafe { slice::from_raw_parts_mut(to.at(at), size) });
}

/// Computes all products and hands each to `emit(token, row, sum)`, rows counted from the job's first.
pub(crate) fn each_tile(ctx: &Context, job: &Job<'_>, emit: &(impl Fn(usize, usize, f32) + Sync)) {
    let work = job.panel.tokens * job.rows.cols.max(1);
    let shared = job.n.div_ceil(4 * ctx.threads.count());
    let per_task = shared.max(TASK_MIN.div_ceil(work)).next_multiple_of(ROWS);
    ctx.threads.each(job.n.div_ceil(per_task), |task| {
        let range = task * per_task..((task + 1) * per_task).min(job.n);
        WORK.with_borrow_mut(|work| {
            let product = Product { job, range, emit, work };
            match job.paired {
                Some(paired) => paired.multiply(product),
                None => ctx.level.dispatch(product),
            }
        });
    });
}

/// `x [t, 1 or k, in]`, `w [experts, out, in]`, `ids [t, k]`, `bias? [experts, out]`: tokens are gathered by expert,
/// so that each expert's rows are read once.
pub(crate) fn expert_linear(
    ctx: &Context,
    x: &[Operand<'_>],
    out: &mut Out<'_>,
    roles: Option<&Roles>,
) -> Result<(), EngineError> {
    let (view, ids) = (&x[0].view, indices(&x[2].view));
    let [tokens, chosen, n] = [out.shape[0], out.shape[1], out.shape[2]];
    let width = view.shape()[2];
    if out.elements() == 0 {
        return Ok(());
    }
    let dense;
    let (rows, experts) = match x[1].matrix {
        Some(matrix) => (matrix.rows(), matrix.shape[0]),
        None => {
            dense = ctx.dense(&x[1].view)?;
            (Rows::of_view(&dense.view), x[1].view.shape()[0])
        }
    };
    let bias = x.get(3).map(|b| b.view.numbers::<f32>());
    let packed = x[1].matrix.and_then(Matrix::packed);
    let repeated = view.broadcast(&[tokens, chosen, width]);
    let (dtype, size) = (out.dtype, out.size());
    let to = Shared(out.bytes().as_mut_ptr());
    for expert in 0..experts {
        let clamp = |i: i64| i.clamp(0, experts as i64 - 1) as usize;
        let places: Vec<usize> = (0..ids.len()).filter(|&i| clamp(ids[i]) == expert).collect();
        if places.is_empty() {
            continue;
        }
        let mut panel = Panel::gathered(ctx, &repeated, &places)?;
        if let Some(roles) = roles {
            panel = panel.rounded(|row| roles.is_end(places[row] / chosen));
        }
        if let Some(packed) = packed {
            let bias = bias.as_ref().map(|b| &b[expert * n..(expert + 1) * n]);
            let sink = Sink { places: Some(&places), ..Sink::new(out, n, bias) };
            packed.multiply(ctx, &panel, (expert * n, n), &sink)?;
            continue;
        }
        each_sum(ctx, &panel, (&rows, expert * n, n), &|t, row, sum| {
            let sum = bias.as_ref().map_or(sum, |b| sum + b[expert * n + row]);
            store(to, (places[t] * n + row) * size, dtype, sum);
        })?;
    }
    Ok(())
}
