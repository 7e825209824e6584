//! A query's heads against keys and values where they lie: scores are dot products with rows of keys, results are sums of
//! weighted rows of values.
//!
//! Memory is what such a query waits for: of a stretch the keys are visited and then the values, [`CHUNK`] of them with all
//! heads of a run before the next, and beside every few of them those at the same place of the next chunk are asked for, which
//! stay in the first-level cache until then. A stretch that is seen whole is read at [`STREAMS`] places in turn, since
//! memory gives more that way. The softmax runs once over the stretch, while nothing is asked for.
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

/// Rows with all heads of a run before the next rows.
const CHUNK: usize = LANES_MAX;

/// Bytes of a token's row that the heads of a run have, at most, unless one head has more.
const RUN_BYTES: usize = 1024;

/// Places at which a whole stretch is read, and keys from one to the next.
const STREAMS: usize = 8;
const APART: usize = STRETCH / STREAMS;

/// Keys that are multiplied side by side.
const SIDE_BY_SIDE: usize = Ahead::AT_ONCE;

/// Rows of keys or values, from the first head of a run on.
#[derive(Clone, Copy)]
struct Side<'a> {
    rows: &'a [*const u8],
    /// Where the first head of the run begins.
    offset: usize,
    /// Numbers of a head's row, and bytes from one head to the next.
    width: usize,
    head_bytes: usize,
}

impl<'a> Side<'a> {
    fn new(memory: &Memory<'_>, rows: &'a [*const u8], head: usize) -> Self {
        let head_bytes = memory.head_bytes();
        Side { rows, offset: head * head_bytes, width: memory.width, head_bytes }
    }

    /// Where a head's rows lie.
    #[inline(always)]
    fn at(&self, head: usize) -> usize {
        self.offset + head * self.head_bytes
    }

    /// A chunk's rows of a head.
    #[inline(always)]
    fn ahead(&self, head: usize, lane: usize) -> Ahead<'a> {
        Ahead { rows: &self.rows[lane..lane + CHUNK], offset: self.at(head) }
    }
}

/// One query's heads of a run.
#[derive(Clone, Copy)]
struct Visit<'a> {
    keys: Side<'a>,
    values: Side<'a>,
    /// What is read when all these values were, from its first lane on.
    then: Side<'a>,
    /// Whether values are the beginnings of keys.
    is_shared: bool,
    heads: usize,
    group: usize,
    /// Lines from one head to the next.
    lines_per_head: usize,
    seen: (usize, usize),
}

impl<'a> Visit<'a> {
    /// The lanes of the chunks that hold what is seen.
    fn lanes(&self) -> (usize, usize) {
        (self.seen.0 / CHUNK * CHUNK, self.seen.1.next_multiple_of(CHUNK))
    }

    /// What comes when a chunk of keys was read.
    #[inline(always)]
    fn after_keys(&self, chunk: usize) -> (Side<'a>, usize) {
        let lanes = self.lanes();
        match chunk + CHUNK {
            next if next < lanes.1 => (self.keys, next),
            _ if self.is_shared => (self.then, 0),
            _ => (self.values, lanes.0),
        }
    }

    /// What comes when a chunk of values was read.
    #[inline(always)]
    fn after_values(&self, chunk: usize) -> (Side<'a>, usize) {
        let next = chunk + CHUNK;
        if next < self.lanes().1 { (self.values, next) } else { (self.then, 0) }
    }
}

