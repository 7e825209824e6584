//! Attention over the paged cache: writes the new keys and values to their slots, then attends.
#![allow(unsafe_code)]

use half::f16;
use half::slice::HalfFloatSliceExt;
use mlxcel_ir::{CacheRow, DType, PagedSpec};

use super::Scores;
use super::coded;
use super::core::{Block, Context, Memory, Run, Way, Widths};
use super::dots::CHUNK;
use super::drive::{Job, queries_per_block};
use crate::context::{Context as Machine, Products};
use crate::lanes::{Lane, indices};
use crate::roles::Roles;
use crate::view::{Out, Shared, View};

/// New tokens from which on threads share the writing.
const TOKENS_PER_THREAD: usize = 16;

/// Operands as the op lists them; `outs` are the result and the caches, which hold their old contents.
pub(crate) fn paged(
    machine: &Machine,
    spec: &PagedSpec,
    (x, roles): (&[View<'_>], Option<&Roles>),
    outs: &mut [Out<'_>],
) {
    let (q, caches) = (x[0], 1 + spec.value_dim.is_none() as usize);
    let rest = &x[1 + 2 * caches..];
    let slots = indices(&rest[2]);
    for (new, cache) in x[1..].iter().zip(&mut outs[1..]) {
        write(machine, new, &slots, cache);
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
        q,
        keys,
        values,
        cache_blocks: caches[0].shape()[0],
        block_tokens,
        positions: indices(&rest[0]),
        seq_ids: indices(&rest[1]),
        table: indices(&rest[3]),
        pages: rest[3].shape()[1],
    };
    let kv_heads = caches[0].shape()[2];
    let widths = Widths { group: q.shape()[1] / kv_heads, key: q.shape()[2], value: out.shape[2] };
    pages.has_tiles = pages.is_fast && machine.level.has_tiles() && pages.fits_tiles(widths.value);
    let sinks: Option<Vec<f32>> = rest.get(4).map(|s| s.numbers());
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

/// Rows of the cache at `slots` become the new rows; a slot out of range drops its row. Threads share the heads, since
/// two tokens might name one slot.
fn write(machine: &Machine, new: &View<'_>, slots: &[i64], cache: &mut Out<'_>) {
    let (heads, width, stored) = (new.shape()[1], new.shape()[2], cache.shape[3]);
    let (count, dtype, size) = (cache.shape[0] * cache.shape[1], cache.dtype, cache.size());
    let strides = new.layout.strides;
    let to = Shared(cache.bytes().as_mut_ptr());
    let is_plain = new.dtype == DType::F32 && strides[2] == 1;
    let write_head = |h: usize| {
        let mut copy = vec![0.0; if is_plain { 0 } else { width }];
        for (t, &slot) in slots.iter().enumerate().filter(|(_, s)| (0..count as i64).contains(*s)) {
            let at = t * strides[0] + h * strides[1];
            let line = if is_plain {
                &new.elements_of::<f32>()[at..at + width]
            } else {
                f32::load(new.dtype, new.bytes(), (at, strides[2]), &mut copy);
                &copy
            };
            let at = (slot as usize * heads + h) * stored * size;
            // SAFETY: the slot exists, and its row of this head is written by this task alone.
            let row = unsafe { std::slice::from_raw_parts_mut(to.at(at), stored * size) };
            narrow(dtype, line, row);
        }
    };
    if slots.len() < TOKENS_PER_THREAD {
        (0..heads).for_each(write_head);
    } else {
        machine.threads.each(heads, write_head);
    }
}

/// Stores numbers of a row, halves many at a time.
fn narrow(dtype: DType, line: &[f32], row: &mut [u8]) {
    match dtype {
        DType::F16 => {}
        DType::I8 => return coded::encode(line, row),
        _ => return f32::store(dtype, line, row),
    }
    let mut halves = [f16::ZERO; 64];
    for (part, to) in line.chunks(halves.len()).zip(row.chunks_mut(2 * halves.len())) {
        let halves = &mut halves[..part.len()];
        halves.convert_from_f32_slice(part);
        for (to, half) in to.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
            *to = half.to_le_bytes();
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
    q: View<'a>,
    keys: Memory<'a>,
    /// `None` if values are the beginnings of the keys.
    values: Option<Memory<'a>>,
    /// Blocks of the cache, and tokens of each.
    cache_blocks: usize,
    block_tokens: usize,
    positions: Vec<i64>,
    seq_ids: Vec<i64>,
    table: Vec<i64>,
    pages: usize,
}

impl Pages<'_> {
    /// Runs of neighbouring tokens of one sequence and one role, of at most `step`. Padding, whose sequence does not
    /// exist, sees nothing.
    fn blocks(&self, step: usize) -> Vec<Block> {
        let ids = &self.seq_ids;
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
        let table = &self.table[of.sequence * self.pages..][..self.pages];
        let page = table[key / self.block_tokens].clamp(0, self.cache_blocks as i64 - 1) as usize;
        let token = page * self.block_tokens + key % self.block_tokens;
        let first = [self.keys, self.values.unwrap_or(self.keys)].map(|m| token * m.key);
        Run { first, count: self.block_tokens - key % self.block_tokens }
    }

    fn visible(&self, block: &Block, query: usize) -> (usize, usize) {
        let sequences = self.table.len() / self.pages.max(1);
        let position = self.positions[block.first + query];
        if block.sequence >= sequences || position < 0 {
            return (0, 0);
        }
        let end = (position as usize + 1).min(self.pages * self.block_tokens);
        let begin = self.window.map_or(0, |w| (position as usize + 1).saturating_sub(w));
        (begin, end)
    }

    fn query(&self, block: &Block, query: usize, head: usize, to: &mut [f32]) {
        let s = self.q.layout.strides;
        let at = (block.first + query) * s[0] + head * s[1];
        f32::load(self.q.dtype, self.q.bytes(), (at, s[2]), to);
    }

    fn mask(&self, _: &Block, _: (usize, usize), _: usize, _: &mut [f32]) {}
}
