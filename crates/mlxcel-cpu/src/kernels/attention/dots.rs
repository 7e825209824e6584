//! A query's heads against keys and values where they lie: scores are dot products with rows of keys, results are sums of
//! weighted rows of values.
//!
//! Memory is what such a query waits for: of a stretch the keys are visited and then the values, [`CHUNK`] of them with all
//! heads of a run before the next, and beside every few of them those at the same place of the next chunk are asked for, which
//! stay in the first-level cache until then. A stretch that is seen whole is read at [`STREAMS`] places in turn, since
//! memory gives more that way. The softmax runs once over the stretch, while nothing is asked for.
//!
//! Pages of the cache are whole chunks, so that one address says where the rows of sixteen keys lie.
//!
//! Batch invariance: in which order values are added depends on nothing but the keys that the query sees.
#![allow(unsafe_code)]

use std::ops::Range;

use super::coded;
use super::core::{Attend, Memory, STRETCH, Widths};
use super::soft::soften;
use super::tile::{
    Ahead, Extent, LINES, Left, Number, OfNumbers, Rows, Stored, Sums, sharing, strips, with_numbers,
};
use crate::math;
use crate::simd::{LANES_MAX, Simd};

/// Keys with all heads of a run before the next ones; rows of as many neighbours lie at equal distances.
pub(super) const CHUNK: usize = LANES_MAX;
const CHUNKS: usize = STRETCH / CHUNK;

/// Bytes of a token's row that the heads of a run have, at most, unless one head has more.
const RUN_BYTES: usize = 1024;

/// Places at which a whole stretch is read, and chunks from one to the next.
const STREAMS: usize = 8;
const APART: usize = CHUNKS / STREAMS;

/// Keys that are multiplied side by side.
const SIDE_BY_SIDE: usize = Ahead::AT_ONCE;

/// Where the first head's rows of a chunk lie, in the order in which they are visited.
type Visited = [*const u8; CHUNK];

/// Where the first head's row of the first key of each chunk of a stretch lies.
type Starts = [*const u8; CHUNKS];

/// Rows of keys or values of a stretch, from the first head of a run on.
#[derive(Clone, Copy)]
struct Side<'a> {
    starts: &'a Starts,
    /// Bytes from one key's row to the next one's.
    row_bytes: usize,
    /// Where the first head of the run begins.
    offset: usize,
    /// Numbers of a head's row, and bytes from one head to the next.
    width: usize,
    head_bytes: usize,
}

impl<'a> Side<'a> {
    fn new(memory: &Memory<'_>, starts: &'a Starts, head: usize) -> Self {
        let head_bytes = memory.head_bytes();
        let row_bytes = memory.key_bytes();
        Side { starts, row_bytes, offset: head * head_bytes, width: memory.width, head_bytes }
    }

    /// Where a head's rows lie.
    #[inline(always)]
    fn at(&self, head: usize) -> usize {
        self.offset + head * self.head_bytes
    }

    /// The rows that are visited at a lane and behind it. A whole stretch is visited at all its places in turn.
    #[inline(always)]
    fn rows(&self, is_whole: bool, lane: usize) -> Visited {
        let chunk = lane / CHUNK;
        let mut rows = [self.starts[chunk]; CHUNK];
        if is_whole {
            const EACH: usize = CHUNK / STREAMS;
            let (among, key) = (chunk * EACH / CHUNK, chunk * EACH % CHUNK);
            for i in 0..CHUNK {
                let start = self.starts[i % STREAMS * APART + among];
                rows[i] = start.wrapping_add((key + i / STREAMS) * self.row_bytes);
            }
        } else {
            for i in 0..CHUNK {
                rows[i] = rows[i].wrapping_add(i * self.row_bytes);
            }
        }
        rows
    }
}

/// What is read next: a chunk's rows, and where the heads of a run begin in them.
#[derive(Clone, Copy)]
struct Next {
    rows: Visited,
    offset: usize,
    head_bytes: usize,
}

impl Next {
    #[inline(always)]
    fn of(side: &Side<'_>, is_whole: bool, lane: usize) -> Self {
        Next { rows: side.rows(is_whole, lane), offset: side.offset, head_bytes: side.head_bytes }
    }

