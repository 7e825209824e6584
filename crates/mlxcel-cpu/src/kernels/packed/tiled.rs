//! Products in AMX tiles, panel by panel and over the threads: how weights get into tiles and sums out of them.
//!
//! Where all of `k` of many tokens fits into the second-level cache, they stay there while pairs of panels pass, decoded if they have
//! to be. Else a block of panels stays while all tokens pass, whose sums stay in tiles along `k` as far as that cache allows. What
//! comes next from further away is asked for meanwhile.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;
use std::slice;
use std::time::{Duration, Instant};

use mlxcel_engine::EngineError;

use super::activations::Activations;
use super::dots::Product;
use super::format::{BLOCK, Format, ROWS};
use super::gated::{self, Gate, Pending};
pub(super) use super::tiles::STEP;
use super::tiles::{Ahead, Registers, Way};
use super::tokens::Tokens;
use super::{Job, Numbers, Packed, bytes, decode, dots, tiles};
use crate::kernels::linear::Halves;
use crate::memory::{self, Buffer};

/// Panels of a task, at most.
const TOGETHER: usize = 32;
/// Panels of a block that stays.
const PANELS: usize = 16;
/// Tiles of tokens at a time, at most: where rows are deep, their sums wait in the second-level cache too.
const TILES: usize = 64;
/// Bytes of tokens that stay, at most: they leave room for what passes.
const STAYING: usize = 1700 << 10;
/// Tiles of tokens that are worth staying where others follow, for which panels are decoded again.
const MANY: usize = 24;
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
struct Room {
    memory: Memory,
    ways: Ways,
    /// Which tokens passed last, and from which of their tiles on: they are near.
    passed: (usize, usize),
}

#[derive(Default)]
struct Memory(Option<Buffer>);

