//! Typing of composites.

use super::movement::windows;
use super::{Inferred, axis_in, ensure, float, int, one, rank_is, same_dtype, same_shape};
use crate::dtype::DType;
use crate::op::{CacheRow, Op, PagedSpec, PoolKind, RouteSpec};
use crate::shape::{Dim, Type};

pub(super) fn infer(op: &Op, x: &[&Type]) -> Inferred {
    match op {
        Op::Activation(_) | Op::Softmax { .. } => {
            float("the operand", x[0])?;
            if let Op::Softmax { axis } = op {
                axis_in(*axis, x[0])?;
            }
            one(x[0].clone())
        }
        Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::GroupNorm { .. } | Op::AddRmsNorm { .. } => {
            norm(op, x)
        }
        Op::Rope { .. } => rope(x),
        Op::Attention(a) => {
            let mut rest = x[3..].iter();
            let mask = if a.mask { rest.next().copied() } else { None };
            attention(x, mask)?;
            if let Some(sinks) = rest.next() {
                same_shape("sinks", sinks, &x[0].shape[2..3])?;
            }
            let mut shape = x[0].shape.clone();
            shape[3] = x[2].shape[3].clone();
            one(x[0].with_shape(shape))
        }
        Op::PagedAttention(p) => paged(p, x),
        Op::Linear { bias } => linear(x, *bias),
        Op::Embedding { dtype } => {
            rank_is("the table", x[0], 2)?;
            int("ids", x[1])?;
            let mut shape = x[1].shape.clone();
            shape.push(x[0].shape[1].clone());
            one(Type::new(*dtype, shape))
        }
        Op::ExpertLinear { bias } => expert_linear(x, *bias),
        Op::MoeRoute(r) => route(r, x),
        Op::TopK { k } => {
            let last = x[0].shape.last().ok_or("needs an axis")?;
            if let Some(n) = last.as_fixed() {
                ensure(*k <= n, || format!("top {k} of {n}"))?;
            }
            let mut shape = x[0].shape.clone();
            *shape.last_mut().expect("rank was checked") = Dim::fixed(*k);
            Ok(vec![x[0].with_shape(shape.clone()), Type::new(DType::I32, shape)])
        }
        Op::ArgMax { axis } => {
            axis_in(*axis, x[0])?;
            let mut shape = x[0].shape.clone();
            shape.remove(*axis);
            one(Type::new(DType::I32, shape))
        }
        Op::Sample => sample(x),
        Op::SelectiveScan => selective_scan(x),
        Op::CausalConv => causal_conv(x),
        Op::Pool { kind, window, strides, padding } => pool(x[0], *kind, (window, strides, padding)),
        Op::Fft { .. } | Op::Rfft | Op::Irfft { .. } => fft(op, x),
        other => unreachable!("{} is typed elsewhere", other.name()),
    }
}

fn norm(op: &Op, x: &[&Type]) -> Inferred {
    float("the operand", x[0])?;
    let axis = if let Op::GroupNorm { .. } = op { 1 } else { x[0].rank().saturating_sub(1) };
    axis_in(axis, x[0])?;
    let width = &x[0].shape[axis..axis + 1];
    let parameters = if let Op::AddRmsNorm { .. } = op { 2 } else { 1 };
    for w in &x[parameters..] {
        float("a parameter", w)?;
        same_shape("a parameter", w, width)?;
    }
    match op {
        Op::AddRmsNorm { .. } => {
            same_dtype(x[0], x[1])?;
            same_shape("the residual", x[1], &x[0].shape)?;
            Ok(vec![x[0].clone(), x[0].clone()])
        }
        Op::GroupNorm { groups, .. } => {
            ensure(*groups > 0 && width[0].divide(&Dim::fixed(*groups)).is_some(), || {
                format!("{groups} groups do not divide {} channels", width[0])
            })?;
            one(x[0].clone())
        }
        _ => one(x[0].clone()),
    }
}

fn rope(x: &[&Type]) -> Inferred {
    rank_is("x", x[0], 3)?;
    int("positions", x[1])?;
    same_shape("positions", x[1], &x[0].shape[..1])?;
    ensure(x[2].dtype == DType::F32, || format!("inv_freq is {}, expected f32", x[2].dtype))?;
    let half = x[2].shape.last().ok_or("inv_freq needs an axis")?;
    if x[2].rank() > 1 {
        same_shape("inv_freq", x[2], &[x[0].shape[0].clone(), half.clone()])?;
    }
    if let (Some(half), Some(dim)) = (half.as_fixed(), x[0].shape[2].as_fixed()) {
        ensure(2 * half <= dim, || format!("rotates {} of {dim} elements", 2 * half))?;
    }
    one(x[0].clone())
}

