//! Attention over the paged cache: writes the new keys and values to their slots, then attends.

use mlxcel_ir::PagedSpec;

use super::core::{Attend, Context, KEYS, Memory, Widths};
use super::{QUERIES, Scores};
use crate::context::Context as Machine;
use crate::lanes::{Lane, indices};
use crate::view::{Out, Shared, View};

/// The parts of the batch, read once.
struct Batch {
    positions: Vec<i64>,
    seq_ids: Vec<i64>,
    table: Vec<i64>,
    pages: usize,
}

/// Operands as the op lists them; `outs` are the result and the caches, which hold their old contents.
pub(crate) fn paged(machine: &Machine, spec: &PagedSpec, x: &[View<'_>], outs: &mut [Out<'_>]) {
    let (q, caches) = (x[0], 1 + spec.value_dim.is_none() as usize);
    let rest = &x[1 + 2 * caches..];
    let slots = indices(&rest[2]);
    for (new, cache) in x[1..].iter().zip(&mut outs[1..]) {
        write(new, &slots, cache);
    }
    let (out, written) = outs.split_first_mut().expect("the op has results");
    if out.elements() == 0 {
        return;
    }
    let batch = Batch {
        positions: indices(&rest[0]),
        seq_ids: indices(&rest[1]),
        table: indices(&rest[3]),
        pages: rest[3].shape()[1],
    };
    let caches: Vec<View<'_>> = written.iter().map(|c| c.view()).collect();
    let job = Job { spec, q, batch: &batch, caches: &caches, sinks: rest.get(4).map(|s| s.numbers()) };
    job.run(machine, out);
}

/// Rows of the cache at `slots` become the new rows; a slot out of range drops its row.
fn write(new: &View<'_>, slots: &[i64], cache: &mut Out<'_>) {
    let (heads, width) = (new.shape()[1], new.shape()[2]);
    let (count, dtype, size) = (cache.shape[0] * cache.shape[1], cache.dtype, cache.size());
    let strides = new.layout.strides;
    let mut line = vec![0.0; width];
    let bytes = cache.bytes();
    for (t, &slot) in slots.iter().enumerate().filter(|(_, s)| (0..count as i64).contains(*s)) {
        for h in 0..heads {
            f32::load(new.dtype, new.bytes(), (t * strides[0] + h * strides[1], strides[2]), &mut line);
            let at = (slot as usize * heads + h) * width * size;
            f32::store(dtype, &line, &mut bytes[at..at + width * size]);
        }
    }
}

struct Job<'a> {
    spec: &'a PagedSpec,
    q: View<'a>,
    batch: &'a Batch,
    caches: &'a [View<'a>],
    sinks: Option<Vec<f32>>,
}

