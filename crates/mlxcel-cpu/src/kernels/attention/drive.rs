//! Cuts attention into tasks for the threads. A task is the queries of a block with some KV heads, over all stretches
//! of their keys where there are tasks enough, over one stretch otherwise; either way a line's result is its stretches
//! joined in order of the keys, so that the cut changes nothing.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use super::Scores;
use super::core::{Attend, Block, Context, Partial, Rows, STRETCH, Scratch, Way, Widths};
use super::soft::{Running, join};
use crate::context::Context as Machine;
use crate::lanes::Lane;
use crate::memory::Aligned;
use crate::simd::{Kernel, Simd};
use crate::view::{Out, Shared};

/// Tasks for each thread, so that none waits long for the last.
const TASKS_PER_THREAD: usize = 4;

/// Stretches that wait to be joined, at most, unless there are very many threads.
const PIECES_MAX: usize = 64;

/// Lines that share a turned tile of keys: enough that turning costs little, few enough to stay in the cache.
const LINES_MAX: usize = 96;
/// The same where keys and values are laid into tiles, which costs more; and numbers of such lines.
const TILED_MAX: usize = 384;
const TILED_NUMBERS: usize = 1 << 16;

/// One call of attention.
pub(super) struct Job<'a> {
    pub(super) context: &'a dyn Context,
    pub(super) scores: Scores,
    pub(super) widths: Widths,
    pub(super) kv_heads: usize,
    /// One per query head.
    pub(super) sinks: Option<&'a [f32]>,
}

/// Queries that a block takes, of `tokens` in all, in tiles or not.
pub(super) fn queries_per_block(
    machine: &Machine,
    widths: &Widths,
    kv_heads: usize,
    (tokens, has_tiles): (usize, bool),
) -> usize {
    let lines = if has_tiles { TILED_MAX.min(TILED_NUMBERS / widths.key) } else { LINES_MAX };
    let most = (lines / widths.group).max(1);
    let shared = tokens * kv_heads / (TASKS_PER_THREAD * machine.threads.count());
    shared.clamp(most.min(8), most)
}

/// A block with what its queries see.
struct Lot {
    block: Block,
    ranges: Vec<(usize, usize)>,
    /// The keys that any of them sees.
    keys: (usize, usize),
}

impl Lot {
    fn new(context: &dyn Context, block: Block) -> Self {
        let ranges: Vec<_> = (0..block.count).map(|q| context.visible(&block, q)).collect();
        let seen = || ranges.iter().filter(|(lo, hi)| lo < hi);
        let first = seen().map(|r| r.0).min().unwrap_or(0);
        let keys = (first, seen().map(|r| r.1).max().unwrap_or(0));
        Lot { block, ranges, keys }
    }

    /// The stretches that hold its keys.
    fn stretches(&self) -> Range<usize> {
        self.keys.0 / STRETCH..self.keys.1.div_ceil(STRETCH)
    }

    /// Its keys of one stretch.
    fn part(&self, stretch: usize) -> (usize, usize) {
        (self.keys.0.max(stretch * STRETCH), self.keys.1.min((stretch + 1) * STRETCH))
    }
}

/// Results of lines and the state of their softmax.
#[derive(Debug, Default)]
struct Lines {
    out: Aligned<f32>,
    running: Vec<Running>,
}

impl Lines {
    fn resize(&mut self, lines: usize, width: usize) {
        self.out.resize(lines * width);
        self.running.resize(lines, Running::EMPTY);
    }

    fn all(&mut self) -> Partial<'_> {
        Partial { out: &mut self.out, running: &mut self.running }
    }

    /// Some of the lines.
    fn part(&mut self, lines: Range<usize>, width: usize) -> Partial<'_> {
        let out = &mut self.out[lines.start * width..lines.end * width];
        Partial { out, running: &mut self.running[lines] }
    }
}

/// Buffers of a thread.
#[derive(Debug, Default)]
struct Buffers {
    scratch: Scratch,
    q: Vec<f32>,
    part: Lines,
    total: Lines,
}

/// Buffers of a thread that cuts sequences into pieces: by block, the queries of all heads and the results so far; and the results of
/// pieces that wait to be joined.
#[derive(Debug, Default)]
struct Cut {
    queries: Vec<Vec<f32>>,
    totals: Vec<Lines>,
    parts: Lines,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
    static CUT: RefCell<Cut> = RefCell::default();
}

