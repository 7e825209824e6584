//! Products in AMX tiles, panel by panel and over the threads: how weights get into tiles and sums out of them.
//!
//! A block of panels stays in the second-level cache, decoded if it has to be, while all tokens pass; what comes next,
//! of tokens and of weights, is asked for meanwhile. Sums stay in tiles along `k` as far as that cache allows.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use mlxcel_engine::EngineError;

use super::activations::Activations;
use super::codes::Factors;
use super::dots::Product;
use super::format::{BLOCK, Format, ROWS};
pub(super) use super::tiles::STEP;
use super::tiles::{Ahead, Halves, Registers, Tokens};
use super::{Job, Numbers, Packed, bytes, decode, dots, tiles};
use crate::memory::Buffer;

/// Panels of a task, at most.
const TOGETHER: usize = 32;
/// Panels of a block.
const PANELS: usize = 16;
/// Tiles of tokens that pass at a time, at most: where rows are deep, their sums wait in the second-level cache too.
const TILES: usize = 64;
/// Elements of `k` whose sums stay in tiles, at most. To store a tile that has left the first-level cache takes as long
/// as three products.
const DEEP: usize = 2048;
/// Tiles of tokens that are too few to write decoded rows further away than to the first-level cache, which has room
/// for two panels of one block of codes.
const FEW: usize = 8;
/// Tasks for each thread.
const TASKS: usize = 4;
/// Bytes from which on a result is large: what a core's second-level cache holds.
const LARGE: usize = 2 << 20;
/// Bytes of a pair of tiles.
const PAIR_BYTES: usize = 2 * tiles::TOKENS * STEP * 2;

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// What a thread needs beside the registers of its tiles, kept from one product to the next.
#[derive(Default)]
struct Room(Option<Buffer>);

impl Room {
    /// Numbers of whatever was there before: sums, and rows that are decoded.
    fn of(&mut self, sums: usize, decoded: usize) -> Result<(&mut [f32], &mut [u16]), EngineError> {
        let sum_bytes = sums * size_of::<f32>();
        let bytes = sum_bytes + decoded * size_of::<u16>();
        let kept = match self.0.take().filter(|kept| kept.len() >= bytes) {
            Some(kept) => self.0.insert(kept),
            None => self.0.insert(Buffer::reused(bytes, "sums of tiles")?),
        };
        // SAFETY: the buffer is aligned, has that many numbers of both, and is borrowed as long as they are.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(kept.ptr().cast(), sums);
            Ok((sums, std::slice::from_raw_parts_mut(kept.ptr().add(sum_bytes).cast(), decoded)))
        }
    }
}

/// How a product in tiles is cut: panels of a block, and elements of a stretch of `k`.
#[derive(Clone, Copy)]
struct Cut {
    panels: usize,
    stretch: usize,
}

impl Cut {
    fn new(tiles: usize, depth: usize, is_decoded: bool) -> Self {
        if is_decoded && tiles <= FEW {
            return Cut { panels: 2, stretch: BLOCK };
        }
        let stretch = depth.div_ceil(depth.div_ceil(DEEP).max(1)).next_multiple_of(BLOCK);
        Cut { panels: PANELS, stretch }
    }
}

