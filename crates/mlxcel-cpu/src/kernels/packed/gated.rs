//! What lies between the products of a gated feed-forward block, for prompts in tiles: a gate is activated, multiplied
//! with its factor and rounded to the tiles of the next product; only sums that are still near are read for it.
//!
//! Algorithm: panels of the gate and of its factor take turns, so each pair of panels leaves the sums of both. They are
//! multiplied a few lines at a time beside the tile products of the next pair, whose vector units have nothing else to do.
//!
//! The numbers are those of separate products, an activation and a rounding, bit for bit: a prompt may be cut so that
//! some of its tokens go that way. Exact tokens always do.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use mlxcel_engine::EngineError;
use mlxcel_ir::Activation;

use super::format::ROWS;
use super::tiled::{STEP, in_tiles};
use super::tiles::TOKENS;
use super::tokens::Tokens;
use super::{BESIDE, Job, Numbers, Packed};
use crate::context::Context;
use crate::kernels::elementwise::activate;
use crate::kernels::linear::{Feed, Panel, Sink};
use crate::simd::Avx512;

/// Lines of a pair of tiles.
pub(super) const LINES: usize = 2 * TOKENS;
/// Lines that are multiplied together, a part of those of a tile: one by one, each would wait for its own last number.
const TOGETHER: usize = 4;

/// Where the products of a gate and its factor go.
pub(super) struct Gate<'a> {
    kind: Activation,
    biases: [Option<&'a [f32]>; 2],
    to: &'a Tokens<'a>,
}

/// Sums of a pair of tiles with a panel of the gate and its factor's.
pub(super) struct Pending {
    sums: *const f32,
    panel: usize,
    tile: usize,
    due: usize,
    done: usize,
}

impl Pending {
    /// The sums must stay where they are until all lines are done.
    pub(super) fn new(sums: *const f32, panel: usize, tile: usize) -> Self {
        Pending { sums, panel, tile, due: 0, done: 0 }
    }
}

impl Gate<'_> {
    /// As far as so many more lines are due, or all that are left.
    #[inline(always)]
    pub(super) fn some(&self, pending: &mut Pending, lines: usize) {
        pending.due = (pending.due + lines).min(LINES);
        while pending.due - pending.done >= TOGETHER {
            let (tile, slot) = (pending.done / TOKENS, pending.done % TOKENS);
            let row = pending.panel * ROWS;
            let gate = pending.sums.wrapping_add((2 * tile * TOKENS + slot) * ROWS);
            let factor = gate.wrapping_add(TOKENS * ROWS);
            let to = self.to.line(pending.tile + tile, row).wrapping_add(slot * STEP);
            let biases = self.biases.map(|b| b.map_or(std::ptr::null(), |b| b[row..row + ROWS].as_ptr()));
            // SAFETY: there are no gates without tiles; sums have the lines of both, and the tokens lines for them.
            unsafe { multiply(self.kind, [gate, factor], biases, to) };
            pending.done += TOGETHER;
        }
    }

    pub(super) fn finish(&self, mut pending: Pending) {
        self.some(&mut pending, LINES);
    }
}

/// The activations of some lines of sums times those of others, rounded.
///
/// # Safety
/// The machine must have the features; all sums and what is there of biases must be readable, and `to` have room.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn multiply(kind: Activation, sums: [*const f32; 2], biases: [*const f32; 2], to: *mut u16) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut gates = [_mm512_setzero_ps(); TOGETHER];
        for (line, gate) in gates.iter_mut().enumerate() {
            *gate = biased(sums[0].add(line * ROWS), biases[0]);
        }
        if kind == Activation::Silu {
            for gate in &mut gates {
                *gate = _mm512_mul_ps(Avx512::sigmoid(*gate), *gate);
            }
        } else {
            let mut activated = [0.0; TOGETHER * ROWS];
            let numbers: [f32; TOGETHER * ROWS] = std::mem::transmute(gates);
            activate::<Avx512>(kind, &numbers, &mut activated);
            for (gate, activated) in gates.iter_mut().zip(activated.chunks(ROWS)) {
                *gate = _mm512_loadu_ps(activated.as_ptr());
            }
        }
        for (line, gate) in gates.into_iter().enumerate() {
            let product = _mm512_mul_ps(gate, biased(sums[1].add(line * ROWS), biases[1]));
            let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(product));
            _mm256_storeu_si256(to.add(line * STEP).cast(), rounded);
        }
    }
}