impl Job<'_> {
    pub(super) fn run(&self, machine: &Machine, blocks: &[Block], out: &mut Out<'_>) {
        let lots: Vec<Lot> = blocks.iter().map(|&block| Lot::new(self.context, block)).collect();
        let to = Rows {
            bytes: Shared(out.bytes().as_mut_ptr()),
            dtype: out.dtype,
            heads: self.kv_heads * self.widths.group,
        };
        let enough = lots.len() * self.kv_heads >= TASKS_PER_THREAD * machine.threads.count();
        if enough || lots.iter().all(|l| l.stretches().len() <= 1) {
            self.whole(machine, &lots, to);
        } else {
            CUT.with_borrow_mut(|cut| self.split(machine, &lots, cut, to));
        }
    }

    /// Every task takes all keys of its block. A prompt's last blocks see most of them.
    fn whole(&self, machine: &Machine, lots: &[Lot], to: Rows) {
        let tasks = Tasks::new(machine, lots.len(), self.kv_heads);
        machine.threads.each_from_the_last(tasks.count(), |task| {
            let (lot, heads) = tasks.at(task);
            let lot = &lots[lot];
            BUFFERS.with_borrow_mut(|buffers| {
                if lot.block.way == Way::Tiles {
                    let nothing = Partial { out: &mut [], running: &mut [] };
                    let (scratch, to) = (&mut buffers.scratch, Some(to));
                    return self.attend(machine, (lot, heads, lot.keys), &[], (scratch, nothing, to));
                }
                self.queries(machine, lot, heads.clone(), &mut buffers.q);
                self.clear(lot, heads.clone(), &mut buffers.total);
                let Buffers { scratch, q, part, total } = buffers;
                part.resize(heads.len() * self.lines(lot), self.widths.value_padded());
                for stretch in lot.stretches() {
                    let keys = lot.part(stretch);
                    self.attend(machine, (lot, heads.clone(), keys), q, (scratch, part.all(), None));
                    if self.sinks.is_none() && stretch == lot.stretches().start {
                        // There is nothing yet to join it to.
                        std::mem::swap(total, part);
                    } else {
                        machine.level.dispatch(Join { total: total.all(), part: part.all() });
                    }
                }
                self.finish(machine, (lot, heads), total, to);
            });
        });
    }

    /// Every task takes one stretch of the keys of its block; the results are joined afterwards. Long sequences go in
    /// waves, so that results that wait to be joined stay few.
    fn split(&self, machine: &Machine, lots: &[Lot], cut: &mut Cut, to: Rows) {
        let Cut { queries, totals, parts } = cut;
        let pieces: Vec<(usize, usize)> =
            lots.iter().enumerate().flat_map(|(i, lot)| lot.stretches().map(move |s| (i, s))).collect();
        if totals.len() < lots.len() {
            totals.resize_with(lots.len(), Lines::default);
            queries.resize_with(lots.len(), Vec::new);
        }
        for (lot, (total, q)) in lots.iter().zip(totals.iter_mut().zip(queries.iter_mut())) {
            self.clear(lot, 0..self.kv_heads, total);
            if lot.block.way != Way::Tiles {
                self.queries(machine, lot, 0..self.kv_heads, q);
            }
        }
        for wave in pieces.chunks(PIECES_MAX.max(TASKS_PER_THREAD * machine.threads.count())) {
            let firsts = self.wave(machine, (lots, queries), wave, parts);
            for (&(lot, _), first) in wave.iter().zip(firsts) {
                let lines = self.lines(&lots[lot]) * self.kv_heads;
                let part = parts.part(first..first + lines, self.widths.value_padded());
                machine.level.dispatch(Join { total: totals[lot].all(), part });
            }
        }
        for (lot, total) in lots.iter().zip(totals) {
            self.finish(machine, (lot, 0..self.kv_heads), total, to);
        }
    }

    /// Computes some pieces, each a block and a stretch; gives where the lines of each begin.
    fn wave(
        &self,
        machine: &Machine,
        (lots, queries): (&[Lot], &[Vec<f32>]),
        pieces: &[(usize, usize)],
        parts: &mut Lines,
    ) -> Vec<usize> {
        let width = self.widths.value_padded();
        let mut firsts = Vec::with_capacity(pieces.len());
        let mut lines = 0;
        for &(lot, _) in pieces {
            firsts.push(lines);
            lines += self.lines(&lots[lot]) * self.kv_heads;
        }
        parts.resize(lines, width);
        let shared = (Shared(parts.out.as_mut_ptr()), Shared(parts.running.as_mut_ptr()));
        let tasks = Tasks::new(machine, pieces.len(), self.kv_heads);
        machine.threads.each(tasks.count(), |task| {
            let (piece, heads) = tasks.at(task);
            BUFFERS.with_borrow_mut(|buffers| {
                let (lot, stretch) = (&lots[pieces[piece].0], pieces[piece].1);
                let lines = self.lines(lot);
                let (first, count) = (firsts[piece] + heads.start * lines, heads.len() * lines);
                let each = if lot.block.way == Way::Tiles { 0 } else { lines * self.widths.key };
                let q = &queries[pieces[piece].0][heads.start * each..heads.end * each];
                // SAFETY: every (piece, head) has lines of its own, and belongs to one task.
                let part = unsafe { borrow(shared, first, count, width) };
                let keys = lot.part(stretch);
                self.attend(machine, (lot, heads, keys), q, (&mut buffers.scratch, part, None));
            });
        });
        firsts
    }

    /// Lines of a block for one KV head.
    fn lines(&self, lot: &Lot) -> usize {
        lot.block.count * self.widths.group
    }

    /// Reads the queries of some KV heads, scaled as their scores are to be: `[heads][queries][group][key]`.
    fn queries(&self, machine: &Machine, lot: &Lot, heads: Range<usize>, q: &mut Vec<f32>) {
        let (group, key) = (self.widths.group, self.widths.key);
        q.resize(heads.len() * self.lines(lot) * key, 0.0);
        for (i, lines) in q.chunks_mut((group * key).max(1)).enumerate() {
            let (head, query) = (heads.start + i / lot.block.count, i % lot.block.count);
            self.context.query(&lot.block, query, head * group, lines);
        }
        machine.level.dispatch(Scale { numbers: q, by: self.scores.scale });
    }

    /// Results before any key: nothing, or the sinks' share of the weights.
    fn clear(&self, lot: &Lot, heads: Range<usize>, total: &mut Lines) {
        let (lines, group) = (self.lines(lot), self.widths.group);
        total.resize(heads.len() * lines, self.widths.value_padded());
        total.out.fill(0.0);
        for (i, running) in total.running.iter_mut().enumerate() {
            let head = (heads.start + i / lines) * group + i % group;
            *running = self.sinks.map_or(Running::EMPTY, |s| Running::sink(s[head]));
        }
    }

    fn attend(
        &self,
        machine: &Machine,
        (lot, heads, keys): (&Lot, Range<usize>, (usize, usize)),
        q: &[f32],
        (scratch, part, rows): (&mut Scratch, Partial<'_>, Option<Rows>),
    ) {
        #[cfg(not(target_arch = "x86_64"))]
        debug_assert!(rows.is_none(), "there are no tiles");
        machine.level.dispatch(Attend {
            context: self.context,
            block: &lot.block,
            heads,
            scores: self.scores,
            widths: self.widths,
            ranges: &lot.ranges,
            q,
            keys,
            last: lot.keys.1,
            scratch,
            part,
            #[cfg(target_arch = "x86_64")]
            rows,
            #[cfg(target_arch = "x86_64")]
            sinks: self.sinks,
        });
    }

    /// Divides by the sums and writes the results of some KV heads.
    fn finish(&self, machine: &Machine, (lot, heads): (&Lot, Range<usize>), total: &mut Lines, to: Rows) {
        let (lines, group, value) = (self.lines(lot), self.widths.group, self.widths.value);
        machine.level.dispatch(Divide { lines: total.all() });
        for (i, line) in total.out.chunks(self.widths.value_padded()).enumerate() {
            let row = lot.block.row + i % lines / group;
            let head = (heads.start + i / lines) * group + i % group;
            // SAFETY: every row and head belongs to one task, and its line lies within the result.
            f32::store(to.dtype, &line[..value], unsafe { to.line(row, head, value) });
        }
    }
}

