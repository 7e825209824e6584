//! Lines, each a query and a head, against tiles of keys: scores, running softmax, weighted values.
#![allow(unsafe_code)]

use std::ops::Range;

use mlxcel_ir::{CacheRow, DType};

use super::Scores;
use super::coded;
use super::soft::{Running, soften};
use super::tile::{Even, Extent, LINES, Left, Sums, add_product, add_stored, sharing};
use super::turn::{fetch, turn};
use crate::lanes::Lane;
use crate::math;
use crate::simd::{Kernel, LANES_MAX, Simd};
use crate::view::Shared;

/// Keys in a tile. Tiles begin at multiples of it, counted from the start of the sequence.
pub(super) const KEYS: usize = 64;

/// Keys in a stretch, whose result is computed by itself and then joined to that of the keys before it.
pub(super) const STRETCH: usize = 4 * KEYS;

/// Sizes of a task: heads that share a KV head, and the widths of keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub(super) group: usize,
    pub(super) key: usize,
    pub(super) value: usize,
}

impl Widths {
    pub(super) fn value_padded(&self) -> usize {
        self.value.next_multiple_of(LANES_MAX)
    }
}

/// Where rows of keys or values lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) dtype: DType,
    /// Numbers of a row, and elements from one of them to the next.
    pub(super) width: usize,
    pub(super) stride: usize,
    /// Elements from one head's row to the next one's.
    pub(super) head: usize,
    /// Elements from one key's rows to the next one's, within a run.
    pub(super) key: usize,
}

impl Memory<'_> {
    /// Whether rows can be read in whole vectors where they lie.
    #[inline(always)]
    pub(super) fn direct(&self) -> bool {
        let known = matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I8);
        known && self.stride == 1 && self.width.is_multiple_of(LANES_MAX)
    }

    #[inline(always)]
    fn row_bytes(&self) -> usize {
        let size = self.dtype.size().expect("keys and values are plain");
        ((self.width.max(1) - 1) * self.stride + 1) * size + self.extra()
    }

    /// Bytes of a row behind its numbers.
    #[inline(always)]
    fn extra(&self) -> usize {
        if self.dtype == DType::I8 { CacheRow::EXTRA } else { 0 }
    }

    /// Bytes from one head's row to the next one's.
    #[inline(always)]
    pub(super) fn head_bytes(&self) -> usize {
        self.head * self.dtype.size().expect("keys and values are plain")
    }

    /// Bytes from one key's rows to the next one's, within a run.
    #[inline(always)]
    pub(super) fn key_bytes(&self) -> usize {
        self.key * self.dtype.size().expect("keys and values are plain")
    }

    /// Where the first head's row of a run lies, which begins at element `first`. Rows of `count` keys and all `heads` are
    /// checked to exist.
    #[inline(always)]
    pub(super) fn address(&self, first: usize, (count, heads): (usize, usize)) -> *const u8 {
        let size = self.dtype.size().expect("keys and values are plain");
        let whole = (heads - 1) * self.head_bytes() + self.row_bytes();
        self.bytes[first * size..][..(count - 1) * self.key_bytes() + whole].as_ptr()
    }

    /// Writes where the first head's rows of a run lie, as [`Memory::address`].
    #[inline(always)]
    fn write_addresses(&self, first: usize, heads: usize, to: &mut [*const u8]) {
        let base = self.address(first, (to.len(), heads));
        for (i, to) in to.iter_mut().enumerate() {
            *to = base.wrapping_add(i * self.key_bytes());
        }
    }
}

/// Where rows of a tile lie.
pub(super) type Addresses = [*const u8; KEYS];

/// The rows some bytes further on.
#[inline(always)]
fn shifted(rows: &Addresses, bytes: usize) -> Addresses {
    let mut moved = *rows;
    for row in &mut moved {
        *row = row.wrapping_add(bytes);
    }
    moved
}

/// Keys whose rows lie at equal distances.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The elements at which the first head's row of the first key begins, of keys and of values.
    pub(super) first: [usize; 2],
    /// From that key on.
    pub(super) count: usize,
}

