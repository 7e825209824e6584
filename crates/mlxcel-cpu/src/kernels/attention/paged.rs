//! Attention over the paged cache: writes the new keys and values to their slots, then attends.
#![allow(unsafe_code)]

use std::ops::Range;

use half::f16;
use mlxcel_ir::{CacheRow, DType, PagedSpec};

use super::Scores;
use super::coded;
use super::core::{Block, Context, Memory, Run, Way, Widths};
use super::dots::CHUNK;
use super::drive::{Job, queries_per_block};
use crate::context::{Context as Machine, Products};
use crate::kernels::rope::Table;
use crate::lanes::{Lane, indices};
use crate::roles::Roles;
use crate::simd::{Kernel, Simd, SimdLevel};
use crate::view::{Out, Shared, View};

/// New tokens that a thread writes together.
const TOKENS_PER_TASK: usize = 32;

/// The tokens of a step and where their sequences lie, which all layers share.
#[derive(Debug)]
pub(crate) struct Sequences {
    positions: Vec<i64>,
    ids: Vec<i64>,
    slots: Vec<i64>,
    /// Whether no two tokens name one slot.
    are_apart: bool,
    /// The blocks of every sequence, `pages` of each.
    table: Vec<i64>,
    pages: usize,
}

impl Sequences {
    /// Where they stand among the operands of the op.
    pub(crate) fn places(spec: &PagedSpec) -> Range<usize> {
        let first = if spec.value_dim.is_some() { 3 } else { 5 };
        first..first + 4
    }

    pub(crate) fn new(spec: &PagedSpec, x: &[View<'_>]) -> Self {
        let [positions, ids, slots, table] = &x[Self::places(spec)] else { unreachable!("there are four") };
        let pages = table.shape()[1];
        let [positions, ids, slots, table] = [positions, ids, slots, table].map(indices);
        let are_apart = are_apart(&slots);
        Sequences { positions, ids, slots, are_apart, table, pages }
    }
}

/// What is attended to in a step.
pub(crate) struct Step<'a> {
    /// Operands as the op lists them.
    pub(crate) x: &'a [View<'a>],
    /// By what queries and keys are rotated first, if they are not yet.
    pub(crate) ropes: [Option<&'a Table>; 2],
    pub(crate) sequences: &'a Sequences,
    pub(crate) roles: Option<&'a Roles>,
}

/// Writes the new keys and values, then attends; `outs` are the result and the caches, which hold their old contents.
pub(crate) fn paged(machine: &Machine, spec: &PagedSpec, step: &Step<'_>, outs: &mut [Out<'_>]) {
    let &Step { x, ropes, sequences, roles } = step;
    let q = x[0];
    for ((new, cache), rope) in x[1..].iter().zip(&mut outs[1..]).zip([ropes[1], None]) {
        write(machine, &New { rows: *new, rope }, (&sequences.slots, sequences.are_apart), cache);
    }
    let (out, written) = outs.split_first_mut().expect("the op has results");
    if out.elements() == 0 {
        return;
    }
    let caches: Vec<View<'_>> = written.iter().map(|c| c.view()).collect();
    let (keys, values) = (memory(&caches[0]), caches.get(1).map(memory));
    let block_tokens = caches[0].shape()[1];
    let mut pages = Pages {
        window: spec.window,
        roles,
        is_fast: machine.products == Products::Fast && block_tokens.is_multiple_of(CHUNK),
        has_tiles: false,
        level: machine.level,
        q,
        rope: ropes[0],
        keys,
        values,
        cache_blocks: caches[0].shape()[0],
        block_tokens,
        sequences,
    };
    let kv_heads = caches[0].shape()[2];
    let widths = Widths { group: q.shape()[1] / kv_heads, key: q.shape()[2], value: out.shape[2] };
    pages.has_tiles = pages.is_fast && machine.level.has_tiles() && pages.fits_tiles(widths.value);
    let sinks: Option<Vec<f32>> = x.get(Sequences::places(spec).end).map(|s| s.numbers());
    let job = Job {
        context: &pages,
        scores: Scores { scale: spec.scale as f32, softcap: spec.softcap.map(|c| c as f32), masked: false },
        widths,
        kv_heads,
        sinks: sinks.as_deref(),
    };
    let step = queries_per_block(machine, &widths, kv_heads, (q.shape()[0], pages.has_tiles));
    job.run(machine, &pages.blocks(step), out);
}

/// Whether no two tokens name one slot; those below 0 are none.
fn are_apart(slots: &[i64]) -> bool {
    let mut named: Vec<i64> = slots.iter().copied().filter(|slot| *slot >= 0).collect();
    named.sort_unstable();
    named.is_sorted_by(|a, b| a < b)
}

/// New rows for the cache, `[tokens, heads, width]`, which may have to be rotated first.
struct New<'a> {
    rows: View<'a>,
    rope: Option<&'a Table>,
}