/// Lines of memory that tasks share.
///
/// # Safety
/// The lines must exist and be used by nobody else.
unsafe fn borrow<'a>(
    (out, running): (Shared<f32>, Shared<Running>),
    first: usize,
    lines: usize,
    width: usize,
) -> Partial<'a> {
    // SAFETY: as the caller promises.
    unsafe {
        Partial {
            out: std::slice::from_raw_parts_mut(out.at(first * width), lines * width),
            running: std::slice::from_raw_parts_mut(running.at(first), lines),
        }
    }
}

/// Pieces of work times runs of KV heads: all heads together where there are pieces enough, since rows of
/// neighbouring heads lie beside each other.
struct Tasks {
    pieces: usize,
    kv_heads: usize,
    heads_each: usize,
}

impl Tasks {
    fn new(machine: &Machine, pieces: usize, kv_heads: usize) -> Self {
        let wanted = TASKS_PER_THREAD * machine.threads.count();
        let by_heads = wanted.div_ceil(pieces.max(1)).clamp(1, kv_heads.max(1));
        Tasks { pieces, kv_heads, heads_each: kv_heads.div_ceil(by_heads).max(1) }
    }

    fn count(&self) -> usize {
        self.pieces * self.kv_heads.div_ceil(self.heads_each)
    }

    /// The piece and the heads of a task.
    fn at(&self, task: usize) -> (usize, Range<usize>) {
        let runs = self.kv_heads.div_ceil(self.heads_each);
        let head = task % runs * self.heads_each;
        (task / runs, head..(head + self.heads_each).min(self.kv_heads))
    }
}

/// Multiplies all numbers.
struct Scale<'a> {
    numbers: &'a mut [f32],
    by: f32,
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for x in self.numbers {
            *x *= self.by;
        }
    }
}

/// Divides lines by the sums of their weights.
struct Divide<'a> {
    lines: Partial<'a>,
}

impl Kernel for Divide<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Partial { out, running } = self.lines;
        let width = out.len() / running.len().max(1);
        for (line, running) in out.chunks_mut(width.max(1)).zip(running) {
            let sum = running.sum();
            let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            for x in line {
                *x *= scale;
            }
        }
    }
}

/// Joins results line by line.
struct Join<'a> {
    total: Partial<'a>,
    part: Partial<'a>,
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        join::<S>((self.total.out, self.total.running), (self.part.out, self.part.running));
    }
}