/// Neighbouring queries of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Which sequence.
    pub(super) sequence: usize,
    /// The first query's place among those of its sequence, or of the step.
    pub(super) first: usize,
    pub(super) count: usize,
    /// The first query's row of the result.
    pub(super) row: usize,
    pub(super) way: Way,
}

/// How lines meet keys and values. Tokens of a sequence that may be computed in one step or in several must all go the same
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Scores are products with turned keys.
    Turned,
    /// Scores are products with keys where they lie, which is better for few lines.
    Dots,
    /// Both products are of tiles of `bf16`; the machine has them, they fit, and there is no mask.
    Tiles,
}

/// Keys, values, and what a query sees of them.
pub(super) trait Context: Sync {
    fn keys(&self) -> Memory<'_>;
    /// `None` if values are the beginnings of the keys.
    fn values(&self) -> Option<Memory<'_>>;
    /// The run that begins with a key.
    fn run(&self, block: &Block, key: usize) -> Run;
    /// The keys that a query of a block may see.
    fn visible(&self, block: &Block, query: usize) -> (usize, usize);
    /// The numbers of one query: of as many heads as they fill, from one on.
    fn query(&self, block: &Block, query: usize, head: usize, to: &mut [f32]);
    /// Adds the mask, where there is one, to the scores of one query and head against keys from `start` on.
    fn mask(&self, block: &Block, line: (usize, usize), start: usize, scores: &mut [f32]);
}

/// What a thread needs beside operands and results; kept between tasks.
#[derive(Debug)]
pub(super) struct Scratch {
    /// `[dim][KEYS]`.
    keys: Vec<f32>,
    /// `[KEYS][value_padded]`, where values cannot be read where they lie.
    values: Vec<f32>,
    /// Scores, then weights, of the lines that share registers.
    pub(super) scores: Vec<f32>,
    /// The steps of the keys and values of a tile, where they are codes.
    steps: [[f32; KEYS]; 2],
    #[cfg(target_arch = "x86_64")]
    pub(super) tiles: super::amx::Tiles,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch {
            keys: vec![],
            values: vec![],
            scores: vec![],
            steps: [[1.0; KEYS]; 2],
            #[cfg(target_arch = "x86_64")]
            tiles: Default::default(),
        }
    }
}

/// Results of lines over some keys, not yet divided by the sums of their weights.
#[derive(Debug)]
pub(super) struct Partial<'a> {
    /// `[lines][value_padded]`.
    pub(super) out: &'a mut [f32],
    pub(super) running: &'a mut [Running],
}

/// Where finished results go.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) bytes: Shared<u8>,
    pub(super) dtype: DType,
    /// Query heads of a row.
    pub(super) heads: usize,
}

impl Rows {
    /// The bytes of a row's head.
    ///
    /// # Safety
    /// The row and the head must exist, be `width` wide, and belong to nobody else.
    pub(super) unsafe fn line<'r>(self, row: usize, head: usize, width: usize) -> &'r mut [u8] {
        let bytes = width * self.dtype.size().expect("results are plain");
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.at((row * self.heads + head) * bytes), bytes) }
    }
}

