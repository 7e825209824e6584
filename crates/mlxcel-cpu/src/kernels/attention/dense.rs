//! Attention over keys and values that are operands; queries sit at the end of the keys.

use mlxcel_ir::{AttentionSpec, DType};

use super::Scores;
use super::core::{Block, Context, KEYS, Memory, Run, Way, Widths};
use super::drive::{Job, queries_per_block};
use crate::context::Context as Machine;
use crate::lanes::Lane;
use crate::view::{Out, View};

/// `q [b, t, hq, d]`, `k [b, l, hkv, d]`, `v [b, l, hkv, dv]`, and a mask and sinks where the spec says so.
pub(crate) fn dense(machine: &Machine, spec: &AttentionSpec, x: &[View<'_>], out: &mut Out<'_>) {
    if out.elements() == 0 {
        return;
    }
    let mut rest = x[3..].iter();
    let mask = if spec.mask { rest.next() } else { None };
    let [batch, queries, heads, value] = [0, 1, 2, 3].map(|i: usize| out.shape[i]);
    let full = [batch, heads, queries, x[1].shape()[1]];
    let operands = Operands { spec, q: x[0], k: x[1], v: x[2], mask: mask.map(|m| m.broadcast(&full)) };
    let kv_heads = x[1].shape()[2];
    let widths = Widths { group: heads / kv_heads, key: x[0].shape()[3], value };
    let sinks: Option<Vec<f32>> = rest.next().map(|s| s.numbers());
    let step = queries_per_block(machine, &widths, kv_heads, (batch * queries, false));
    let block = |sequence: usize, first: usize| Block {
        sequence,
        first,
        count: step.min(queries - first),
        row: sequence * queries + first,
        way: Way::Turned,
    };
    let blocks: Vec<Block> = (0..batch)
        .flat_map(|b| (0..queries).step_by(step).map(move |first| (b, first)))
        .map(|(b, f)| block(b, f))
        .collect();
    let job = Job {
        context: &operands,
        scores: Scores {
            scale: spec.scale as f32,
            softcap: spec.softcap.map(|c| c as f32),
            masked: spec.mask,
        },
        widths,
        kv_heads,
        sinks: sinks.as_deref(),
    };
    job.run(machine, &blocks, out);
}

struct Operands<'a> {
    spec: &'a AttentionSpec,
    q: View<'a>,
    k: View<'a>,
    v: View<'a>,
    /// Broadcast to `[b, hq, t, l]`.
    mask: Option<View<'a>>,
}

fn memory<'a>(v: &View<'a>) -> Memory<'a> {
    Memory {
        bytes: v.bytes(),
        dtype: v.dtype,
        width: v.shape()[3],
        stride: v.layout.strides[3],
        head: v.layout.strides[2],
        key: v.layout.strides[1],
    }
}

impl Context for Operands<'_> {
    fn keys(&self) -> Memory<'_> {
        memory(&self.k)
    }

    fn values(&self) -> Option<Memory<'_>> {
        Some(memory(&self.v))
    }

    fn run(&self, block: &Block, key: usize) -> Run {
        let first = [&self.k, &self.v].map(|view| {
            let s = view.layout.strides;
            block.sequence * s[0] + key * s[1]
        });
        Run { first, count: self.k.shape()[1] - key }
    }

    fn visible(&self, block: &Block, query: usize) -> (usize, usize) {
        let (keys, queries) = (self.k.shape()[1] as i64, self.q.shape()[1] as i64);
        // The query's own place among the keys; negative if there are fewer keys than queries.
        let at = (block.first + query) as i64 + keys - queries;
        let end = if self.spec.causal { (at + 1).clamp(0, keys) } else { keys };
        let begin = self.spec.window.map_or(0, |w| (at + 1 - w as i64).clamp(0, keys));
        (begin as usize, end as usize)
    }

    fn query(&self, block: &Block, query: usize, head: usize, to: &mut [f32]) {
        let s = self.q.layout.strides;
        for (h, to) in to.chunks_exact_mut(self.q.shape()[3].max(1)).enumerate() {
            let at = block.sequence * s[0] + (block.first + query) * s[1] + (head + h) * s[2];
            f32::load(self.q.dtype, self.q.bytes(), (at, s[3]), to);
        }
    }

    fn mask(&self, block: &Block, (query, head): (usize, usize), start: usize, scores: &mut [f32]) {
        let Some(m) = &self.mask else { return };
        let s = m.layout.strides;
        let at = block.sequence * s[0] + head * s[1] + (block.first + query) * s[2] + start * s[3];
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
