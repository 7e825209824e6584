//! Attention over keys and values that are operands; queries sit at the end of the keys.

use mlxcel_ir::{AttentionSpec, DType};

use super::core::{Attend, Context, KEYS, Memory, Widths};
use super::{QUERIES, Scores};
use crate::context::Context as Machine;
use crate::lanes::Lane;
use crate::view::{Out, Shared, View};

/// `q [b, t, hq, d]`, `k [b, l, hkv, d]`, `v [b, l, hkv, dv]`, and a mask and sinks where the spec says so.
pub(crate) fn dense(machine: &Machine, spec: &AttentionSpec, x: &[View<'_>], out: &mut Out<'_>) {
    if out.elements() == 0 {
        return;
    }
    let mut rest = x[3..].iter();
    let mask = if spec.mask { rest.next() } else { None };
    let [batch, queries, heads, value] = [0, 1, 2, 3].map(|i: usize| out.shape[i]);
    let full = [batch, heads, queries, x[1].shape()[1]];
    let mask = mask.map(|m| m.broadcast(&full));
    let kv_heads = x[1].shape()[2];
    let widths = Widths { group: heads / kv_heads, key: x[0].shape()[3], value };
    let job = Job { spec, q: x[0], k: x[1], v: x[2], mask, widths };
    let sinks: Option<Vec<f32>> = rest.next().map(|s| s.numbers());
    let blocks = queries.div_ceil(QUERIES);
    let (dtype, size) = (out.dtype, out.size());
    let to = Shared(out.bytes().as_mut_ptr());
    machine.threads.each(batch * blocks * kv_heads, |task| {
        let (b, block, kv_head) = (task / kv_heads / blocks, task / kv_heads % blocks, task % kv_heads);
        let range = block * QUERIES..((block + 1) * QUERIES).min(queries);
        let part =
            Part { job: &job, batch: b, first: range.start, first_head: kv_head * widths.group, kv_head };
        let q = part.queries(range.len());
        let mut result = vec![0.0; range.len() * widths.group * widths.value_padded()];
        machine.level.dispatch(Attend {
            context: &part,
            scores: Scores { scale: spec.scale as f32, softcap: spec.softcap.map(|c| c as f32) },
            widths,
            q: &q,
            sinks: sinks.as_ref().map(|s| &s[part.first_head..part.first_head + widths.group]),
            out: &mut result,
        });
        for (i, line) in result.chunks(widths.value_padded()).enumerate() {
            let (query, head) = (range.start + i / widths.group, part.first_head + i % widths.group);
            let at = ((b * queries + query) * heads + head) * value * size;
            store(to, at, &line[..value], dtype);
        }
    });
}

#[allow(unsafe_code)]
fn store(to: Shared<u8>, at: usize, line: &[f32], dtype: DType) {
    let size = dtype.size().expect("results are plain");
    // SAFETY: every (batch, query, head) belongs to one task, and its line lies within the result.
    f32::store(dtype, line, unsafe { std::slice::from_raw_parts_mut(to.at(at), line.len() * size) });
}

struct Job<'a> {
    spec: &'a AttentionSpec,
    q: View<'a>,
    k: View<'a>,
    v: View<'a>,
    /// Broadcast to `[b, hq, t, l]`.
    mask: Option<View<'a>>,
    widths: Widths,
}

/// The keys of one batch entry and KV head.
struct Part<'a> {
    job: &'a Job<'a>,
    batch: usize,
    first: usize,
    first_head: usize,
    kv_head: usize,
}

impl Part<'_> {
    fn queries(&self, count: usize) -> Vec<f32> {
        let (w, s) = (&self.job.widths, self.job.q.layout.strides);
        let mut q = vec![0.0; count * w.group * w.key_padded()];
        for (i, line) in q.chunks_mut(w.key_padded()).enumerate() {
            let (t, h) = (self.first + i / w.group, self.first_head + i % w.group);
            let at = self.batch * s[0] + t * s[1] + h * s[2];
            f32::load(self.job.q.dtype, self.job.q.bytes(), (at, s[3]), &mut line[..w.key]);
        }
        q
    }
}

fn memory<'a>(v: &View<'a>) -> Memory<'a> {
    Memory { bytes: v.bytes(), dtype: v.dtype, width: v.shape()[3], stride: v.layout.strides[3] }
}

impl Context for Part<'_> {
    fn keys(&self) -> Memory<'_> {
        memory(&self.job.k)
    }

    fn values(&self) -> Option<Memory<'_>> {
        Some(memory(&self.job.v))
    }

    fn offsets(&self, start: usize, count: usize) -> [[usize; KEYS]; 2] {
        let at = |v: &View<'_>, i: usize| {
            let s = v.layout.strides;
            self.batch * s[0] + (start + i.min(count - 1)) * s[1] + self.kv_head * s[2]
        };
        [std::array::from_fn(|i| at(&self.job.k, i)), std::array::from_fn(|i| at(&self.job.v, i))]
    }

    fn visible(&self, query: usize) -> (usize, usize) {
        let (keys, queries) = (self.job.k.shape()[1] as i64, self.job.q.shape()[1] as i64);
        // The query's own place among the keys; negative if there are fewer keys than queries.
        let at = (self.first + query) as i64 + keys - queries;
        let end = if self.job.spec.causal { (at + 1).clamp(0, keys) } else { keys };
        let begin = self.job.spec.window.map_or(0, |w| (at + 1 - w as i64).clamp(0, keys));
        (begin as usize, end as usize)
    }

    fn mask(&self, query: usize, head: usize, start: usize, scores: &mut [f32]) {
        let Some(m) = &self.job.mask else { return };
        let s = m.layout.strides;
        let at =
            self.batch * s[0] + (self.first_head + head) * s[1] + (self.first + query) * s[2] + start * s[3];
        let mut line = [0.0; KEYS];
        f32::load(m.dtype, m.bytes(), (at, s[3]), &mut line[..scores.len()]);
        for (score, m_value) in scores.iter_mut().zip(line) {
            *score = match m.dtype {
                DType::Bool if m_value == 0.0 => f32::NEG_INFINITY,
                DType::Bool => *score,
                _ => *score + m_value,
            };
        }
    }
}