/// The lines of a block for some KV heads, over the keys of one stretch, or over all of them if they are finished.
pub(super) struct Attend<'a> {
    pub(super) context: &'a dyn Context,
    pub(super) block: &'a Block,
    pub(super) heads: Range<usize>,
    pub(super) scores: Scores,
    pub(super) widths: Widths,
    /// What each query of the block sees.
    pub(super) ranges: &'a [(usize, usize)],
    /// `[heads][queries][group][key]`, unless they are multiplied in tiles.
    pub(super) q: &'a [f32],
    pub(super) keys: (usize, usize),
    /// The end of the keys that the block sees, which may be read after these.
    pub(super) last: usize,
    pub(super) scratch: &'a mut Scratch,
    /// `[heads][queries][group]`.
    pub(super) part: Partial<'a>,
    /// Where lines in tiles go if they are finished; else they are put into the part.
    #[cfg(target_arch = "x86_64")]
    pub(super) rows: Option<Rows>,
    /// What the weights of such lines begin with, one per query head.
    #[cfg(target_arch = "x86_64")]
    pub(super) sinks: Option<&'a [f32]>,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let w = self.widths;
        #[cfg(target_arch = "x86_64")]
        if self.block.way == Way::Tiles {
            // SAFETY: who chose the way knows that the machine has tiles and that rows fit.
            return unsafe { self.by_tiles::<S>() };
        }
        self.part.out.fill(0.0);
        self.part.running.fill(Running::EMPTY);
        if self.block.way == Way::Dots && self.is_direct() {
            return self.by_dots::<S>();
        }
        self.scratch.keys.resize(w.key * KEYS, 0.0);
        self.scratch.values.resize(w.value_padded() * KEYS, 0.0);
        self.scratch.scores.resize(LINES * KEYS, 0.0);
        let mut place = self.place(self.keys.0 / KEYS * KEYS, self.keys);
        loop {
            let start = place.start + KEYS;
            let next = if start < self.last { Some(self.place(start, (start, self.last))) } else { None };
            // All heads of a tile come before the next keys, since their rows lie beside each other.
            for head in self.heads.clone() {
                self.attend::<S>(&place, head, next.as_ref());
            }
            match next {
                Some(next) if start < self.keys.1 => place = next,
                _ => break,
            }
        }
    }
}

/// Keys from `start` on, of all KV heads.
pub(super) struct Place {
    start: usize,
    pub(super) present: (usize, usize),
    /// Rows of the first head.
    pub(super) keys: Addresses,
    pub(super) values: Addresses,
}

/// Keys from `start` on of one KV head.
struct Tile {
    start: usize,
    head: usize,
    /// The whole vectors that hold keys.
    lanes: (usize, usize),
    /// Whether keys and values are codes.
    is_coded: bool,
}

/// Rows of values, of a type, some bytes behind their addresses.
type Values<'a> = (DType, &'a Addresses, usize);