    /// A head's rows.
    #[inline(always)]
    fn ahead(&self, head: usize) -> Ahead<'_> {
        Ahead { rows: &self.rows, offset: self.offset + head * self.head_bytes }
    }
}

/// One query's heads of a run.
#[derive(Clone, Copy)]
struct Visit<'a> {
    keys: Side<'a>,
    values: Side<'a>,
    /// What is read when all these values were.
    then: Next,
    /// Whether values are the beginnings of keys.
    is_shared: bool,
    heads: usize,
    group: usize,
    /// Lines from one head to the next.
    lines_per_head: usize,
    seen: (usize, usize),
    /// Whether all of the stretch is seen.
    is_whole: bool,
}

impl Visit<'_> {
    /// The lanes of the chunks that hold what is seen.
    fn lanes(&self) -> (usize, usize) {
        (self.seen.0 / CHUNK * CHUNK, self.seen.1.next_multiple_of(CHUNK))
    }

    /// What comes when a chunk of keys was read.
    #[inline(always)]
    fn after_keys(&self, chunk: usize) -> Next {
        let lanes = self.lanes();
        match chunk + CHUNK {
            next if next < lanes.1 => Next::of(&self.keys, self.is_whole, next),
            _ if self.is_shared => self.then,
            _ => Next::of(&self.values, self.is_whole, lanes.0),
        }
    }

    /// What comes when a chunk of values was read.
    #[inline(always)]
    fn after_values(&self, chunk: usize) -> Next {
        match chunk + CHUNK {
            next if next < self.lanes().1 => Next::of(&self.values, self.is_whole, next),
            _ => self.then,
        }
    }
}