impl Job<'_> {
    pub(super) fn in_byte_tiles(
        &self,
        format: &Format,
        x: &Activations<'_>,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let configuration = bytes::configuration(format);
        self.spread((1, self.per_task()), |panels| {
            // SAFETY: the level has tiles, which includes the permission.
            let registers = unsafe { Registers::configure(&configuration) };
            let mut block = bytes::Block::new();
            let mut sums = vec![[0.0; ROWS]; tokens];
            for p in panels {
                let panel = self.packed.panel(self.panels.start + p);
                let product = bytes::Product { format, panel, cols: self.packed.cols, x };
                // SAFETY: the level has the features; the panel lies in the buffer and the tokens in tiles.
                unsafe { product.run(&registers, &mut block, &mut sums) };
                for (t, sums) in sums.iter().enumerate().take(self.x.tokens) {
                    self.put(t, p, sums);
                }
            }
            Ok(())
        })
    }

    /// Every token rounded, and those of `exact` as exactly as can be, in one pass over the weights.
    pub(super) fn mixed(&self, exact: &[Range<usize>]) -> Result<(), EngineError> {
        let exact: Vec<usize> = exact.iter().cloned().flatten().collect();
        let rounded = self.x.tokens;
        match &self.packed.numbers {
            Numbers::Halves if !self.x.is_bf16 => self.in_tiles((rounded, &exact), None),
            Numbers::Codes(format) if !exact.is_empty() => {
                let row = |i: usize| self.x.row(exact[i], 0);
                let sizes = [exact.len(), self.packed.cols, format.group, self.bytes()];
                // SAFETY: the level has the features; rows of a panel have all columns.
                let x = unsafe { Activations::new(self.ctx, sizes, row) }?;
                let few = Few { format, x, tokens: &exact };
                self.in_tiles((rounded, &[]), Some(&few))
            }
            _ => self.in_tiles((rounded, &[]), None),
        }
    }

    /// The first `rounded` tokens in one half, those that `exact` numbers in two; results of the latter are put later,
    /// and those of `few` last.
    pub(super) fn in_tiles(
        &self,
        (rounded, exact): (usize, &[usize]),
        few: Option<&Few<'_>>,
    ) -> Result<(), EngineError> {
        let row = |t: usize| self.x.row(t, 0);
        // SAFETY: the level has the features; rows of a panel have all columns.
        let x = unsafe { Tokens::new(self.ctx, self.packed.cols, (rounded, exact), row) }?;
        let is_decoded = matches!(self.packed.numbers, Numbers::Codes(_));
        let cut = Cut::new(x.tiles, x.depth, is_decoded);
        let per_task = self.panels.len().div_ceil(TASKS * self.ctx.threads.count()).min(TOGETHER);
        self.spread((2, per_task), |panels| {
            ROOM.with_borrow_mut(|room| {
                // SAFETY: the level has tiles, which includes the permission.
                let registers = unsafe { Registers::configure(&tiles::WHOLE) };
                let turns = if cut.stretch < x.depth { x.tiles.min(TILES) / 2 } else { 1 };
                let decoded = if is_decoded { cut.panels * cut.stretch * ROWS } else { 0 };
                let (sums, decoded) = room.of(turns * cut.panels / 2 * tiles::PAIR_SUMS, decoded)?;
                let mut walk = Walk { job: self, x: &x, exact, cut, registers, sums, decoded };
                for first in (0..x.tiles).step_by(TILES) {
                    let some = first..x.tiles.min(first + TILES);
                    for start in panels.clone().step_by(cut.panels) {
                        let block = start..panels.end.min(start + cut.panels);
                        walk.block(block.clone(), panels.end, some.clone());
                        if let Some(few) = few.filter(|_| some.end == x.tiles) {
                            few.put(self, block);
                        }
                    }
                }
                Ok(())
            })
        })
    }

    /// The sums of neighbouring tokens with some panels, from what the products left for every pair of them. Token by
    /// token, so that what is written together lies together.
    fn put_tiles(&self, halves: Halves, panels: Range<usize>, tokens: Range<usize>, sums: &[f32]) {
        let each = tiles::PAIR_SUMS;
        let sink = self.sink.from(tokens.start);
        let Some((to, bias)) = sink.in_order() else {
            for t in 0..tokens.len() {
                for (i, p) in panels.clone().enumerate() {
                    sink.put(t, p * ROWS, &tiles::sums(&sums[i / 2 * each..], halves, i % 2, t));
                }
            }
            return;
        };
        let n = self.sink.rows();
        let is_large = self.x.tokens * n * size_of::<f32>() >= LARGE;
        let lines = tiles::Lines { sums, each, halves, panels, n, bias, is_large };
        assert!(lines.panels.end.saturating_sub(1) * ROWS < lines.n, "rows beyond the result");
        // SAFETY: the level has the features; the rows of these panels are this task's, in every token's result.
        unsafe { lines.store(tokens.len(), to) };
    }
}