impl<'a> Attend<'a> {
    /// Values that are the beginnings of keys are narrower than them.
    #[inline(always)]
    pub(super) fn values(&self) -> Memory<'a> {
        Memory { width: self.widths.value, ..self.context.values().unwrap_or(self.context.keys()) }
    }

    /// The tile at `start`, of which `keys` are meant. Other lanes repeat one of them, and what is computed from those is
    /// never used.
    #[inline(always)]
    pub(super) fn place(&self, start: usize, keys: (usize, usize)) -> Place {
        let present = (keys.0.max(start) - start, keys.1.min(start + KEYS) - start);
        let mut rows = [[std::ptr::null(); KEYS]; 2];
        self.write_rows(
            (start + present.0, start + present.1),
            rows.each_mut().map(|r| &mut r[present.0..present.1]),
        );
        for rows in &mut rows {
            let some = rows[present.0];
            rows[..present.0].fill(some);
            rows[present.1..].fill(some);
        }
        let [keys, values] = rows;
        Place { start, present, keys, values }
    }

    /// Writes where the first head's rows of some keys lie, and those of their values.
    #[inline(always)]
    fn write_rows(&self, keys: (usize, usize), [of_keys, of_values]: [&mut [*const u8]; 2]) {
        let memory = self.context.keys();
        let values = self.context.values().unwrap_or(memory);
        let (mut at, count) = (0, keys.1 - keys.0);
        while at < count {
            let run = self.context.run(self.block, keys.0 + at);
            let end = (at + run.count).min(count);
            memory.write_addresses(run.first[0], self.heads.end, &mut of_keys[at..end]);
            values.write_addresses(run.first[1], self.heads.end, &mut of_values[at..end]);
            at = end;
        }
    }

    /// One KV head's lines against a tile, while the rows of the next one are on their way.
    #[inline(always)]
    fn attend<S: Simd>(&mut self, place: &Place, head: usize, next: Option<&Place>) {
        let (keys, values) = (self.context.keys(), self.context.values());
        let lanes = (place.present.0 / LANES_MAX * LANES_MAX, place.present.1.next_multiple_of(LANES_MAX));
        let rows = shifted(&place.keys, head * keys.head_bytes());
        let of = |m: Memory<'_>| (head * m.head_bytes(), head * m.head_bytes() + m.row_bytes());
        let mut lane = lanes.0;
        while lane < lanes.1 {
            // SAFETY: the addresses are of whole rows, and the lanes a whole vector within the tile.
            unsafe { turn::<S>(&keys, &rows, (lane, lane + LANES_MAX), &mut self.scratch.keys) };
            if let Some(next) = next {
                fetch(&next.keys[lane..lane + LANES_MAX], of(keys));
                if let Some(values) = values {
                    fetch(&next.values[lane..lane + LANES_MAX], of(values));
                }
            }
            lane += LANES_MAX;
        }
        let is_coded = keys.dtype == DType::I8;
        let tile = Tile { start: place.start, head, lanes, is_coded };
        let stored = values.unwrap_or(keys);
        let values = self.values();
        let offset = head * values.head_bytes();
        if is_coded {
            let [of_keys, of_values] = &mut self.scratch.steps;
            // SAFETY: the addresses are of whole rows, which end with their steps.
            unsafe {
                coded::steps(&rows, keys.width, of_keys);
                coded::steps(&place.values, offset + stored.width, of_values);
            }
        }
        if !values.direct() {
            let rows = self.widen(&values, &shifted(&place.values, offset), place.present);
            return self.tile::<S>(&tile, (DType::F32, &rows, 0));
        }
        self.tile::<S>(&tile, (values.dtype, &place.values, offset));
    }

    /// Copies the present rows of values as `f32`, padded to whole vectors; gives where the copies are.
    #[inline(always)]
    fn widen(&mut self, values: &Memory<'_>, rows: &Addresses, present: (usize, usize)) -> Addresses {
        let (padded, bytes) = (self.widths.value_padded(), values.row_bytes());
        let mut copies = *rows;
        for lane in present.0..present.1 {
            let to = &mut self.scratch.values[lane * padded..(lane + 1) * padded];
            // SAFETY: the row lies whole behind its address.
            let row = unsafe { std::slice::from_raw_parts(rows[lane], bytes) };
            f32::load(values.dtype, row, (0, values.stride), &mut to[..values.width]);
            to[values.width..].fill(0.0);
            copies[lane] = to.as_ptr().cast();
        }
        copies
    }

    /// What a query sees of the tile at `start`, as lanes.
    #[inline(always)]
    fn seen(&self, query: usize, start: usize) -> (usize, usize) {
        let (lo, hi) = self.ranges[query];
        let (lo, hi) = (lo.max(self.keys.0).max(start), hi.min(self.keys.1).min(start + KEYS));
        (lo - start, hi.max(lo) - start)
    }

    /// Lines share registers with their neighbours, which changes nothing of what they compute.
    #[inline(always)]
    fn tile<S: Simd>(&mut self, tile: &Tile, values: Values<'_>) {
        // The lines of the tile's head.
        let count = self.part.running.len() / self.heads.len();
        let mut line = (tile.head - self.heads.start) * count;
        let lines = line + count;
        while line < lines {
            let mut seen = [(0, 0); LINES];
            let (mut count, most) = (0, sharing(lines - line));
            while count < most {
                let query = (line + count) / self.widths.group % self.ranges.len();
                seen[count] = self.seen(query, tile.start);
                if seen[count].0 >= seen[count].1 {
                    break;
                }
                count += 1;
            }
            count = sharing(count).min(count);
            if count > 0 {
                // SAFETY: the lines exist and see keys whose rows are there.
                unsafe { self.lines::<S>((line, &seen[..count]), tile, values) };
            }
            line += count.max(1);
        }
    }

    /// # Safety
    /// All lines must exist, and `values` have the rows that they see.
    #[inline(always)]
    unsafe fn lines<S: Simd>(
        &mut self,
        (line, seen): (usize, &[(usize, usize)]),
        tile: &Tile,
        values: Values<'_>,
    ) {
        let (w, count) = (self.widths, seen.len());
        let left = Left { base: self.q[line * w.key..(line + count) * w.key].as_ptr(), stride: w.key };
        let scores = &mut self.scratch.scores[..count * KEYS];
        let sums = Sums { base: scores.as_mut_ptr(), stride: KEYS };
        let turned = Even { base: self.scratch.keys.as_ptr(), stride: KEYS };
        let extent = Extent { fresh: true, rows: (0, w.key), columns: tile.lanes };
        // SAFETY: queries are as wide as keys, whose turned tile has the lanes.
        unsafe { add_product::<S>(count, left, turned, sums, extent) };
        let mut common = (0, KEYS);
        for (t, &seen) in seen.iter().enumerate() {
            self.weights::<S>(line + t, t, seen, tile);
            common = (common.0.max(seen.0), common.1.min(seen.1));
        }
        if common.0 >= common.1 {
            common = (KEYS, KEYS);
        }
        // What only some of the lines see is added for those alone, before and after what all see: a value that a
        // line does not see might not be finite, and no weight makes it nothing then.
        // SAFETY: weights and results have the lines, and values the rows that are seen.
        unsafe {
            for (t, &(lo, hi)) in seen.iter().enumerate() {
                self.add_alone::<S>(line + t, t, values, (lo, hi.min(common.0)));
            }
            if common.0 < common.1 {
                let (left, sums) = (self.weights_of(0), self.results_of(line));
                let extent = Extent { fresh: false, rows: common, columns: (0, w.value_padded()) };
                add_stored::<S>(count, left, values, sums, extent);
            }
            for (t, &(_, hi)) in seen.iter().enumerate() {
                self.add_alone::<S>(line + t, t, values, (common.1, hi));
            }
        }
    }

    /// Adds weighted rows of values to one line.
    ///
    /// # Safety
    /// As for [`Attend::lines`].
    #[inline(always)]
    unsafe fn add_alone<S: Simd>(&mut self, line: usize, t: usize, values: Values<'_>, rows: (usize, usize)) {
        if rows.0 < rows.1 {
            let extent = Extent { fresh: false, rows, columns: (0, self.widths.value_padded()) };
            // SAFETY: as the caller promises; results are whole vectors.
            unsafe { add_stored::<S>(1, self.weights_of(t), values, self.results_of(line), extent) };
        }
    }

    #[inline(always)]
    fn weights_of(&self, t: usize) -> Left {
        Left { base: self.scratch.scores[t * KEYS..].as_ptr(), stride: KEYS }
    }

    #[inline(always)]
    fn results_of(&mut self, line: usize) -> Sums {
        let width = self.widths.value_padded();
        Sums { base: self.part.out[line * width..].as_mut_ptr(), stride: width }
    }

    /// Turns the scores of one line into weights and fades its result accordingly.
    #[inline(always)]
    fn weights<S: Simd>(&mut self, line: usize, t: usize, (lo, hi): (usize, usize), tile: &Tile) {
        let (w, lanes) = (self.widths, tile.lanes);
        let scores = &mut self.scratch.scores[t * KEYS..(t + 1) * KEYS];
        if tile.is_coded {
            coded::scale(&mut scores[lanes.0..lanes.1], &self.scratch.steps[0][lanes.0..lanes.1]);
        }
        if let Some(cap) = self.scores.softcap {
            for s in scores.iter_mut() {
                *s = math::tanh(*s / cap) * cap;
            }
        }
        if self.scores.masked {
            let at = (line / w.group % self.ranges.len(), tile.head * w.group + line % w.group);
            self.context.mask(self.block, at, tile.start + lo, &mut scores[lo..hi]);
        }
        if (lo, hi) != lanes {
            scores[..lo].fill(f32::NEG_INFINITY);
            scores[hi..].fill(f32::NEG_INFINITY);
        }
        let fade = soften::<S>(&mut scores[lanes.0..lanes.1], &mut self.part.running[line]);
        if tile.is_coded {
            coded::scale(&mut scores[lanes.0..lanes.1], &self.scratch.steps[1][lanes.0..lanes.1]);
        }
        if fade != 1.0 {
            let width = w.value_padded();
            for x in &mut self.part.out[line * width..(line + 1) * width] {
                *x *= fade;
            }
        }
    }
}
