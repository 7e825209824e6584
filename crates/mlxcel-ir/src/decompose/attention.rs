//! Rotary embedding and attention.

use super::count;
use super::norm::wide;
use crate::builder::{Builder, Tensor};
use crate::dtype::DType;
use crate::op::{AttentionSpec, CacheRow, PagedSpec, ReduceOp, ScatterMode};
use crate::shape::Dim;

pub(super) fn rope<'g>(x: &[Tensor<'g>], interleaved: bool, scale: f64) -> Tensor<'g> {
    let (t, positions, inv_freq) = (x[0], x[1], x[2]);
    let (tokens, heads, dim) = (t.dim(0), t.dim(1), t.dim(2));
    let half = inv_freq.dim(inv_freq.rank() - 1).as_fixed().expect("rotary width is fixed");
    let dim = dim.as_fixed().expect("head width is fixed");
    let angle = positions.cast(DType::F32).unsqueeze(1) * inv_freq; // [tokens, half]
    let angle = angle.unsqueeze(1); // [tokens, 1, half]
    let (cos, sin) = (angle.cos() * scale, angle.sin() * scale);
    let wide = t.cast(wide(t.dtype()));
    let (cos, sin) = (cos.cast(wide.dtype()), sin.cast(wide.dtype()));
    let rotated = if interleaved {
        let pairs = vec![tokens.clone(), heads.clone(), Dim::fixed(half), Dim::fixed(2)];
        let pairs = wide.slice(2, 0, 2 * half).reshape(pairs);
        let part = |i: usize| {
            pairs.slice(3, i, i + 1).reshape(vec![tokens.clone(), heads.clone(), Dim::fixed(half)])
        };
        let (a, b) = (part(0), part(1));
        let both = [(a * cos - b * sin).unsqueeze(3), (b * cos + a * sin).unsqueeze(3)];
        t.builder().concat(&both, 3).reshape(vec![tokens, heads, Dim::fixed(2 * half)])
    } else {
        let (a, b) = (wide.slice(2, 0, half), wide.slice(2, half, 2 * half));
        t.builder().concat(&[a * cos - b * sin, b * cos + a * sin], 2)
    };
    let whole = if 2 * half == dim {
        rotated
    } else {
        t.builder().concat(&[rotated, wide.slice(2, 2 * half, dim)], 2)
    };
    whole.cast(t.dtype())
}

pub(super) fn dense<'g>(b: &'g Builder, x: &[Tensor<'g>], spec: &AttentionSpec) -> Tensor<'g> {
    let (q, k, v) = (x[0], x[1], x[2]);
    let mut rest = x[3..].iter().copied();
    let mask = if spec.mask { rest.next() } else { None };
    let sinks = rest.next();
    let (batch, queries, keys) = (q.dim(0), q.dim(1), k.dim(1));
    let kv_heads = k.dim(2).as_fixed().expect("heads are fixed");
    let group = q.dim(2).as_fixed().expect("heads are fixed") / kv_heads;
    let w = wide(q.dtype());
    let grouped = vec![batch.clone(), queries.clone(), Dim::fixed(kv_heads), Dim::fixed(group), q.dim(3)];
    let qg = q.cast(w).reshape(grouped);
    // [batch, kv_heads, queries, group, keys] to [batch, kv_heads, group, queries, keys]
    let scores = qg.dot_general(k.cast(w), &[(0, 0), (2, 2)], &[(4, 3)]).transpose(&[0, 1, 3, 2, 4]);
    let full = vec![batch.clone(), Dim::fixed(kv_heads * group), queries.clone(), keys.clone()];
    let split = vec![batch.clone(), Dim::fixed(kv_heads), Dim::fixed(group), queries.clone(), keys.clone()];
    let mut scores = scores.reshape(full) * spec.scale;
    if let Some(cap) = spec.softcap {
        scores = (scores / cap).tanh() * cap;
    }
    if let Some(m) = mask.filter(|m| m.dtype() != DType::Bool) {
        scores = scores + m.cast(w);
    }
    let keep = [mask.filter(|m| m.dtype() == DType::Bool), visible(b, &queries, &keys, spec)];
    let keep = keep.into_iter().flatten().reduce(|a, c| a & c);
    let probabilities = masked_softmax(scores, keep, sinks).reshape(split);
    // [batch, kv_heads, group, queries, value] to [batch, queries, kv_heads * group, value]
    let out = probabilities.dot_general(v.cast(w), &[(0, 0), (1, 2)], &[(4, 1)]).transpose(&[0, 3, 1, 2, 4]);
    out.reshape(vec![batch, queries, Dim::fixed(kv_heads * group), v.dim(3)]).cast(q.dtype())
}

/// The causal and sliding-window mask `[queries, keys]`; queries sit at the end of the keys.
fn visible<'g>(b: &'g Builder, queries: &Dim, keys: &Dim, spec: &AttentionSpec) -> Option<Tensor<'g>> {
    if !spec.causal && spec.window.is_none() {
        return None;
    }
    let offset = b.size(keys) - b.size(queries);
    let at = (count(b, queries.clone()) + offset).unsqueeze(1);
    let key = count(b, keys.clone()).unsqueeze(0);
    let causal = spec.causal.then(|| key.le(at));
    let window = spec.window.map(|w| key.gt(at - w as f64));
    [causal, window].into_iter().flatten().reduce(|a, c| a & c)
}