/// Tokens that are multiplied in whole numbers beside those in tiles, while the codes of a block are still near.
pub(super) struct Few<'a> {
    format: &'a Format,
    x: Activations<'a>,
    /// Their numbers among the tokens of the job.
    tokens: &'a [usize],
}

impl Few<'_> {
    fn put(&self, job: &Job<'_>, panels: Range<usize>) {
        let mut factors = Factors::new();
        for p in panels {
            let panel = job.packed.panel(job.panels.start + p);
            for (i, tokens) in self.tokens.chunks(dots::TOKENS).enumerate() {
                let first = i * dots::TOKENS;
                let (level, cols) = (job.ctx.level, job.packed.cols);
                let product = Product { level, format: self.format, panel, cols, x: &self.x, first };
                // SAFETY: the level has the features; the panel lies in the buffer and the tokens are there.
                let sums = unsafe { product.run(tokens.len(), &mut factors) };
                for (token, sums) in tokens.iter().zip(&sums) {
                    job.put(*token, p, sums);
                }
            }
        }
    }
}

impl Packed {
    /// Where `len` elements of a panel from `start` on lie, and in how many bytes.
    fn stretch(&self, panel: usize, (start, len): (usize, usize)) -> (*const u8, usize) {
        let (before, bytes) = match &self.numbers {
            Numbers::Halves => (start * ROWS * 2, len * ROWS * 2),
            Numbers::Codes(format) => (start / BLOCK * format.block_bytes(BLOCK), format.panel_bytes(len)),
        };
        (self.panel(panel).wrapping_add(before), bytes)
    }
}

/// A thread's way through panels.
struct Walk<'a> {
    job: &'a Job<'a>,
    x: &'a Tokens<'a>,
    /// The tokens in two halves.
    exact: &'a [usize],
    cut: Cut,
    registers: Registers,
    /// Of all panels of a block, with all tokens where they have to wait.
    sums: &'a mut [f32],
    decoded: &'a mut [u16],
}