impl Memory {
    /// Numbers of whatever was there before: sums, and rows that are decoded.
    fn of(&mut self, sums: usize, decoded: usize) -> Result<(&mut [f32], &mut [u16]), EngineError> {
        let sum_bytes = sums * size_of::<f32>();
        // In a large page, even if little: every tile is another line of some small one.
        let bytes = (sum_bytes + decoded * size_of::<u16>()).max(memory::REUSED_LARGE);
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

/// Which way of tiles is fastest just now. That changes within seconds, with what others do on the same core, and nobody tells;
/// so neighbouring turns of some blocks are timed, one of each way. The sums are the same, bit for bit.
#[derive(Default)]
struct Ways {
    chosen: Way,
    blocks: usize,
    /// What the first way took in the last trial.
    first: Duration,
    /// What the others took of that lately, on average: a single turn may have met anything.
    others: [Share; 2],
}

/// A part of a time; all of it at first.
#[derive(Clone, Copy)]
struct Share(f32);

impl Default for Share {
    fn default() -> Self {
        Share(1.0)
    }
}

impl Ways {
    const ALL: [Way; 3] = [Way::Past, Way::Spaced, Way::Through];
    /// Blocks of which one has such turns, and the first of those: weights that were not asked for in time are no longer waited
    /// for then.
    const EVERY: usize = 8;
    const FIRST: usize = 2;
    /// How much of an average is the last trial. Single ones differ by a fifth, ways often by a tenth.
    const LAST: f32 = 1.0 / 16.0;

    /// Runs a turn of a block.
    fn turn(&mut self, turn: usize, run: impl FnOnce(Way)) {
        self.blocks += usize::from(turn == 0);
        let Some(nth) = self.trial(turn) else { return run(self.chosen) };
        let begun = Instant::now();
        run(Self::ALL[nth]);
        self.took(nth, begun.elapsed());
    }

    /// Which of the ways a turn that is timed goes.
    fn trial(&self, turn: usize) -> Option<usize> {
        let nth = turn.checked_sub(Self::FIRST).filter(|_| self.blocks.is_multiple_of(Self::EVERY))?;
        (nth < Self::ALL.len()).then_some(nth)
    }

    fn took(&mut self, nth: usize, time: Duration) {
        let Some(other) = nth.checked_sub(1) else {
            self.first = time;
            return;
        };
        let share = &mut self.others[other].0;
        *share +=
            Self::LAST * (time.as_secs_f32() / self.first.as_secs_f32().max(f32::MIN_POSITIVE) - *share);
        let shares = [1.0, self.others[0].0, self.others[1].0];
        let best = (0..shares.len()).min_by(|a, b| shares[*a].total_cmp(&shares[*b]));
        self.chosen = Self::ALL[best.expect("there are ways")];
    }
}

/// How a product in tiles is cut: tiles of tokens at a time, panels of a block, and elements of a stretch of `k`.
#[derive(Clone, Copy)]
struct Cut {
    tiles: usize,
    panels: usize,
    stretch: usize,
    /// Whether it is the tokens that stay near.
    stay: bool,
}

impl Cut {
    fn new(tiles: usize, depth: usize, is_decoded: bool) -> Self {
        if is_decoded && tiles <= FEW {
            return Cut { tiles: TILES, panels: 2, stretch: BLOCK, stay: false };
        }
        let times = (tiles * tiles::TOKENS * depth * 2).div_ceil(STAYING);
        let some = tiles.div_ceil(times).next_multiple_of(2);
        if tiles > FEW && (times == 1 || some >= MANY) {
            return Cut { tiles: some, panels: 2, stretch: depth.next_multiple_of(BLOCK), stay: true };
        }
        let stretch = depth.div_ceil(depth.div_ceil(DEEP).max(1)).next_multiple_of(BLOCK);
        Cut { tiles: TILES, panels: PANELS, stretch, stay: false }
    }
}

impl Job<'_> {
    pub(super) fn in_byte_tiles(
        &self,
        format: &Format,
        x: &Activations<'_>,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let configuration = bytes::configuration(format, x.bytes);
        self.spread((self.panels.len(), 1, self.per_task(1)), |panels| {
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
    pub(super) fn mixed(&self, exact: &[usize]) -> Result<(), EngineError> {
        let beside = self.beside(exact)?;
        self.with_tokens((self.x.tokens, beside.in_tiles(exact)), |x| {
            in_tiles(slice::from_ref(self), x, exact, &beside, None)
        })
    }

    /// All tokens alike: rounded, or in two halves.
    pub(super) fn alike(&self, is_rounded: bool) -> Result<(), EngineError> {
        let exact: Vec<usize> = if is_rounded { vec![] } else { (0..self.x.tokens).collect() };
        let rounded = if is_rounded { self.x.tokens } else { 0 };
        self.with_tokens((rounded, &exact), |x| {
            in_tiles(slice::from_ref(self), x, &exact, &Beside::Tiles, None)
        })
    }

    /// Calls `work` with so many rounded tokens and some in two halves, which are laid into tiles if they do not lie there.
    pub(super) fn with_tokens<T>(
        &self,
        (rounded, exact): (usize, &[usize]),
        work: impl FnOnce(&Tokens<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if let Some(tiles) = &self.x.tiles {
            assert!(tiles.holds(rounded, exact.len()), "other tokens lie in tiles");
            return work(tiles);
        }
        let row = |t: usize| self.x.row(t, 0);
        // SAFETY: the level has the features; rows of a panel have all columns.
        work(&unsafe { Tokens::new(self.ctx, self.packed.cols, (rounded, exact), row) }?)
    }

    /// How the exact tokens of a step come along.
    pub(super) fn beside(&self, exact: &[usize]) -> Result<Beside<'_>, EngineError> {
        let Numbers::Codes(format) = &self.packed.numbers else { return Ok(Beside::Tiles) };
        if exact.is_empty() {
            return Ok(Beside::Tiles);
        }
        let row = |i: usize| self.x.row(exact[i], 0);
        let sizes = [exact.len(), self.packed.cols, self.bytes()];
        // SAFETY: the level has the features; rows of a panel have all columns.
        Ok(Beside::Codes(format, unsafe { Activations::new(self.ctx, format, sizes, row) }?))
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

/// How exact tokens come along with those in tiles.
pub(super) enum Beside<'a> {
    /// In tiles too, in two halves.
    Tiles,
    /// In whole numbers, while the codes of a block are still near.
    Codes(&'a Format, Activations<'a>),
}

impl Beside<'_> {
    /// Those of the exact tokens that take tiles.
    pub(super) fn in_tiles<'t>(&self, exact: &'t [usize]) -> &'t [usize] {
        match self {
            Beside::Tiles => exact,
            Beside::Codes(..) => &[],
        }
    }
}

/// Multiplies tokens in tiles with all panels of one job, or of two whose panels take turns, a gate's and its factor's.
/// Results of exact tokens are put last; where there is a gate, those of the others become tiles of the next product.
pub(super) fn in_tiles(
    jobs: &[Job<'_>],
    x: &Tokens<'_>,
    exact: &[usize],
    beside: &Beside<'_>,
    gate: Option<&Gate<'_>>,
) -> Result<(), EngineError> {
    let job = &jobs[0];
    let is_decoded = matches!(job.packed.numbers, Numbers::Codes(_));
    let cut = Cut::new(x.tiles, x.depth, is_decoded);
    let panels = job.panels.len() * jobs.len();
    let per_task = panels.div_ceil(TASKS * job.ctx.threads.count()).min(TOGETHER);
    let configuration = tiles::of_lines(x.lines);
    job.spread((panels, 2 * jobs.len(), per_task), |panels| {
        ROOM.with_borrow_mut(|room| {
            // SAFETY: the level has tiles, which includes the permission.
            let registers = unsafe { Registers::configure(&configuration) };
            let turns = if cut.stretch < x.depth { x.tiles.min(cut.tiles) / 2 } else { 1 };
            let decoded = if is_decoded { cut.panels * cut.stretch * ROWS } else { 0 };
            let Room { memory, ways, passed } = room;
            let (sums, decoded) = memory.of(turns * cut.panels / 2 * tiles::PAIR_SUMS, decoded)?;
            let exact_tiles = beside.in_tiles(exact);
            let mut walk = Walk {
                jobs,
                x,
                exact: exact_tiles,
                cut,
                registers,
                sums,
                decoded,
                gate,
                pending: None,
                are_near: false,
            };
            for first in (0..x.tiles).step_by(cut.tiles) {
                let some = first..x.tiles.min(first + cut.tiles);
                for start in panels.clone().step_by(cut.panels) {
                    let block = start..panels.end.min(start + cut.panels);
                    walk.are_near = cut.stay && *passed == (x.number, first);
                    walk.block(block.clone(), panels.end, some.clone(), ways);
                    *passed = (x.number, first);
                    if let Beside::Codes(format, activations) = beside
                        && some.end == x.tiles
                    {
                        walk.put_beside(block, format, (activations, exact));
                    }
                }
            }
            Ok(())
        })
    })
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
    jobs: &'a [Job<'a>],
    x: &'a Tokens<'a>,
    /// The tokens in two halves.
    exact: &'a [usize],
    cut: Cut,
    registers: Registers,
    /// Of all panels of a block, with all tokens where they have to wait.
    sums: &'a mut [f32],
    decoded: &'a mut [u16],
    gate: Option<&'a Gate<'a>>,
    /// Sums of a gate and its factor that were not multiplied yet.
    pending: Option<Pending>,
    /// Whether the tokens of a block need not be asked for.
    are_near: bool,
}

impl Walk<'_> {
    /// Whose a panel is, and which of its rows.
    fn job(&self, panel: usize) -> (&Job<'_>, usize) {
        (&self.jobs[panel % self.jobs.len()], panel / self.jobs.len())
    }

    /// Where elements of a panel from `start` on lie, and in how many bytes.
    fn stored(&self, panel: usize, stretch: (usize, usize)) -> (*const u8, usize) {
        let (job, panel) = self.job(panel);
        job.packed.stretch(job.panels.start + panel, stretch)
    }

    /// All of `k` for a block of panels and some tiles of tokens, in a task that goes on to panel `end`.
    fn block(&mut self, panels: Range<usize>, end: usize, tiles: Range<usize>, ways: &mut Ways) {
        let depth = self.x.depth;
        for start in (0..depth).step_by(self.cut.stretch) {
            let stretch = (start, self.cut.stretch.min(depth - start));
            self.decode(&panels, stretch);
            let next = self.next(&panels, end, start + stretch.1);
            for turn in 0..tiles.len() / 2 {
                ways.turn(turn, |way| self.turn(&panels, stretch, (turn, &tiles), (way, &next)));
            }
        }
        if let Some((gate, pending)) = self.gate.zip(self.pending.take()) {
            gate.finish(pending);
        }
    }

    /// A stretch of a block of panels with one pair of tiles of tokens, while what comes next is asked for.
    fn turn(
        &mut self,
        panels: &Range<usize>,
        (start, len): (usize, usize),
        (turn, tiles): (usize, &Range<usize>),
        (way, next): (Way, &Coming),
    ) {
        let (steps, pairs, turns) = (len / STEP, panels.len().div_ceil(2), tiles.len() / 2);
        let tile = tiles.start + 2 * turn;
        // Where all of `k` is one stretch, sums need not wait and take the same place each time.
        let is_whole = len == self.x.depth;
        let at = if is_whole { 0 } else { turn * pairs * tiles::PAIR_SUMS };
        let after = tiles.start + 2 * ((turn + 1) % turns);
        let after = self.x.pair(after, start).cast();
        let tokens = Coming { from: [after; 2], ways: 1, bytes: steps * PAIR_BYTES, runs: 1, apart: 0 };
        let is_last = start + len == self.x.depth;
        for i in 0..pairs {
            let ahead = if turns > 1 {
                let tokens = if self.are_near { Ahead::NOTHING } else { tokens.part((i, pairs), steps) };
                [tokens, next.part((turn * pairs + i, turns * pairs), steps)]
            } else {
                self.after(panels, (start, len), i, next)
            };
            let rows = [2 * i, (2 * i + 1).min(panels.len() - 1)].map(|p| self.rows(panels, p, start));
            let sums = self.sums[at + i * tiles::PAIR_SUMS..][..tiles::PAIR_SUMS].as_mut_ptr();
            let factors = (self.x.pair(tile, start), rows, steps);
            let Some(gate) = self.gate else {
                // SAFETY: the rows hold the stretch, the sums are those of a pair, and the registers are ours.
                unsafe { tiles::multiply(&self.registers, factors, (sums, start == 0), (way, ahead), || ()) };
                continue;
            };
            let mut pending = self.pending.take();
            let lines = gated::LINES.div_ceil(steps);
            let aside = || pending.iter_mut().for_each(|pending| gate.some(pending, lines));
            // SAFETY: as above.
            unsafe { tiles::multiply(&self.registers, factors, (sums, start == 0), (way, ahead), aside) };
            if is_last && tile < self.x.rounded {
                self.pending = Some(Pending::new(sums, self.job(panels.start + 2 * i).1, tile));
            }
        }
        if is_last && (self.gate.is_none() || tile >= self.x.rounded) {
            self.put(panels.clone(), tile, &self.sums[at..][..pairs * tiles::PAIR_SUMS]);
        }
    }

    /// The weights of the pair of panels after pair `i`, where one pair of tiles of tokens is all there is: what they are
    /// multiplied with soon leaves no time for more.
    fn after(&self, panels: &Range<usize>, stretch: (usize, usize), i: usize, next: &Coming) -> [Ahead; 2] {
        let pair = 2 * (i + 1);
        let steps = stretch.1 / STEP;
        if pair < panels.len() {
            let last = panels.end - 1;
            return [pair, pair + 1].map(|p| {
                let (at, bytes) = self.stored((panels.start + p).min(last), stretch);
                Ahead::new(at, bytes, steps)
            });
        }
        [0, 1].map(|run| next.run(run).map_or(Ahead::NOTHING, |at| Ahead::new(at, next.bytes, steps)))
    }

    /// The finished sums of some panels with a pair of tiles of tokens.
    fn put(&self, panels: Range<usize>, tile: usize, sums: &[f32]) {
        if tile < self.x.rounded {
            let tokens = tile * tiles::TOKENS..((tile + 2) * tiles::TOKENS).min(self.jobs[0].x.tokens);
            return self.jobs[0].put_tiles(Halves::One, panels, tokens, sums);
        }
        let exact = self.exact.chunks(tiles::TOKENS).nth((tile - self.x.rounded) / 2);
        let exact = exact.expect("a pair of tiles has tokens");
        let neighbours = exact[0]..exact[0] + exact.len();
        if let [job] = self.jobs
            && exact.last() == Some(&(neighbours.end - 1))
        {
            return job.put_tiles(Halves::Two, panels, neighbours, sums);
        }
        for (slot, token) in exact.iter().enumerate() {
            for (i, p) in panels.clone().enumerate() {
                let sums = &sums[i / 2 * tiles::PAIR_SUMS..];
                let (job, p) = self.job(p);
                job.put(*token, p, &tiles::sums(sums, Halves::Two, i % 2, slot));
            }
        }
    }

    /// Exact tokens, in whole numbers, with some panels.
    fn put_beside(&self, panels: Range<usize>, format: &Format, (x, exact): (&Activations<'_>, &[usize])) {
        dots::Room::with(|room| {
            for p in panels {
                let panels = dots::Panels { first: self.stored(p, (0, 0)).0, apart: 0, count: 1 };
                let (job, p) = self.job(p);
                for (i, tokens) in exact.chunks(dots::TOKENS).enumerate() {
                    let (level, first) = (job.ctx.level, i * dots::TOKENS);
                    let product = Product { level, format, panels, cols: job.packed.cols, x, first };
                    // SAFETY: the level has the features; the panel lies in the buffer and the tokens are there.
                    let sums = unsafe { product.run(tokens.len(), room) };
                    for (token, sums) in tokens.iter().zip(&sums[0]) {
                        job.put(*token, p, sums);
                    }
                }
            }
        });
    }

    /// Makes `bf16` numbers of a stretch of some panels, if they are not.
    fn decode(&mut self, panels: &Range<usize>, stretch: (usize, usize)) {
        let Numbers::Codes(format) = &self.jobs[0].packed.numbers else { return };
        for (i, panel) in panels.clone().enumerate() {
            let (from, _) = self.stored(panel, stretch);
            let to = &mut self.decoded[i * self.cut.stretch * ROWS..][..self.cut.stretch * ROWS];
            // SAFETY: stretches are whole blocks or the end of a row, and there is room for one.
            unsafe { decode::decode(format, from, stretch.1, to.as_mut_ptr()) };
        }
    }

    /// Where a panel of a block lies in tiles, from element `start` of `k` on.
    fn rows(&self, panels: &Range<usize>, panel: usize, start: usize) -> *const u16 {
        match self.jobs[0].packed.numbers {
            Numbers::Halves => self.stored(panels.start + panel, (start, 0)).0.cast(),
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
        let stretch = (start, self.cut.stretch.min(depth - start));
        let (first, bytes) = self.stored(panels.start, stretch);
        let (second, _) = self.stored(panels.start + self.jobs.len() - 1, stretch);
        let apart = self.jobs[0].packed.panel_bytes;
        Coming { from: [first, second], ways: self.jobs.len(), bytes, runs: panels.len(), apart }
    }
}

/// Memory that is read soon: runs of bytes at equal distances, of one array or of two in turn.
struct Coming {
    from: [*const u8; 2],
    ways: usize,
    bytes: usize,
    runs: usize,
    apart: usize,
}

impl Coming {
    /// Where a run begins, if there are so many.
    fn run(&self, run: usize) -> Option<*const u8> {
        (run < self.runs).then(|| self.from[run % self.ways].wrapping_add(run / self.ways * self.apart))
    }

    /// Part `i` of `count` of it, to be asked for in so many steps. A part is not asked for beyond its run.
    fn part(&self, (i, count): (usize, usize), steps: usize) -> Ahead {
        if count < self.runs || self.bytes == 0 {
            return Ahead::NOTHING;
        }
        let before = self.runs * self.bytes * i / count;
        let at = self.run(before / self.bytes).map(|at| at.wrapping_add(before % self.bytes));
        at.map_or(Ahead::NOTHING, |at| Ahead::new(at, (self.runs * self.bytes).div_ceil(count), steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_that_takes_least_on_average_is_gone() {
        let mut ways = Ways::default();
        let (mut gone, mut chosen) = (vec![], vec![]);
        for block in 1..=512 {
            // A neighbour comes, and goes again.
            let times = if (64..320).contains(&block) { [110, 90, 95] } else { [40, 44, 50] };
            for turn in 0..6 {
                ways.blocks += usize::from(turn == 0);
                let tried = ways.trial(turn);
                gone.push(tried.map_or(ways.chosen, |nth| Ways::ALL[nth]));
                if let Some(nth) = tried {
                    ways.took(nth, Duration::from_micros(times[nth]));
                }
            }
            chosen.push(ways.chosen);
        }
        assert_eq!(gone[..42], [Way::Past; 42]);
        let of_eighth = [Way::Past, Way::Past, Way::Past, Way::Spaced, Way::Through, Way::Past];
        assert_eq!(gone[42..48], of_eighth);
        assert!(chosen[127..319].iter().all(|way| *way == Way::Spaced), "{chosen:?}");
        assert!(chosen[447..].iter().all(|way| *way == Way::Past), "{chosen:?}");
    }

    #[test]
    fn one_odd_turn_changes_no_way_that_is_much_slower() {
        let mut ways = Ways::default();
        for trial in 0..20 {
            for (nth, time) in [40, 44, 60].into_iter().enumerate() {
                ways.took(nth, Duration::from_micros(if trial == 10 && nth == 0 { 60 } else { time }));
            }
            assert_eq!(ways.chosen, Way::Past, "trial {trial}");
        }
    }
}
