//! Attention over the paged cache for a step that is either a decode, where token `i` is that of sequence `i`, or tokens
//! of one sequence. The blocks of each sequence are gathered to one run of keys; heads that share keys are multiplied
//! together.

use mlxcel_ir::{Builder, DType, Dim, Op, PagedSpec, ReduceOp, ScatterMode, Tensor};

fn fixed(d: Dim) -> usize {
    d.as_fixed().expect("the graph was bound before it is lowered")
}

fn shape(sizes: &[usize]) -> Vec<Dim> {
    sizes.iter().map(|&n| Dim::fixed(n)).collect()
}

/// Sums in f32, whatever is multiplied.
fn dot<'g>(
    a: Tensor<'g>,
    b: Tensor<'g>,
    batch: &[(usize, usize)],
    contract: &[(usize, usize)],
    dtype: DType,
) -> Tensor<'g> {
    let op = Op::DotGeneral { batch: batch.to_vec(), contract: contract.to_vec(), dtype };
    // Without a result the builder holds an error, which it gives when it is finished.
    a.builder().apply(op, &[a, b]).first().copied().unwrap_or(a)
}

/// Attention output and the caches with the new keys and values.
pub(super) fn paged<'g>(b: &'g Builder, x: &[Tensor<'g>], spec: &PagedSpec, narrow: bool) -> Vec<Tensor<'g>> {
    let values = usize::from(spec.value_dim.is_none());
    let (q, new, caches) = (x[0], &x[1..2 + values], &x[2 + values..3 + 2 * values]);
    let rest = &x[3 + 2 * values..];
    let (positions, seq_ids, slots, table) = (rest[0], rest[1], rest[2], rest[3]);
    let caches: Vec<Tensor<'g>> = caches.iter().zip(new).map(|(c, n)| write(*c, *n, slots)).collect();
    let (tokens, sequences) = (fixed(q.dim(0)), fixed(table.dim(0)));
    let keys = fixed(table.dim(1)) * fixed(caches[0].dim(1));
    let (heads, kv_heads) = (fixed(q.dim(1)), fixed(caches[0].dim(2)));
    let read = |cache: Tensor<'g>| {
        let run = [sequences, keys, kv_heads, fixed(cache.dim(3))];
        cache.gather(table, 0).reshape(shape(&run)).cast(q.dtype())
    };
    let k = read(caches[0]);
    let v = spec.value_dim.map_or_else(|| read(caches[1]), |dim| k.slice(3, 0, dim));
    let wide = if q.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let at = |t: Tensor<'g>, sizes: &[usize]| t.cast(DType::I32).reshape(shape(sizes));
    let grouped = q.reshape(shape(&[tokens, kv_heads, heads / kv_heads, fixed(q.dim(2))]));
    let is_decode = tokens == sequences;
    // [sequences, kv_heads, group, keys], or [kv_heads, tokens, group, keys].
    let (scores, place) = if is_decode {
        (dot(grouped, k, &[(0, 0), (1, 2)], &[(3, 3)], wide), [tokens, 1, 1, 1])
    } else {
        let k = k.reshape(k.shape()[1..].to_vec());
        (dot(grouped, k, &[(1, 1)], &[(3, 2)], wide), [1, tokens, 1, 1])
    };
    let keep = visible(b, (at(positions, &place), at(seq_ids, &place)), keys, spec);
    let sinks = rest.get(4).map(|s| {
        let per_head =
            if is_decode { [1, kv_heads, heads / kv_heads, 1] } else { [kv_heads, 1, heads / kv_heads, 1] };
        s.cast(wide).reshape(shape(&per_head))
    });
    let mut p = masked_softmax(capped(scores * spec.scale, spec.softcap), keep, sinks);
    let mut v = v;
    if narrow {
        p = p.cast(v.dtype());
    } else {
        v = v.cast(wide);
    }
    let out = if is_decode {
        dot(p, v, &[(0, 0), (1, 2)], &[(3, 1)], wide)
    } else {
        dot(p, v.reshape(v.shape()[1..].to_vec()), &[(0, 1)], &[(3, 0)], wide).transpose(&[1, 0, 2, 3])
    };
    let flat = vec![q.dim(0), q.dim(1), v.dim(3)];
    std::iter::once(out.cast(q.dtype()).reshape(flat)).chain(caches).collect()
}

/// The cache with new rows at their slots.
fn write<'g>(cache: Tensor<'g>, new: Tensor<'g>, slots: Tensor<'g>) -> Tensor<'g> {
    let flat = vec![cache.dim(0).times(&cache.dim(1)), cache.dim(2), cache.dim(3)];
    let written = cache.reshape(flat).scatter(slots, new.cast(cache.dtype()), ScatterMode::Set);
    written.reshape(cache.shape())
}

/// Which keys a token sees; a token of no sequence sees none.
fn visible<'g>(
    b: &'g Builder,
    (at, ids): (Tensor<'g>, Tensor<'g>),
    keys: usize,
    spec: &PagedSpec,
) -> Tensor<'g> {
    let key = b.iota(DType::I32, shape(&[1, 1, 1, keys]), 3);
    let keep = key.le(at) & ids.ge(ids.number(0.0));
    spec.window.map_or(keep, |w| keep & key.gt(at - w as f64))
}

fn capped(scores: Tensor<'_>, cap: Option<f64>) -> Tensor<'_> {
    cap.map_or(scores, |cap| (scores / cap).tanh() * cap)
}

/// Softmax of the kept scores, with the sinks in the denominator; a row that keeps nothing is zeros.
fn masked_softmax<'g>(scores: Tensor<'g>, keep: Tensor<'g>, sinks: Option<Tensor<'g>>) -> Tensor<'g> {
    let masked = keep.select(scores, scores.number(-1e30));
    let mut top = masked.reduce_keep(ReduceOp::Max, 3);
    if let Some(s) = sinks {
        top = top.max(s);
    }
    let e = keep.select((masked - top).exp(), scores.number(0.0));
    let mut sum = e.reduce_keep(ReduceOp::Sum, 3);
    if let Some(s) = sinks {
        sum = sum + (s - top).exp();
    }
    e / sum.eq(sum.number(0.0)).select(sum.number(1.0), sum)
}