impl New<'_> {
    /// The numbers of all heads of a token.
    fn token<'s>(&'s self, level: SimdLevel, t: usize, copy: &'s mut Vec<f32>) -> &'s [f32] {
        let (heads, width) = (self.rows.shape()[1], self.rows.shape()[2]);
        let strides = self.rows.layout.strides;
        let at = t * strides[0];
        if let Some(table) = self.rope {
            copy.resize(heads * width, 0.0);
            table.rotate(level, &self.rows, (t, 0), copy);
        } else if self.rows.dtype == DType::F32 && strides[2] == 1 && strides[1] == width {
            return &self.rows.elements_of::<f32>()[at..at + heads * width];
        } else {
            copy.resize(heads * width, 0.0);
            for (h, line) in copy.chunks_exact_mut(width.max(1)).enumerate() {
                f32::load(self.rows.dtype, self.rows.bytes(), (at + h * strides[1], strides[2]), line);
            }
        }
        copy
    }
}

/// Rows of the cache at `slots` become the new rows; a slot out of range drops its row. Of two tokens that name one slot the last
/// one stays; threads share them where all slots are apart.
fn write(machine: &Machine, new: &New<'_>, (slots, are_apart): (&[i64], bool), cache: &mut Out<'_>) {
    let (mut heads, mut width, mut stored) = (new.rows.shape()[1], new.rows.shape()[2], cache.shape[3]);
    let (count, dtype, size) = (cache.shape[0] * cache.shape[1], cache.dtype, cache.size());
    let to = Shared(cache.bytes().as_mut_ptr());
    if stored == width {
        // All heads of a token are one row.
        (heads, width, stored) = (1, heads * width, heads * stored);
    }
    let write_token = |t: usize, copy: &mut Vec<f32>| {
        let slot = slots[t];
        if !(0..count as i64).contains(&slot) {
            return;
        }
        for (h, line) in new.token(machine.level, t, copy).chunks_exact(width.max(1)).enumerate() {
            let at = (slot as usize * heads + h) * stored * size;
            // SAFETY: the slot exists, and its row is written by this task alone.
            let row = unsafe { std::slice::from_raw_parts_mut(to.at(at), stored * size) };
            narrow(machine.level, dtype, line, row);
        }
    };
    let tasks = if are_apart { slots.len().div_ceil(TOKENS_PER_TASK).max(1) } else { 1 };
    let each = slots.len().div_ceil(tasks);
    machine.threads.each(tasks, |task| {
        let mut copy = vec![];
        (task * each..slots.len().min((task + 1) * each)).for_each(|t| write_token(t, &mut copy));
    });
}

/// Stores numbers of a row.
fn narrow(level: SimdLevel, dtype: DType, line: &[f32], row: &mut [u8]) {
    match dtype {
        DType::F16 => level.dispatch(Halves { line, row }),
        DType::I8 => coded::encode(line, row),
        _ => f32::store(dtype, line, row),
    }
}

/// Numbers that become halves, a vector at a time.
struct Halves<'a> {
    line: &'a [f32],
    row: &'a mut [u8],
}

impl Kernel for Halves<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Halves { line, row } = self;
        assert_eq!(row.len(), 2 * line.len(), "a half for each number");
        let whole = line.len() / S::LANES * S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: a vector of numbers and of halves lies there.
            unsafe { S::to_f16(row.as_mut_ptr().add(2 * at), S::load(line.as_ptr().add(at))) };
        }
        for (to, x) in row.as_chunks_mut::<2>().0[whole..].iter_mut().zip(&line[whole..]) {
            *to = f16::from_f32(*x).to_le_bytes();
        }
    }
}

/// The cache as the tokens of a step see it.
struct Pages<'a> {
    window: Option<usize>,
    roles: Option<&'a Roles>,
    /// Whether tokens that no known ones follow are scored by dots,
    is_fast: bool,
    /// and the others multiplied in tiles.
    has_tiles: bool,
    level: SimdLevel,
    q: View<'a>,
    rope: Option<&'a Table>,
    keys: Memory<'a>,
    /// `None` if values are the beginnings of the keys.
    values: Option<Memory<'a>>,
    /// Blocks of the cache, and tokens of each.
    cache_blocks: usize,
    block_tokens: usize,
    sequences: &'a Sequences,
}