fn attention(x: &[&Type], mask: Option<&Type>) -> Result<(), String> {
    let (q, k, v) = (x[0], x[1], x[2]);
    for (what, t) in [("q", q), ("k", k), ("v", v)] {
        rank_is(what, t, 4)?;
        float(what, t)?;
        same_dtype(q, t)?;
    }
    ensure(q.shape[0] == k.shape[0] && q.shape[3] == k.shape[3], || "q and k do not fit".into())?;
    same_shape("v", v, &[k.shape[0].clone(), k.shape[1].clone(), k.shape[2].clone(), v.shape[3].clone()])?;
    grouped(&q.shape[2], &k.shape[2])?;
    if let Some(m) = mask {
        let full = vec![q.shape[0].clone(), q.shape[2].clone(), q.shape[1].clone(), k.shape[1].clone()];
        ensure(m.dtype == DType::Bool || m.dtype.is_float(), || format!("a mask of {}", m.dtype))?;
        let result = super::broadcast(&m.shape, &full)?;
        ensure(result == full, || format!("the mask {:?} does not broadcast to {full:?}", m.shape))?;
    }
    Ok(())
}

fn grouped(hq: &Dim, hkv: &Dim) -> Result<(), String> {
    match (hq.as_fixed(), hkv.as_fixed()) {
        (Some(q), Some(kv)) if kv > 0 && q % kv == 0 => Ok(()),
        _ => Err(format!("{hq} query heads do not share {hkv} key heads evenly")),
    }
}

fn paged(p: &PagedSpec, x: &[&Type]) -> Inferred {
    let split = p.value_dim.is_none();
    let (q, k, v) = (x[0], x[1], if split { x[2] } else { x[1] });
    for (what, t) in [("q", q), ("k", k), ("v", v)] {
        rank_is(what, t, 3)?;
        same_dtype(q, t)?;
    }
    ensure(q.shape[0] == k.shape[0] && q.shape[2] == k.shape[2], || "q and k do not fit".into())?;
    same_shape("v", v, &[k.shape[0].clone(), k.shape[1].clone(), v.shape[2].clone()])?;
    grouped(&q.shape[1], &k.shape[1])?;
    let rest = &x[if split { 3 } else { 2 }..];
    let caches = &rest[..if split { 2 } else { 1 }];
    for (cache, new) in caches.iter().zip([k, v]) {
        rank_is("a cache", cache, 4)?;
        if cache.dtype != DType::I8 {
            float("a cache", cache)?;
        }
        let mut expected = [&cache.shape[..2], &new.shape[1..]].concat();
        expected[3] = CacheRow::width(cache.dtype, &new.shape[2]);
        same_shape("a cache", cache, &expected)?;
        ensure(cache.shape[..2] == caches[0].shape[..2], || "the caches differ in blocks".into())?;
    }
    let rest = &rest[caches.len()..];
    for (what, t) in ["positions", "seq_ids", "slot_mapping"].into_iter().zip(rest) {
        int(what, t)?;
        same_shape(what, t, &q.shape[..1])?;
    }
    int("block_table", rest[3])?;
    rank_is("block_table", rest[3], 2)?;
    if let Some(sinks) = rest.get(4) {
        same_shape("sinks", sinks, &q.shape[1..2])?;
    }
    let mut out = q.clone();
    out.shape[2] = p.value_dim.map_or_else(|| v.shape[2].clone(), Dim::fixed);
    Ok(std::iter::once(out).chain(caches.iter().map(|c| (*c).clone())).collect())
}

fn linear(x: &[&Type], bias: bool) -> Inferred {
    float("x", x[0])?;
    rank_is("the weight", x[1], 2)?;
    let last = x[0].rank().checked_sub(1).ok_or("x needs an axis")?;
    let (k, width) = (&x[1].shape[1], &x[0].shape[last]);
    ensure(width == k, || format!("x has {width} features but the weight takes {k}"))?;
    if bias {
        same_shape("the bias", x[2], &x[1].shape[..1])?;
    }
    let mut shape = x[0].shape.clone();
    shape[last] = x[1].shape[0].clone();
    one(x[0].with_shape(shape))
}

fn expert_linear(x: &[&Type], bias: bool) -> Inferred {
    rank_is("x", x[0], 3)?;
    rank_is("the weight", x[1], 3)?;
    rank_is("ids", x[2], 2)?;
    int("ids", x[2])?;
    let (t, k) = (&x[2].shape[0], &x[2].shape[1]);
    let shared = x[0].shape[1] == Dim::fixed(1) || &x[0].shape[1] == k;
    ensure(&x[0].shape[0] == t && shared, || "x and ids do not fit".into())?;
    ensure(x[0].shape[2] == x[1].shape[2], || "x and the weight differ in features".into())?;
    if bias {
        same_shape("the bias", x[3], &x[1].shape[..2])?;
    }
    one(x[0].with_shape(vec![t.clone(), k.clone(), x[1].shape[1].clone()]))
}

fn route(r: &RouteSpec, x: &[&Type]) -> Inferred {
    float("logits", x[0])?;
    rank_is("logits", x[0], 2)?;
    let experts = x[0].shape[1].as_fixed().ok_or("the number of experts must be fixed")?;
    ensure(r.top_k > 0 && r.top_k <= experts, || format!("top {} of {experts} experts", r.top_k))?;
    if let Some(g) = r.groups {
        let fits = g.count > 0 && experts.is_multiple_of(g.count) && g.keep <= g.count;
        let enough = fits && experts / g.count >= 2 && g.keep * (experts / g.count) >= r.top_k;
        ensure(enough, || format!("{experts} experts in {} groups of which {} are kept", g.count, g.keep))?;
    }
    if r.correction {
        same_shape("the correction", x[1], &x[0].shape[1..])?;
    }
    let shape = vec![x[0].shape[0].clone(), Dim::fixed(r.top_k)];
    Ok(vec![Type::new(DType::F32, shape.clone()), Type::new(DType::I32, shape)])
}