/// Softmax over the last axis of the kept scores, with the sinks (one per head, axis 1) in the denominator. A row
/// that keeps nothing is all zeros.
fn masked_softmax<'g>(scores: Tensor<'g>, keep: Option<Tensor<'g>>, sinks: Option<Tensor<'g>>) -> Tensor<'g> {
    let lowest = scores.number(-1e30);
    let masked = keep.map_or(scores, |k| k.select(scores, lowest));
    let mut top = masked.reduce_keep(ReduceOp::Max, 3);
    let sinks = sinks.map(|s| {
        let heads = s.dim(0);
        s.cast(scores.dtype()).reshape(vec![Dim::fixed(1), heads, Dim::fixed(1), Dim::fixed(1)])
    });
    if let Some(s) = sinks {
        top = top.max(s);
    }
    let e = (masked - top).exp();
    let e = keep.map_or(e, |k| k.select(e, e.number(0.0)));
    let mut sum = e.reduce_keep(ReduceOp::Sum, 3);
    if let Some(s) = sinks {
        sum = sum + (s - top).exp();
    }
    let empty = sum.eq(sum.number(0.0));
    e / empty.select(sum.number(1.0), sum)
}

/// Rows `[t, heads, width]` as a cache of `i8` holds them.
fn coded<'g>(b: &'g Builder, x: Tensor<'g>) -> Tensor<'g> {
    let x = x.cast(wide(x.dtype()));
    let most = x.abs().reduce_keep(ReduceOp::Max, 2) * (1.0 / CacheRow::MOST);
    let eighths = (most.log() * (CacheRow::EIGHTHS / std::f64::consts::LN_2) - CacheRow::SLACK).ceil();
    let eighths = eighths.max(x.number(-128.0)).min(x.number(127.0));
    let codes = (x / step_of(eighths)).round().max(x.number(-CacheRow::MOST)).min(x.number(CacheRow::MOST));
    b.concat(&[codes, eighths], 2).cast(DType::I8)
}

/// The numbers of rows of codes that were cast to floats.
fn decoded(rows: Tensor<'_>) -> Tensor<'_> {
    let width = rows.dim(3).minus(&Dim::fixed(CacheRow::EXTRA));
    rows.slice(3, 0, width.clone()) * step_of(rows.slice(3, width, rows.dim(3)))
}

fn step_of(eighths: Tensor<'_>) -> Tensor<'_> {
    (eighths * (std::f64::consts::LN_2 / CacheRow::EIGHTHS)).exp()
}

/// All tokens against all keys of all sequences, masked to each token's own sequence and past.
pub(super) fn paged<'g>(b: &'g Builder, x: &[Tensor<'g>], spec: &PagedSpec) -> Vec<Tensor<'g>> {
    let values = if spec.value_dim.is_none() { 1 } else { 0 };
    let (q, new, caches) = (x[0], &x[1..2 + values], &x[2 + values..3 + 2 * values]);
    let rest = &x[3 + 2 * values..];
    let (positions, seq_ids, slots, table) = (rest[0], rest[1], rest[2], rest[3]);
    let (blocks, block) = (caches[0].dim(0), caches[0].dim(1));
    let (sequences, pages) = (table.dim(0), table.dim(1));
    let keys = sequences.times(&pages).times(&block);

    let write = |cache: Tensor<'g>, new: Tensor<'g>| {
        let flat = vec![blocks.times(&block), cache.dim(2), cache.dim(3)];
        let rows = if cache.dtype() == DType::I8 { coded(b, new) } else { new.cast(cache.dtype()) };
        let written = cache.reshape(flat).scatter(slots, rows, ScatterMode::Set);
        written.reshape(cache.shape())
    };
    let caches: Vec<Tensor<'g>> = caches.iter().zip(new).map(|(c, n)| write(*c, *n)).collect();
    let read = |cache: Tensor<'g>| {
        let all = vec![Dim::fixed(1), keys.clone(), cache.dim(2), cache.dim(3)];
        let rows = cache.gather(table, 0).reshape(all).cast(q.dtype());
        if cache.dtype() == DType::I8 { decoded(rows) } else { rows }
    };
    let k = read(caches[0]);
    let v = match spec.value_dim {
        Some(dim) => k.slice(3, 0, dim),
        None => read(caches[1]),
    };

    let per_key = vec![sequences.clone(), pages.times(&block)];
    let place =
        |axis: usize| b.iota(DType::I32, per_key.clone(), axis).reshape(vec![Dim::fixed(1), keys.clone()]);
    let (owner, key) = (place(0), place(1));
    let at = positions.cast(DType::I32).unsqueeze(1);
    let mut keep = owner.eq(seq_ids.cast(DType::I32).unsqueeze(1)) & key.le(at);
    if let Some(w) = spec.window {
        keep = keep & key.gt(at - w as f64);
    }
    let dense = AttentionSpec {
        scale: spec.scale,
        causal: false,
        window: None,
        softcap: spec.softcap,
        mask: true,
        sinks: spec.sinks,
    };
    let out = b.attention([q.unsqueeze(0), k, v], Some(keep), rest.get(4).copied(), dense);
    let flat = vec![q.dim(0), q.dim(1), v.dim(3)];
    std::iter::once(out.reshape(flat)).chain(caches).collect()
}