impl Walk<'_> {
    /// All of `k` for a block of panels and some tiles of tokens, in a task that goes on to panel `end`.
    fn block(&mut self, panels: Range<usize>, end: usize, tiles: Range<usize>) {
        let depth = self.x.depth;
        for start in (0..depth).step_by(self.cut.stretch) {
            let stretch = (start, self.cut.stretch.min(depth - start));
            self.decode(&panels, stretch);
            let next = self.next(&panels, end, start + stretch.1);
            for turn in 0..tiles.len() / 2 {
                self.turn(&panels, stretch, (turn, &tiles), &next);
            }
        }
    }

    /// A stretch of a block of panels with one pair of tiles of tokens, while what comes next is asked for.
    fn turn(
        &mut self,
        panels: &Range<usize>,
        (start, len): (usize, usize),
        (turn, tiles): (usize, &Range<usize>),
        next: &Coming,
    ) {
        let (steps, pairs, turns) = (len / STEP, panels.len().div_ceil(2), tiles.len() / 2);
        let tile = tiles.start + 2 * turn;
        // Where all of `k` is one stretch, sums need not wait and take the same place each time.
        let is_whole = len == self.x.depth;
        let at = if is_whole { 0 } else { turn * pairs * tiles::PAIR_SUMS };
        let after = tiles.start + 2 * ((turn + 1) % turns);
        let bytes = if turns > 1 { steps * PAIR_BYTES } else { 0 };
        let tokens = Coming { from: self.x.pair(after, start).cast(), bytes, runs: 1, apart: 0 };
        for i in 0..pairs {
            let ahead = [tokens.part((i, pairs), steps), next.part((turn * pairs + i, turns * pairs), steps)];
            let rows = [2 * i, (2 * i + 1).min(panels.len() - 1)].map(|p| self.rows(panels, p, start));
            let sums = &mut self.sums[at + i * tiles::PAIR_SUMS..][..tiles::PAIR_SUMS];
            // SAFETY: the rows hold the stretch, the sums are those of a pair, and the registers are ours.
            unsafe {
                let factors = (self.x.pair(tile, start), rows, steps);
                tiles::multiply(&self.registers, factors, (sums.as_mut_ptr(), start == 0), ahead);
            }
        }
        if start + len == self.x.depth {
            self.put(panels.clone(), tile, &self.sums[at..][..pairs * tiles::PAIR_SUMS]);
        }
    }

    /// The finished sums of some panels with a pair of tiles of tokens.
    fn put(&self, panels: Range<usize>, tile: usize, sums: &[f32]) {
        if tile < self.x.rounded {
            let tokens = tile * tiles::TOKENS..((tile + 2) * tiles::TOKENS).min(self.job.x.tokens);
            return self.job.put_tiles(Halves::One, panels, tokens, sums);
        }
        let exact = self.exact.chunks(tiles::TOKENS).nth((tile - self.x.rounded) / 2);
        let exact = exact.expect("a pair of tiles has tokens");
        let neighbours = exact[0]..exact[0] + exact.len();
        if exact.last() == Some(&(neighbours.end - 1)) {
            return self.job.put_tiles(Halves::Two, panels, neighbours, sums);
        }
        for (slot, token) in exact.iter().enumerate() {
            for (i, p) in panels.clone().enumerate() {
                let sums = &sums[i / 2 * tiles::PAIR_SUMS..];
                self.job.put(*token, p, &tiles::sums(sums, Halves::Two, i % 2, slot));
            }
        }
    }

    /// Makes `bf16` numbers of a stretch of some panels, if they are not.
    fn decode(&mut self, panels: &Range<usize>, stretch: (usize, usize)) {
        let Numbers::Codes(format) = &self.job.packed.numbers else { return };
        let places = self.decoded.chunks_exact_mut(self.cut.stretch * ROWS);
        for (panel, to) in panels.clone().zip(places) {
            let (from, _) = self.job.packed.stretch(self.job.panels.start + panel, stretch);
            // SAFETY: stretches are whole blocks or the end of a row, and there is room for one.
            unsafe { decode::decode(format, from, stretch.1, to.as_mut_ptr()) };
        }
    }

    /// Where a panel of a block lies in tiles, from element `start` of `k` on.
    fn rows(&self, panels: &Range<usize>, panel: usize, start: usize) -> *const u16 {
        match self.job.packed.numbers {
            Numbers::Halves => {
                self.job.packed.stretch(self.job.panels.start + panels.start + panel, (start, 0)).0.cast()
            }
            Numbers::Codes(_) => self.decoded[panel * self.cut.stretch * ROWS..].as_ptr(),
        }
    }

    /// The weights that come after element `start` of `k`: more of these panels, or the next ones of the task.
    fn next(&self, panels: &Range<usize>, end: usize, start: usize) -> Coming {
        let depth = self.x.depth;
        let (panels, start) = if start < depth {
            (panels.clone(), start)
        } else {
            (panels.end..end.min(panels.end + self.cut.panels), 0)
        };
        let (packed, first) = (self.job.packed, self.job.panels.start + panels.start);
        let (from, bytes) = packed.stretch(first, (start, self.cut.stretch.min(depth - start)));
        Coming { from, bytes, runs: panels.len(), apart: packed.panel_bytes }
    }
}

/// Memory that is read soon: runs of bytes at equal distances.
struct Coming {
    from: *const u8,
    bytes: usize,
    runs: usize,
    apart: usize,
}

impl Coming {
    /// Part `i` of `count` of it, to be asked for in so many steps. A part is not asked for beyond its run.
    fn part(&self, (i, count): (usize, usize), steps: usize) -> Ahead {
        if count < self.runs || self.bytes == 0 {
            return Ahead::NOTHING;
        }
        let before = self.runs * self.bytes * i / count;
        let at = self.from.wrapping_add(before / self.bytes * self.apart + before % self.bytes);
        Ahead { at, lines: (self.runs * self.bytes).div_ceil(count * steps * 64) }
    }
}