/// Sixteen sums with their bias, if there is one.
///
/// # Safety
/// As for [`multiply`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn biased(sums: *const f32, bias: *const f32) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe {
        let sums = _mm512_loadu_ps(sums);
        if bias.is_null() { sums } else { _mm512_add_ps(sums, _mm512_loadu_ps(bias)) }
    }
}

/// Gated tokens in tiles, and which tokens of the step are exact: their products were put where they belong.
pub(crate) struct Gated<'a> {
    tokens: Tokens<'a>,
    pub(crate) exact: Vec<usize>,
}

/// The products of all tokens with a gate and its factor, gated for the product with `next`; those of exact tokens are
/// put to the sink. `None` where weights or tokens do not allow it.
pub(crate) fn gated<'a>(
    ctx: &'a Context,
    (both, next): (&Packed, &Packed),
    panel: &Panel<'_>,
    (feed, bias): (&Feed, Option<&[f32]>),
    sink: &Sink<'_>,
) -> Result<Option<Gated<'a>>, EngineError> {
    let Some(exact) = panel.exact.as_ref().filter(|_| ctx.level.has_tiles()) else { return Ok(None) };
    let exact: Vec<usize> = exact.iter().cloned().flatten().collect();
    let rounds = !panel.is_bf16 && both.rounds(ctx.level) && next.rounds(ctx.level);
    let whole = next.cols.is_multiple_of(STEP) && 2 * next.cols == both.panels * ROWS;
    let many = exact.len() > BESIDE && [both, next].iter().any(|p| matches!(p.numbers, Numbers::Codes(_)));
    if !rounds || !whole || many {
        return Ok(None);
    }
    let in_halves = if next.numbers == Numbers::Halves { exact.len() } else { 0 };
    let to = Tokens::room(ctx, next.cols, (panel.tokens, in_halves))?;
    let half = both.panels / 2;
    let halves = [feed.gate * half, (1 - feed.gate) * half];
    let job = |start: usize| Job {
        packed: both,
        ctx,
        x: panel,
        panels: start..start + half,
        sink,
        row: start * ROWS,
    };
    let jobs = halves.map(job);
    let beside = jobs[0].beside(&exact)?;
    let biases = halves.map(|start| bias.map(|bias| &bias[start * ROWS..][..half * ROWS]));
    let gate = Gate { kind: feed.kind, biases, to: &to };
    jobs[0].with_tokens((panel.tokens, beside.in_tiles(&exact)), |x| {
        in_tiles(&jobs, x, &exact, &beside, Some(&gate))
    })?;
    Ok(Some(Gated { tokens: to, exact }))
}

impl Gated<'_> {
    /// The products with the next weight; rows of exact tokens are taken from the panel.
    pub(crate) fn multiply(
        self,
        ctx: &Context,
        next: &Packed,
        panel: &Panel<'_>,
        sink: &Sink<'_>,
    ) -> Result<(), EngineError> {
        let job = Job { packed: next, ctx, x: panel, panels: 0..next.panels, sink, row: 0 };
        let beside = job.beside(&self.exact)?;
        let row = |t: usize| panel.row(t, 0);
        // SAFETY: the level has the features; rows of a panel have all columns.
        unsafe { self.tokens.fill_exact(ctx, beside.in_tiles(&self.exact), row, next.cols) };
        in_tiles(std::slice::from_ref(&job), &self.tokens, &self.exact, &beside, None)
    }
}
