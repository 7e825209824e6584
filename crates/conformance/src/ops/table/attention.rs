//! Dense attention: every kind of mask, shared heads, soft caps and sinks, alone and together.

use mlxcel_ir::{AttentionSpec, DType, Tensor, shape};

use super::{Sketch, Table};

#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: (usize, usize),
    dims: (usize, usize),
}

const SMALL: Shape = Shape { batch: 2, queries: 5, keys: 5, heads: (4, 2), dims: (8, 8) };
const PREFILL: Shape = Shape { batch: 1, queries: 64, keys: 64, heads: (9, 3), dims: (64, 64) };
const DECODE: Shape = Shape { batch: 1, queries: 1, keys: 200, heads: (9, 3), dims: (64, 64) };

pub(super) fn plain(scale: f64) -> AttentionSpec {
    AttentionSpec { scale, causal: false, window: None, softcap: None, mask: false, sinks: false }
}

fn causal() -> AttentionSpec {
    AttentionSpec { causal: true, ..plain(0.125) }
}

#[derive(Clone, Copy, PartialEq)]
enum Mask {
    None,
    Keep,
    Bias,
}

pub(super) fn add(t: &mut Table) {
    let mut row = |name: &str, shape: Shape, spec: AttentionSpec, mask: Mask| {
        t.floats(name, |s, dtype| one(s, dtype, (shape, spec.clone()), mask));
    };
    row("full", SMALL, plain(0.3), Mask::None);
    row("causal", SMALL, causal(), Mask::None);
    row("causal prefill of a model", PREFILL, causal(), Mask::None);
    row("causal decode of a model", DECODE, causal(), Mask::None);
    row("causal chunk behind a cache", Shape { queries: 7, keys: 71, ..PREFILL }, causal(), Mask::None);
    let window = AttentionSpec { window: Some(4), ..causal() };
    row("window", Shape { queries: 11, keys: 11, ..SMALL }, window.clone(), Mask::None);
    row(
        "window when decoding behind a cache",
        Shape { queries: 1, keys: 13, ..SMALL },
        window.clone(),
        Mask::None,
    );
    row(
        "window of a chunk behind a cache",
        Shape { queries: 3, keys: 13, ..SMALL },
        window.clone(),
        Mask::None,
    );
    row("window of one", SMALL, AttentionSpec { window: Some(1), ..causal() }, Mask::None);
    row("window wider than the keys", SMALL, AttentionSpec { window: Some(100), ..causal() }, Mask::None);
    row(
        "window both ways",
        Shape { queries: 7, keys: 7, ..SMALL },
        AttentionSpec { causal: false, ..window.clone() },
        Mask::None,
    );
    row("window decode of a model", DECODE, AttentionSpec { window: Some(64), ..causal() }, Mask::None);
    row("kept by a mask", SMALL, plain(0.3), Mask::Keep);
    row("biased by a mask", SMALL, plain(0.3), Mask::Bias);
    row("causal and kept by a mask", SMALL, causal(), Mask::Keep);
    row("causal and biased by a mask", SMALL, causal(), Mask::Bias);
    row("soft cap", SMALL, AttentionSpec { softcap: Some(1.5), scale: 2.0, ..causal() }, Mask::None);
    row(
        "soft cap of a model",
        DECODE,
        AttentionSpec { softcap: Some(5.0), scale: 1.0, ..causal() },
        Mask::None,
    );
    row("sinks", SMALL, AttentionSpec { sinks: true, ..causal() }, Mask::None);
    row("sinks of a model", DECODE, AttentionSpec { sinks: true, window: Some(128), ..causal() }, Mask::None);
    row("one key head", Shape { heads: (5, 1), ..SMALL }, causal(), Mask::None);
    row("a key head each", Shape { heads: (3, 3), dims: (20, 20), ..SMALL }, causal(), Mask::None);
    row("narrow values", Shape { dims: (12, 7), ..SMALL }, causal(), Mask::None);
    row("wide values", Shape { dims: (6, 33), ..SMALL }, causal(), Mask::None);
    row(
        "an encoder",
        Shape { batch: 2, queries: 16, keys: 16, heads: (12, 12), dims: (32, 32) },
        plain(0.177),
        Mask::Keep,
    );
    let everything = AttentionSpec { window: Some(6), softcap: Some(3.0), sinks: true, ..causal() };
    row(
        "everything",
        Shape { queries: 3, keys: 17, heads: (6, 2), dims: (10, 14), ..SMALL },
        everything,
        Mask::Bias,
    );
    t.case("symbolic lengths", symbolic);
    t.case("masks that broadcast", broadcast_masks);
}

fn input<'g>(s: &'g Sketch, name: &str, dtype: DType, shape: [usize; 4]) -> Tensor<'g> {
    s.normal_input(name, dtype, &shape)
}

fn one(s: &Sketch, dtype: DType, (shape, spec): (Shape, AttentionSpec), mask: Mask) {
    let Shape { batch, queries, keys, heads, dims } = shape;
    let q = input(s, "q", dtype, [batch, queries, heads.0, dims.0]);
    let k = input(s, "k", dtype, [batch, keys, heads.1, dims.0]);
    let v = input(s, "v", dtype, [batch, keys, heads.1, dims.1]);
    let full = [batch, heads.0, queries, keys];
    let mask = match mask {
        Mask::None => None,
        Mask::Keep => Some(s.input("mask", s.whole(DType::Bool, &full, (0, 2)))),
        Mask::Bias => Some(input(s, "mask", dtype, full)),
    };
    let sinks = spec.sinks.then(|| s.normal_input("sinks", dtype, &[heads.0]));
    s.output("y", s.b().attention([q, k, v], mask, sinks, spec));
}

fn symbolic(s: &Sketch) {
    let q = s.input_as("q", shape![1, "queries", 4, 8], s.normal(DType::F32, &[1, 6, 4, 8]));
    let k = s.input_as("k", shape![1, "keys", 2, 8], s.normal(DType::F32, &[1, 6, 2, 8]));
    let spec = AttentionSpec { window: Some(5), ..causal() };
    s.output("y", s.b().attention([q, k, k], None, None, spec));
    for (queries, keys) in [(1, 7), (3, 20), (1, 64)] {
        let fresh = |n: usize, heads: usize| s.normal(DType::F32, &[1, n, heads, 8]);
        s.step(vec![("q", fresh(queries, 4)), ("k", fresh(keys, 2))]);
    }
}

fn broadcast_masks(s: &Sketch) {
    let q = input(s, "q", DType::F32, [2, 3, 4, 8]);
    let k = input(s, "k", DType::F32, [2, 6, 2, 8]);
    let keys = s.input("keys", s.whole(DType::Bool, &[2, 1, 1, 6], (0, 2)));
    let plane = s.input("plane", s.whole(DType::Bool, &[3, 6], (0, 2)));
    let heads = s.input("heads", s.normal(DType::F32, &[4, 1, 6]));
    let nothing = s.input("nothing", s.whole(DType::Bool, &[1, 1, 3, 6], (0, 1)));
    for (name, mask) in [("keys", keys), ("plane", plane), ("heads", heads), ("nothing", nothing)] {
        s.output(name, s.b().attention([q, k, k], Some(mask), None, plain(0.3)));
    }
}
