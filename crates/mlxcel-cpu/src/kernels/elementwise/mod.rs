//! Elementwise ops and fused regions: a small program over blocks of numbers that stay in the first-level cache.
//!
//! Algorithm: a region becomes straight-line code over registers; a register holds a block of [`BLOCK`] numbers of one
//! class (`f32`, `f64` or `i64`, see [`crate::lanes`]). Each block is loaded through the operands' strides, computed
//! op by op in loops that vectorise, rounded or wrapped to each op's own type, and stored. Blocks are cut over the
//! threads. Checked against the interpreter of primitives, type by type.
#![allow(unsafe_code)]

mod block;
mod code;
mod gated;

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) use block::activate;
pub(crate) use code::Code;
pub(crate) use gated::gate_lines;

use mlxcel_ir::DType;

use crate::context::Context;
use crate::layout::{Layout, Walk, merge_all};
use crate::simd::{Kernel, Simd};
use crate::view::{Out, Shared, View};
use block::Registers;

/// Numbers in a register.
const BLOCK: usize = 512;
/// Results that are worth a second thread.
const PARALLEL_MIN: usize = 32 * 1024;

/// Computes one result of any broadcast operands.
pub(crate) fn run(ctx: &Context, code: &Code, operands: &[View<'_>], out: &mut Out<'_>) {
    let total = out.elements();
    if total == 0 || code.gated.is_some_and(|gated| gated.run(ctx, operands, out)) {
        return;
    }
    let shape = out.shape;
    let mut layouts = vec![Layout::contiguous(&shape)];
    layouts.extend(code.operands(operands).map(|v| v.layout.broadcast(&shape)));
    let views: Vec<View<'_>> = code.operands(operands).collect();
    let layouts = merge_all(&layouts);
    let rank = layouts[0].rank();
    let run = if rank == 0 { 1 } else { layouts[0].shape[rank - 1] };
    // A task is a range of blocks; long runs hold several, short runs are one each.
    let blocks_per_run = run.div_ceil(BLOCK);
    let blocks = total / run * blocks_per_run;
    let per_task = if total < PARALLEL_MIN {
        blocks
    } else {
        ctx.threads.lines_per_task(blocks, run.min(BLOCK) * code.cost())
    };
    let (dtype, size) = (out.dtype, out.size());
    let ends = |block: usize| (block / blocks_per_run) * run + (block % blocks_per_run * BLOCK).min(run);
    let job = Job { code, views: &views, layouts: &layouts, run, blocks_per_run };
    let end = |task: usize| ends(((task + 1) * per_task).min(blocks)) * size;
    let base = Shared(out.bytes().as_mut_ptr());
    ctx.threads.each(blocks.div_ceil(per_task), |t| {
        let range = t * per_task..((t + 1) * per_task).min(blocks);
        let start = ends(range.start) * size;
        // SAFETY: ranges of blocks are disjoint, and so are the bytes between their ends.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base.at(start), end(t) - start) };
        ctx.level.dispatch(Task { job: &job, blocks: range, dtype, bytes });
    });
}

struct Job<'a> {
    code: &'a Code,
    views: &'a [View<'a>],
    /// Of the result, then of each operand, merged.
    layouts: &'a [Layout],
    run: usize,
    blocks_per_run: usize,
}

struct Task<'j, 'b> {
    job: &'j Job<'j>,
    blocks: std::ops::Range<usize>,
    dtype: DType,
    bytes: &'b mut [u8],
}

impl Kernel for Task<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let job = self.job;
        let rank = job.layouts[0].rank();
        let outer = rank.saturating_sub(1);
        let strides: Vec<usize> =
            job.layouts[1..].iter().map(|l| if rank == 0 { 0 } else { l.strides[rank - 1] }).collect();
        let mut registers = Registers::new(job.code);
        let mut walk = Walk::new(job.layouts, outer, self.blocks.start / job.blocks_per_run);
        let mut at = self.blocks.start % job.blocks_per_run * BLOCK;
        let mut rest = self.bytes;
        let size = self.dtype.size().expect("results are plain");
        for i in 0..self.blocks.len() {
            let n = (job.run - at).min(BLOCK);
            for (o, view) in job.views.iter().enumerate() {
                // A scalar is loaded once; it stays in its register.
                if i == 0 || strides[o] != 0 || at == 0 {
                    let from = (walk.offsets[o + 1] + at * strides[o], strides[o]);
                    registers.load(job.code, o, view, from, if strides[o] == 0 { BLOCK } else { n });
                }
            }
            registers.execute::<S>(job.code, n);
            let (head, tail) = rest.split_at_mut(n * size);
            registers.store(job.code, self.dtype, n, head);
            rest = tail;
            at += n;
            if at == job.run {
                at = 0;
                walk.step();
            }
        }
    }
}