impl Attend<'_> {
    /// Whether rows can be read where they lie.
    pub(super) fn is_direct(&self) -> bool {
        self.context.keys().direct() && self.values().direct()
    }

    /// All lines over the keys of the stretch; rows must be direct.
    #[inline(always)]
    pub(super) fn by_dots<S: Simd>(&mut self) {
        debug_assert!(!self.scores.masked, "a cache has no masks");
        let keys = self.context.keys();
        let (values, is_shared) = self.context.values().map_or((keys, true), |values| (values, false));
        let at_once = (RUN_BYTES / keys.head_bytes()).clamp(1, self.heads.len());
        self.scratch.scores.resize(at_once * self.widths.group * STRETCH, 0.0);
        let base = self.keys.0 / STRETCH * STRETCH;
        let rows = self.rows(base);
        let end = base + STRETCH;
        let is_whole = |&(lo, hi): &(usize, usize)| lo <= base && end <= hi;
        let mut spread = std::mem::take(&mut self.scratch.spread);
        if self.ranges.iter().any(is_whole) {
            rows.iter().zip(&mut spread).for_each(|(rows, spread)| fill_spread(rows, spread));
        }
        let lanes = |range: &(usize, usize)| {
            let of = if is_whole(range) { &spread } else { &rows };
            [&of[0][..], &of[1][..]]
        };
        let next = self.next(end, rows[0][self.keys.0 - base]);
        for head in self.heads.clone().step_by(at_once) {
            let run = head..(head + at_once).min(self.heads.end);
            let then = if run.end < self.heads.end {
                let [rows, _] = lanes(&self.ranges[0]);
                Side::new(&keys, &rows[(self.keys.0 - base) / CHUNK * CHUNK..], run.end)
            } else {
                Side::new(&keys, &next, self.heads.start)
            };
            for (query, range) in self.ranges.iter().enumerate() {
                let ([of_keys, of_values], (lo, hi)) = (lanes(range), *range);
                let visit = Visit {
                    keys: Side::new(&keys, of_keys, head),
                    values: Side::new(&values, of_values, head),
                    then,
                    is_shared,
                    heads: run.len(),
                    group: self.widths.group,
                    lines_per_head: self.ranges.len() * self.widths.group,
                    seen: (lo.max(self.keys.0) - base, hi.min(self.keys.1).max(base) - base),
                };
                if visit.seen.0 < visit.seen.1 {
                    self.visit::<S>(&visit, query, &run);
                }
            }
        }
        (self.scratch.rows, self.scratch.spread) = (rows, spread);
    }

    /// The first chunk of keys that is read in the next stretch, if there is one: nothing is worth asking for behind the
    /// last key.
    #[inline(always)]
    fn next(&self, first: usize, nothing: *const u8) -> [*const u8; CHUNK] {
        let mut rows = [nothing; CHUNK];
        let mut values = rows;
        if first + STRETCH <= self.last {
            const EACH: usize = CHUNK / STREAMS;
            for stream in 0..STREAMS {
                let (key, mut some) = (first + stream * APART, [nothing; EACH]);
                self.write_rows((key, key + EACH), [&mut some, &mut values[..EACH]]);
                for (i, row) in some.into_iter().enumerate() {
                    rows[i * STREAMS + stream] = row;
                }
            }
        } else if first < self.last {
            let count = CHUNK.min(self.last - first);
            self.write_rows((first, first + count), [&mut rows[..count], &mut values[..count]]);
        }
        rows
    }

    /// Where the rows of the stretch lie, of keys and of values, in whole chunks, of which the lanes that are not meant are
    /// others' rows.
    #[inline(always)]
    fn rows(&mut self, base: usize) -> [Vec<*const u8>; 2] {
        let mut rows = std::mem::take(&mut self.scratch.rows);
        let (first, end) = (self.keys.0 - base, self.keys.1 - base);
        for rows in &mut rows {
            rows.resize(STRETCH, std::ptr::null());
        }
        self.write_rows(self.keys, rows.each_mut().map(|rows| &mut rows[first..end]));
        for rows in &mut rows {
            let some = rows[first];
            rows[first / CHUNK * CHUNK..first].fill(some);
            rows[end..end.next_multiple_of(CHUNK)].fill(some);
        }
        rows
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

/// A whole stretch in the order in which it is read.
#[inline(always)]
fn fill_spread(rows: &[*const u8], spread: &mut Vec<*const u8>) {
    spread.resize(STRETCH, std::ptr::null());
    for (stream, rows) in rows.chunks(APART).enumerate() {
        for (row, to) in rows.iter().zip(spread[stream..].iter_mut().step_by(STREAMS)) {
            *to = *row;
        }
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
        while chunk < end {
            let (next, lane) = visit.after_keys(chunk);
            for head in 0..visit.heads {
                let ahead = next.ahead(head, lane);
                let keys = Stored::<N>::new(visit.keys.rows, visit.keys.at(head));
                let mut t = 0;
                while t < visit.group {
                    let count = sharing(visit.group - t);
                    let left = (left.from(head * visit.lines_per_head + t), visit.keys.width);
                    let sums = sums.from(head * visit.group + t);
                    // Once is enough.
                    let place = (chunk, if t == 0 { Some(ahead) } else { None });
                    // SAFETY: the lines are there, and so are the rows of all lanes, as wide as the lines.
                    unsafe {
                        match count {
                            1 => dots::<S, _, 1>(left, keys, sums, place),
                            2 => dots::<S, _, 2>(left, keys, sums, place),
                            3 => dots::<S, _, 3>(left, keys, sums, place),
                            4 => dots::<S, _, 4>(left, keys, sums, place),
                            _ => dots::<S, _, LINES>(left, keys, sums, place),
                        }
                    }
                    t += count;
                }
                if N::IS_CODED {
                    scale(&visit.keys, (head, chunk), (sums.from(head * visit.group), visit.group));
                }
            }
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
    (chunk, ahead): (usize, Option<Ahead<'_>>),
) {
    let mut lane = chunk;
    while lane < chunk + CHUNK {
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
        while chunk < end {
            let (next, lane) = visit.after_values(chunk);
            let rows = (visit.seen.0.max(chunk), visit.seen.1.min(chunk + CHUNK));
            for head in 0..visit.heads {
                let values = Stored::<N>::new(visit.values.rows, visit.values.at(head));
                let weights = weights.from(head * visit.group);
                if N::IS_CODED {
                    scale(&visit.values, (head, chunk), (weights, visit.group));
                }
                let extent = Extent { fresh: false, rows, columns: (0, sums.stride) };
                let ahead = next.ahead(head, lane);
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
            chunk += CHUNK;
        }
    }
}

/// Multiplies numbers of lines at a chunk by the steps of the codes there.
#[inline(always)]
fn scale(side: &Side<'_>, (head, chunk): (usize, usize), (numbers, lines): (Sums, usize)) {
    let mut steps = [1.0; CHUNK];
    // SAFETY: the addresses are of whole rows, which end with their steps; the lines have the chunk.
    unsafe {
        coded::steps(&side.rows[chunk..chunk + CHUNK], side.at(head) + side.width, &mut steps);
        for t in 0..lines {
            for lane in 0..CHUNK {
                *numbers.base.add(t * numbers.stride + chunk + lane) *= steps[lane];
            }
        }
    }
}