impl Attend<'_> {
    /// Whether rows can be read where they lie.
    pub(super) fn is_direct(&self) -> bool {
        self.context.keys().direct() && self.values().direct()
    }

    /// All lines over the keys of the stretch; rows must be direct, and pages whole chunks.
    #[inline(always)]
    pub(super) fn by_dots<S: Simd>(&mut self) {
        debug_assert!(!self.scores.masked, "a cache has no masks");
        let keys = self.context.keys();
        let (values, is_shared) = self.context.values().map_or((keys, true), |values| (values, false));
        let at_once = (RUN_BYTES / keys.head_bytes()).clamp(1, self.heads.len());
        self.scratch.scores.resize(at_once * self.widths.group * STRETCH, 0.0);
        let base = self.keys.0 / STRETCH * STRETCH;
        let end = base + STRETCH;
        let is_whole = |&(lo, hi): &(usize, usize)| lo <= base && end <= hi;
        let [of_keys, of_values] = self.starts(self.keys);
        let first = (self.keys.0 - base) / CHUNK * CHUNK;
        let next = self.next(end, of_keys[first / CHUNK]);
        for head in self.heads.clone().step_by(at_once) {
            let run = head..(head + at_once).min(self.heads.end);
            let then = if run.end < self.heads.end {
                Next::of(&Side::new(&keys, &of_keys, run.end), is_whole(&self.ranges[0]), first)
            } else {
                let head_bytes = keys.head_bytes();
                Next { rows: next, offset: self.heads.start * head_bytes, head_bytes }
            };
            for (query, range) in self.ranges.iter().enumerate() {
                let (lo, hi) = *range;
                let visit = Visit {
                    keys: Side::new(&keys, &of_keys, head),
                    values: Side::new(&values, &of_values, head),
                    then,
                    is_shared,
                    heads: run.len(),
                    group: self.widths.group,
                    lines_per_head: self.ranges.len() * self.widths.group,
                    seen: (lo.max(self.keys.0) - base, hi.min(self.keys.1).max(base) - base),
                    is_whole: is_whole(range),
                };
                if visit.seen.0 < visit.seen.1 {
                    self.visit::<S>(&visit, query, &run);
                }
            }
        }
    }

    /// The first chunk of keys that is read in the next stretch, if there is one: nothing is worth asking for behind the
    /// last key.
    #[inline(always)]
    fn next(&self, first: usize, nothing: *const u8) -> Visited {
        if first >= self.last {
            return [nothing; CHUNK];
        }
        let is_whole = first + STRETCH <= self.last;
        let end = if is_whole { first + STRETCH } else { first + 1 };
        let [starts, _] = self.starts((first, end));
        Side::new(&self.context.keys(), &starts, 0).rows(is_whole, 0)
    }

    /// Where the chunks of a stretch that hold some keys lie, of keys and of values.
    #[inline(always)]
    fn starts(&self, keys: (usize, usize)) -> [Starts; 2] {
        let memory = [self.context.keys(), self.values()];
        let mut starts = [[std::ptr::null(); CHUNKS]; 2];
        for key in (keys.0 / CHUNK * CHUNK..keys.1).step_by(CHUNK) {
            let run = self.context.run(self.block, key);
            for i in 0..2 {
                starts[i][key % STRETCH / CHUNK] = memory[i].address(run.first[i], (CHUNK, self.heads.end));
            }
        }
        starts
    }

    /// The scores of the query's lines, their weights, and what these add to the results.
    #[inline(always)]
    fn visit<S: Simd>(&mut self, visit: &Visit<'_>, query: usize, heads: &Range<usize>) {
        let Widths { group, key, value } = self.widths;
        let first = (heads.start - self.heads.start) * visit.lines_per_head + query * group;
        let left = Left { base: self.q[first * key..].as_ptr(), stride: key };
        let sums = Sums { base: self.scratch.scores.as_mut_ptr(), stride: STRETCH };
        with_numbers::<S>(self.context.keys().dtype, Score { visit, left, sums });
        let (lanes, seen) = (visit.lanes(), visit.seen);
        for (i, scores) in self.scratch.scores.chunks_mut(STRETCH).take(heads.len() * group).enumerate() {
            if let Some(cap) = self.scores.softcap {
                scores[seen.0..seen.1].iter_mut().for_each(|s| *s = math::tanh(*s / cap) * cap);
            }
            scores[lanes.0..seen.0].fill(f32::NEG_INFINITY);
            scores[seen.1..lanes.1].fill(f32::NEG_INFINITY);
            let line = first + i / group * visit.lines_per_head + i % group;
            soften::<S>(&mut scores[lanes.0..lanes.1], &mut self.part.running[line]);
        }
        let weights = Sums { base: self.scratch.scores.as_mut_ptr(), stride: STRETCH };
        let sums = Sums { base: self.part.out[first * value..].as_mut_ptr(), stride: value };
        with_numbers::<S>(self.values().dtype, Add { visit, weights, sums });
    }
}

/// `sums[line][key]` become the products of lines with keys.
struct Score<'a> {
    visit: &'a Visit<'a>,
    left: Left,
    sums: Sums,
}

impl OfNumbers for Score<'_> {
    #[inline(always)]
    fn run<S: Simd, N: Number>(self) {
        let Score { visit, left, sums } = self;
        let (mut chunk, end) = visit.lanes();
        let mut rows = visit.keys.rows(visit.is_whole, chunk);
        while chunk < end {
            let next = visit.after_keys(chunk);
            for head in 0..visit.heads {
                let ahead = next.ahead(head);
                let keys = Stored::<N>::new(&rows, visit.keys.at(head));
                let sums = Sums { base: sums.base.wrapping_add(chunk), ..sums }.from(head * visit.group);
                let mut t = 0;
                while t < visit.group {
                    let count = sharing(visit.group - t);
                    let left = (left.from(head * visit.lines_per_head + t), visit.keys.width);
                    // Once is enough.
                    let ahead = if t == 0 { Some(ahead) } else { None };
                    // SAFETY: the lines are there, and so are the rows of the chunk, as wide as the lines.
                    unsafe {
                        match count {
                            1 => dots::<S, _, 1>(left, keys, sums.from(t), ahead),
                            2 => dots::<S, _, 2>(left, keys, sums.from(t), ahead),
                            3 => dots::<S, _, 3>(left, keys, sums.from(t), ahead),
                            4 => dots::<S, _, 4>(left, keys, sums.from(t), ahead),
                            _ => dots::<S, _, LINES>(left, keys, sums.from(t), ahead),
                        }
                    }
                    t += count;
                }
                if N::IS_CODED {
                    scale(&rows, visit.keys.at(head) + visit.keys.width, (sums, visit.group));
                }
            }
            rows = next.rows;
            chunk += CHUNK;
        }
    }
}