impl Pages<'_> {
    /// Runs of neighbouring tokens of one sequence and one role, of at most `step`. Padding, whose sequence does not
    /// exist, sees nothing.
    fn blocks(&self, step: usize) -> Vec<Block> {
        let ids = &self.sequences.ids;
        let is_end = |t: usize| self.roles.is_none_or(|r| r.is_end(t));
        let way = |t: usize| match (self.is_fast, is_end(t)) {
            (true, true) => Way::Dots,
            (true, false) if self.has_tiles => Way::Tiles,
            _ => Way::Turned,
        };
        let mut blocks = vec![];
        let mut start = 0;
        for t in 1..=ids.len() {
            let ends = t == ids.len() || ids[t] != ids[start] || way(t) != way(start);
            if ends || t - start == step {
                let sequence = usize::try_from(ids[start]).unwrap_or(usize::MAX);
                let way = way(start);
                blocks.push(Block { sequence, first: start, count: t - start, row: start, way });
                start = t;
            }
        }
        blocks
    }

    #[cfg(target_arch = "x86_64")]
    fn fits_tiles(&self, value: usize) -> bool {
        super::amx::fits(&self.keys, &Memory { width: value, ..self.values.unwrap_or(self.keys) })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn fits_tiles(&self, _: usize) -> bool {
        false
    }
}

/// How a cache lies.
fn memory<'a>(cache: &View<'a>) -> Memory<'a> {
    let stored = cache.shape()[3];
    let width = if cache.dtype == DType::I8 { stored - CacheRow::EXTRA } else { stored };
    let key = cache.shape()[2] * stored;
    Memory { bytes: cache.bytes(), dtype: cache.dtype, width, stride: 1, head: stored, key }
}

impl Context for Pages<'_> {
    fn keys(&self) -> Memory<'_> {
        self.keys
    }

    fn values(&self) -> Option<Memory<'_>> {
        self.values
    }

    fn run(&self, of: &Block, key: usize) -> Run {
        let Sequences { table, pages, .. } = self.sequences;
        let table = &table[of.sequence * pages..][..*pages];
        let page = table[key / self.block_tokens].clamp(0, self.cache_blocks as i64 - 1) as usize;
        let token = page * self.block_tokens + key % self.block_tokens;
        let first = [self.keys, self.values.unwrap_or(self.keys)].map(|m| token * m.key);
        Run { first, count: self.block_tokens - key % self.block_tokens }
    }

    fn visible(&self, block: &Block, query: usize) -> (usize, usize) {
        let Sequences { positions, table, pages, .. } = self.sequences;
        let position = positions[block.first + query];
        if block.sequence >= table.len() / (*pages).max(1) || position < 0 {
            return (0, 0);
        }
        let end = (position as usize + 1).min(pages * self.block_tokens);
        let begin = self.window.map_or(0, |w| (position as usize + 1).saturating_sub(w));
        (begin, end)
    }

    fn query(&self, block: &Block, query: usize, head: usize, to: &mut [f32]) {
        if let Some(table) = self.rope {
            return table.rotate(self.level, &self.q, (block.first + query, head), to);
        }
        let s = self.q.layout.strides;
        for (h, to) in to.chunks_exact_mut(self.q.shape()[2].max(1)).enumerate() {
            let at = (block.first + query) * s[0] + (head + h) * s[1];
            f32::load(self.q.dtype, self.q.bytes(), (at, s[2]), to);
        }
    }

    fn mask(&self, _: &Block, _: (usize, usize), _: usize, _: &mut [f32]) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Dims;
    use crate::memory::{Pool, Slabs};
    use crate::threads::Threads;

    #[test]
    fn slots_are_apart_in_any_order() {
        assert!(are_apart(&[]) && are_apart(&[7, -1, 3, -1, 0]));
        assert!(!are_apart(&[7, 3, 0, 7]));
    }

    #[test]
    fn of_two_tokens_that_name_one_slot_the_last_one_stays() {
        const TOKENS: usize = 8 * TOKENS_PER_TASK;
        let machine = Machine {
            level: SimdLevel::best(),
            threads: Threads::new(Some(2)).unwrap(),
            pool: Pool::default(),
            slabs: Slabs::new(0),
            products: Products::default(),
        };
        let numbers: Vec<u8> = (0..TOKENS * 6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let new = View::of_bytes(&numbers, DType::F32, &[TOKENS, 2, 3]).unwrap();
        for round in 0..40 {
            let dtype = [DType::F32, DType::F16][round % 2];
            let names = [TOKENS_PER_TASK, TOKENS][round / 2 % 2];
            let slots: Vec<i64> = (0..TOKENS).map(|t| (t % names) as i64).collect();
            assert_eq!(are_apart(&slots), names == TOKENS);
            let mut bytes = vec![0; TOKENS * 6 * dtype.size().unwrap()];
            // SAFETY: the cache has that many elements, and nobody else uses them.
            let mut cache =
                unsafe { Out::new(bytes.as_mut_ptr(), dtype, Dims::new(&[TOKENS / 16, 16, 2, 3])) };
            write(&machine, &New { rows: new, rope: None }, (&slots, are_apart(&slots)), &mut cache);
            let found = cache.view().numbers::<f32>();
            let (written, rest) = found.split_at(names * 6);
            let first = (TOKENS - names) * 6;
            assert!(written.iter().enumerate().all(|(i, &x)| x == (first + i) as f32), "{written:?}");
            assert!(rest.iter().all(|&x| x == 0.0));
        }
    }
}
