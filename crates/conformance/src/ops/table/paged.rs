//! Attention over the paged cache: sequences of several lengths grow over several steps, in scattered blocks.

use mlxcel_ir::{DType, HostTensor, PagedSpec, Tensor, shape};

use super::{FLOATS, Sketch, Table};
use crate::ops::ragged::Ragged;

/// Query heads, key heads, and the width of a head.
type Heads = (usize, usize, usize);

const TINY: Heads = (4, 2, 8);
const MODEL: Heads = (9, 3, 64);

/// One sequence, fed whole and then token by token.
const ALONE: [&[usize]; 3] = [&[7], &[1], &[1]];
/// Prefills and decodes in the same step; a sequence that joins late and one that pauses.
const MIXED: [&[usize]; 4] = [&[5, 0, 9], &[1, 6, 0], &[4, 1, 1], &[1, 1, 1]];
/// Long enough for several blocks of any engine.
const LONG: [&[usize]; 3] = [&[64, 3], &[70, 1], &[1, 1]];

pub(super) fn plain() -> PagedSpec {
    PagedSpec { scale: 0.3, window: None, softcap: None, sinks: false, value_dim: None }
}

pub(super) fn add(t: &mut Table) {
    let block = t.block_size;
    let mut row = |name: &str, plan: &[&[usize]], heads: Heads, spec: PagedSpec| {
        for dtype in FLOATS {
            let ragged = Ragged::new(plan, block);
            t.case(&format!("{name} {dtype}"), |s| one(s, dtype, heads, (&ragged, &spec)));
        }
    };
    let window = |w: usize| PagedSpec { window: Some(w), ..plain() };
    let model = PagedSpec { scale: 0.125, ..plain() };
    row("one sequence", &ALONE, TINY, plain());
    row("mixed batch", &MIXED, TINY, plain());
    row("several blocks", &LONG, TINY, plain());
    row("several blocks of a model", &LONG, MODEL, model.clone());
    row("window", &MIXED, TINY, window(3));
    row("window over several blocks", &LONG, TINY, window(10));
    row("window of one", &ALONE, TINY, window(1));
    row("window of a model", &LONG, MODEL, PagedSpec { window: Some(65), ..model.clone() });
    row("soft cap", &MIXED, TINY, PagedSpec { softcap: Some(1.5), scale: 2.0, ..plain() });
    row("sinks", &MIXED, TINY, PagedSpec { sinks: true, ..plain() });
    row("sinks and window", &LONG, (8, 1, 16), PagedSpec { sinks: true, window: Some(33), ..plain() });
    row("values in keys", &MIXED, (4, 1, 24), PagedSpec { value_dim: Some(16), ..plain() });
    row(
        "values in keys of a model",
        &LONG,
        (8, 1, 144),
        PagedSpec { value_dim: Some(128), scale: 0.08, ..plain() },
    );
    row("a key head each", &MIXED, (3, 3, 20), plain());
    row("one key head", &MIXED, (5, 1, 12), plain());
    let everything =
        PagedSpec { window: Some(20), softcap: Some(2.0), sinks: true, scale: 1.0, value_dim: None };
    row("everything", &LONG, (6, 2, 10), everything);
    t.case("two layers keep two caches", |s| two_layers(s, block));
    t.case("values of another width", |s| wide_values(s, block));
    t.case("padding tokens go nowhere", |s| padding(s, block));
}

fn qkv<'g>(s: &'g Sketch, dtype: DType, (hq, hkv, d): Heads, tokens: usize) -> [Tensor<'g>; 3] {
    [("q", hq), ("k", hkv), ("v", hkv)].map(|(name, heads)| {
        s.input_as(name, shape!["tokens", heads, d], s.normal(dtype, &[tokens, heads, d]))
    })
}

/// Feeds the steps after the first.
fn steps(s: &Sketch, dtype: DType, (hq, hkv, d): Heads, ragged: &Ragged<'_>) {
    for step in 1..ragged.plan.len() {
        let mut feeds = ragged.named(step);
        let tokens = ragged.tokens(step);
        for (name, heads) in [("q", hq), ("k", hkv), ("v", hkv)] {
            feeds.push((name, s.normal(dtype, &[tokens, heads, d])));
        }
        s.step(feeds);
    }
}

fn one(s: &Sketch, dtype: DType, heads: Heads, (ragged, spec): (&Ragged<'_>, &PagedSpec)) {
    let batch = ragged.declare_paged(s);
    let [q, k, v] = qkv(s, dtype, heads, ragged.tokens(0));
    let sinks = spec.sinks.then(|| s.normal_weight("sinks", dtype, &[heads.0]));
    let values = spec.value_dim.is_none().then_some(v);
    if values.is_none() {
        s.output("unused", v);
    }
    s.output("y", s.b().paged_attention((q, k, values), batch, sinks, 0, spec.clone()));
    steps(s, dtype, heads, ragged);
}

fn two_layers(s: &Sketch, block: usize) {
    let ragged = Ragged::new(&MIXED, block);
    let batch = ragged.declare_paged(s);
    let [q, k, v] = qkv(s, DType::F32, TINY, ragged.tokens(0));
    let first = s.b().paged_attention((q, k, Some(v)), batch, None, 0, plain());
    let local = PagedSpec { window: Some(3), ..plain() };
    let second = s.b().paged_attention((first, k * 0.5, Some(v - k)), batch, None, 1, local);
    s.output("first", first);
    s.output("second", second);
    steps(s, DType::F32, TINY, &ragged);
}

fn wide_values(s: &Sketch, block: usize) {
    let ragged = Ragged::new(&MIXED, block);
    let batch = ragged.declare_paged(s);
    let [q, k, v] = qkv(s, DType::F32, TINY, ragged.tokens(0));
    let wide = s.b().concat(&[v, k.slice(2, 0usize, 5usize)], 2);
    s.output("y", s.b().paged_attention((q, k, Some(wide)), batch, None, 0, plain()));
    steps(s, DType::F32, TINY, &ragged);
}

/// A bucket's tail: sequence −1, slot −1. Its rows are zeros and the cache stays as it was.
fn padding(s: &Sketch, block: usize) {
    let ragged = Ragged::new(&[&[3, 2], &[1, 1]], block);
    let batch = ragged.declare_paged(s);
    let [q, k, v] = qkv(s, DType::F32, TINY, 8);
    s.output("y", s.b().paged_attention((q, k, Some(v)), batch, None, 0, plain()));
    let padded = |step: usize, tokens: usize| {
        let pad = |(name, t): (&'static str, HostTensor)| {
            let filler = if name == "positions" { 0 } else { -1 };
            let mut values = t.to_i64();
            if name != "block_table" {
                values.resize(tokens, filler);
            }
            let values: Vec<i32> = values.into_iter().map(|v| v as i32).collect();
            let shape = if name == "block_table" { t.shape().to_vec() } else { vec![tokens] };
            (name, HostTensor::new(&shape, &values))
        };
        ragged.named(step).into_iter().map(pad).collect::<Vec<_>>()
    };
    s.first_step(padded(0, 8));
    let fresh = |heads: usize| s.normal(DType::F32, &[4, heads, 8]);
    let mut second = padded(1, 4);
    second.extend([("q", fresh(4)), ("k", fresh(2)), ("v", fresh(2))]);
    s.step(second);
}