impl Job<'_> {
    fn run(&self, machine: &Machine, out: &mut Out<'_>) {
        let (heads, kv_heads) = (self.q.shape()[1], self.caches[0].shape()[2]);
        let value = out.shape[2];
        let widths = Widths { group: heads / kv_heads, key: self.q.shape()[2], value };
        let blocks = self.query_blocks();
        let (dtype, size) = (out.dtype, out.size());
        let to = Shared(out.bytes().as_mut_ptr());
        machine.threads.each(blocks.len() * kv_heads, |task| {
            let (block, kv_head) = (&blocks[task / kv_heads], task % kv_heads);
            let q = self.queries(block.clone(), kv_head * widths.group, &widths);
            let mut result = vec![0.0; block.len() * widths.group * widths.value_padded()];
            let context = Pages { job: self, first: block.start, kv_head };
            let first = kv_head * widths.group;
            machine.level.dispatch(Attend {
                context: &context,
                scores: Scores {
                    scale: self.spec.scale as f32,
                    softcap: self.spec.softcap.map(|c| c as f32),
                },
                widths,
                q: &q,
                sinks: self.sinks.as_ref().map(|s| &s[first..first + widths.group]),
                out: &mut result,
            });
            for (i, line) in result.chunks(widths.value_padded()).enumerate() {
                let (token, head) = (block.start + i / widths.group, first + i % widths.group);
                let at = (token * heads + head) * value * size;
                store(to, at, &line[..value], dtype);
            }
        });
    }

    /// Runs of neighbouring tokens of one sequence, of at most [`QUERIES`].
    fn query_blocks(&self) -> Vec<std::ops::Range<usize>> {
        let ids = &self.batch.seq_ids;
        let mut blocks = vec![];
        let mut start = 0;
        for t in 1..=ids.len() {
            if t == ids.len() || ids[t] != ids[start] || t - start == QUERIES {
                blocks.push(start..t);
                start = t;
            }
        }
        blocks
    }

    fn queries(&self, tokens: std::ops::Range<usize>, first_head: usize, w: &Widths) -> Vec<f32> {
        let strides = self.q.layout.strides;
        let mut q = vec![0.0; tokens.len() * w.group * w.key_padded()];
        for (i, line) in q.chunks_mut(w.key_padded()).enumerate() {
            let (t, h) = (tokens.start + i / w.group, first_head + i % w.group);
            let at = (t * strides[0] + h * strides[1], strides[2]);
            f32::load(self.q.dtype, self.q.bytes(), at, &mut line[..w.key]);
        }
        q
    }
}

#[allow(unsafe_code)]
fn store(to: Shared<u8>, at: usize, line: &[f32], dtype: mlxcel_ir::DType) {
    let size = dtype.size().expect("results are plain");
    // SAFETY: every (token, head) belongs to one task, and its line lies within the result.
    f32::store(dtype, line, unsafe { std::slice::from_raw_parts_mut(to.at(at), line.len() * size) });
}

/// The cache as the tokens of one sequence see it.
struct Pages<'a> {
    job: &'a Job<'a>,
    first: usize,
    kv_head: usize,
}

impl Pages<'_> {
    fn memory(&self, cache: usize) -> Memory<'_> {
        let c = &self.job.caches[cache];
        Memory { bytes: c.bytes(), dtype: c.dtype, width: c.shape()[3], stride: 1 }
    }
}

impl Context for Pages<'_> {
    fn keys(&self) -> Memory<'_> {
        self.memory(0)
    }

    fn values(&self) -> Option<Memory<'_>> {
        (self.job.caches.len() > 1).then(|| self.memory(1))
    }

    #[inline(always)]
    fn offsets(&self, start: usize, count: usize) -> [[usize; KEYS]; 2] {
        let [blocks, block, heads] = [0, 1, 2].map(|i: usize| self.job.caches[0].shape()[i]);
        let batch = self.job.batch;
        let table = &batch.table[batch.seq_ids[self.first] as usize * batch.pages..][..batch.pages];
        let mut offsets = [[0; KEYS]; 2];
        for i in 0..count {
            let key = start + i;
            let page = table[key / block].clamp(0, blocks as i64 - 1) as usize;
            let row = (page * block + key % block) * heads + self.kv_head;
            for (o, cache) in offsets.iter_mut().zip(self.job.caches) {
                o[i] = row * cache.shape()[3];
            }
        }
        offsets
    }

    /// Nothing for padding, whose sequence does not exist.
    fn visible(&self, query: usize) -> (usize, usize) {
        let batch = self.job.batch;
        let block = self.job.caches[0].shape()[1];
        let sequences = batch.table.len() / batch.pages.max(1);
        let (sequence, position) = (batch.seq_ids[self.first + query], batch.positions[self.first + query]);
        if !(0..sequences as i64).contains(&sequence) || position < 0 {
            return (0, 0);
        }
        let end = (position as usize + 1).min(batch.pages * block);
        let begin = self.job.spec.window.map_or(0, |w| (position as usize + 1).saturating_sub(w));
        (begin, end)
    }

    #[inline(always)]
    fn mask(&self, _: usize, _: usize, _: usize, _: &mut [f32]) {}
}