/// `T` lines by a chunk of keys: every score is one chain for each lane of a vector, and the lanes are added in one order.
///
/// # Safety
/// Lines must have `width` numbers and keys have them in whole vectors; sums must have the chunk.
#[inline(always)]
unsafe fn dots<S: Simd, R: Rows, const T: usize>(
    (left, width): (Left, usize),
    keys: R,
    sums: Sums,
    ahead: Option<Ahead<'_>>,
) {
    let mut lane = 0;
    while lane < CHUNK {
        if let Some(ahead) = &ahead {
            ahead.fetch(lane, 0, width * R::SIZE);
        }
        // SAFETY: as the caller promises.
        unsafe {
            let mut acc = [[S::splat(0.0); SIDE_BY_SIDE]; T];
            let mut d = 0;
            while d < width {
                let mut key = [S::splat(0.0); SIDE_BY_SIDE];
                for i in 0..SIDE_BY_SIDE {
                    key[i] = keys.read::<S>(lane + i, d);
                }
                for t in 0..T {
                    let x = S::load(left.base.add(t * left.stride + d));
                    for i in 0..SIDE_BY_SIDE {
                        acc[t][i] = S::fma(x, key[i], acc[t][i]);
                    }
                }
                d += S::LANES;
            }
            for t in 0..T {
                let four = S::sums(acc[t]);
                sums.base.add(t * sums.stride + lane).cast::<[f32; SIDE_BY_SIDE]>().write_unaligned(four);
            }
        }
        lane += SIDE_BY_SIDE;
    }
}

/// `sums[line]` grow by weighted rows of values.
struct Add<'a> {
    visit: &'a Visit<'a>,
    weights: Sums,
    sums: Sums,
}

impl OfNumbers for Add<'_> {
    #[inline(always)]
    fn run<S: Simd, N: Number>(self) {
        let Add { visit, weights, sums } = self;
        let (mut chunk, end) = visit.lanes();
        let mut rows = visit.values.rows(visit.is_whole, chunk);
        while chunk < end {
            let next = visit.after_values(chunk);
            let seen = (visit.seen.0.max(chunk) - chunk, visit.seen.1.min(chunk + CHUNK) - chunk);
            for head in 0..visit.heads {
                let values = Stored::<N>::new(&rows, visit.values.at(head));
                let weights =
                    Sums { base: weights.base.wrapping_add(chunk), ..weights }.from(head * visit.group);
                if N::IS_CODED {
                    scale(&rows, visit.values.at(head) + visit.values.width, (weights, visit.group));
                }
                let extent = Extent { fresh: false, rows: seen, columns: (0, sums.stride) };
                let ahead = next.ahead(head);
                let mut t = 0;
                while t < visit.group {
                    let count = sharing(visit.group - t);
                    let left = Left { base: weights.from(t).base, stride: weights.stride };
                    let sums = sums.from(head * visit.lines_per_head + t);
                    let ahead = if t == 0 { Some(ahead) } else { None };
                    // SAFETY: weights and results have the lines, and values the rows, as wide as results.
                    unsafe { strips::<S, _>(count, left, values, sums, (extent, ahead)) };
                    t += count;
                }
            }
            rows = next.rows;
            chunk += CHUNK;
        }
    }
}

/// Multiplies numbers of lines by the steps of a chunk's codes, which lie some bytes behind their rows.
#[inline(always)]
fn scale(rows: &Visited, at: usize, (numbers, lines): (Sums, usize)) {
    let mut steps = [1.0; CHUNK];
    // SAFETY: the addresses are of whole rows, which end with their steps; the lines have the chunk.
    unsafe {
        coded::steps(rows, at, &mut steps);
        for t in 0..lines {
            for lane in 0..CHUNK {
                *numbers.base.add(t * numbers.stride + lane) *= steps[lane];
            }
        }
    }
}