fn sample(x: &[&Type]) -> Inferred {
    float("logits", x[0])?;
    rank_is("logits", x[0], 2)?;
    let rows = &x[0].shape[..1];
    let expected = [DType::F32, DType::I32, DType::F32, DType::F32, DType::U32, DType::U32];
    for ((t, d), what) in
        x[1..].iter().zip(expected).zip(["temperature", "top_k", "top_p", "min_p", "seed", "step"])
    {
        ensure(t.dtype == d, || format!("{what} is {}, expected {d}", t.dtype))?;
        same_shape(what, t, rows)?;
    }
    one(Type::new(DType::I32, rows.to_vec()))
}

fn selective_scan(x: &[&Type]) -> Inferred {
    rank_is("x", x[0], 2)?;
    let (t, c) = (&x[0].shape[0], &x[0].shape[1]);
    rank_is("a", x[2], 2)?;
    let n = &x[2].shape[1];
    same_shape("dt", x[1], &x[0].shape)?;
    same_shape("a", x[2], &[c.clone(), n.clone()])?;
    same_shape("b", x[3], &[t.clone(), n.clone()])?;
    same_shape("c", x[4], &[t.clone(), n.clone()])?;
    same_shape("d", x[5], std::slice::from_ref(c))?;
    recurrent(x, 6, &[c.clone(), n.clone()])
}

fn causal_conv(x: &[&Type]) -> Inferred {
    rank_is("x", x[0], 2)?;
    rank_is("w", x[1], 2)?;
    let c = &x[0].shape[1];
    let k = x[1].shape[1].as_fixed().filter(|&k| k >= 2).ok_or("the kernel must be fixed and at least 2")?;
    same_shape("w", x[1], &[c.clone(), Dim::fixed(k)])?;
    same_shape("bias", x[2], std::slice::from_ref(c))?;
    recurrent(x, 3, &[c.clone(), Dim::fixed(k - 1)])
}

/// The state at operand `at`, followed by positions and slot ids.
fn recurrent(x: &[&Type], at: usize, per_slot: &[Dim]) -> Inferred {
    x[..=at].iter().try_for_each(|t| same_dtype(x[0], t))?;
    let state = x[at];
    rank_is("the state", state, 3)?;
    same_shape("the state", state, &[&state.shape[..1], per_slot].concat())?;
    for (what, t) in ["positions", "slot_ids"].into_iter().zip(&x[at + 1..]) {
        int(what, t)?;
        same_shape(what, t, &x[0].shape[..1])?;
    }
    Ok(vec![x[0].clone(), state.clone()])
}

type Windowing<'a> = (&'a [usize], &'a [usize], &'a [(usize, usize)]);

fn pool(x: &Type, kind: PoolKind, (window, strides, padding): Windowing<'_>) -> Inferred {
    let spatial =
        x.rank().checked_sub(2).filter(|s| (1..=3).contains(s)).ok_or("takes 1 to 3 spatial axes")?;
    ensure(window.len() == spatial && strides.len() == spatial && padding.len() == spatial, || {
        format!("{spatial} windows, strides and paddings are needed")
    })?;
    ensure(kind != PoolKind::Mean || x.dtype.is_float(), || "a mean needs floats".into())?;
    let mut shape = x.shape[..2].to_vec();
    for i in 0..spatial {
        let (low, high) = padding[i];
        ensure(window[i] > low.max(high), || {
            format!("padding {low},{high} reaches past the window {}", window[i])
        })?;
        shape.push(windows(&x.shape[i + 2], window[i], strides[i], padding[i])?);
    }
    one(x.with_shape(shape))
}

fn fft(op: &Op, x: &[&Type]) -> Inferred {
    float("the operand", x[0])?;
    let last = x[0].rank().checked_sub(1).ok_or("needs an axis")?;
    let n = x[0].shape[last]
        .as_fixed()
        .filter(|&n| n > 0)
        .ok_or("the transformed axis must be fixed and not empty")?;
    if let Some(im) = x.get(1) {
        same_dtype(x[0], im)?;
        same_shape("the imaginary part", im, &x[0].shape)?;
    }
    let resized = |m: usize| {
        let mut t = x[0].clone();
        t.shape[last] = Dim::fixed(m);
        t
    };
    match op {
        Op::Fft { .. } => Ok(vec![x[0].clone(), x[0].clone()]),
        Op::Rfft => Ok(vec![resized(n / 2 + 1), resized(n / 2 + 1)]),
        Op::Irfft { n: out } => {
            ensure(*out > 0 && out / 2 + 1 == n, || format!("{n} frequencies do not give {out} numbers"))?;
            one(resized(*out))
        }
        other => unreachable!("{} is not a transform", other.name()),
    }
}
