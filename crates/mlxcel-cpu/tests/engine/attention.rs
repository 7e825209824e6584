//! Dense and paged attention: masks, windows, caps, sinks, and invariance under chunking and company.

use mlxcel_cpu::{CpuEngine, CpuOptions, Products, SimdLevel};
use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, Engine, Logits, ReferenceEngine, SequenceState};
use mlxcel_ir::step::StepInputs;
use mlxcel_ir::{
    AttentionSpec, Bindings, Builder, DType, Graph, HostTensor, Op, PagedBatch, PagedSpec, Type, shape,
};

use crate::support::{Case, Random, Weights, assert_close, engines_with, step};

fn dense_spec() -> AttentionSpec {
    AttentionSpec { scale: 0.3, causal: false, window: None, softcap: None, mask: false, sinks: false }
}

fn dense_specs() -> Vec<AttentionSpec> {
    let s = dense_spec();
    vec![
        s.clone(),
        AttentionSpec { causal: true, ..s.clone() },
        AttentionSpec { window: Some(3), ..s.clone() },
        AttentionSpec { causal: true, window: Some(5), softcap: Some(2.0), ..s.clone() },
        AttentionSpec { causal: true, sinks: true, ..s },
    ]
}

#[test]
fn dense_attention_is_its_decomposition() {
    let mut r = Random(61);
    for d in [DType::F32, DType::F64, DType::BF16] {
        for (queries, keys, heads, kv, width, value) in [
            (5, 5, 4, 2, 8, 8),
            (1, 40, 6, 2, 20, 12),
            (33, 50, 3, 3, 16, 32),
            (6, 3, 2, 1, 5, 7),
            (0, 4, 2, 2, 8, 8),
        ] {
            for (i, spec) in dense_specs().into_iter().enumerate() {
                let b = Builder::new();
                let q = b.input("q", d, shape![2, "queries", heads, width]);
                let k = b.input("k", d, shape![2, "keys", kv, width]);
                let v = b.input("v", d, shape![2, "keys", kv, value]);
                let keep = b.input("keep", DType::Bool, shape![2, 1, "queries", "keys"]);
                let bias = b.input("bias", d, shape![heads, 1, "keys"]);
                let sinks = spec.sinks.then(|| b.input("sinks", d, shape![heads]));
                for (name, mask) in [("plain", None), ("bool", Some(keep)), ("float", Some(bias))] {
                    b.output(name, b.attention([q, k, v], mask, sinks, spec.clone()));
                }
                let case = Case::new(b).feed("q", r.tensor(d, &[2, queries, heads, width]));
                let case = case.feed("k", r.tensor(d, &[2, keys, kv, width]));
                let case =
                    case.feed("v", r.tensor(d, &[2, keys, kv, value])).feed("sinks", r.tensor(d, &[heads]));
                let case = case.feed("keep", r.tensor(DType::Bool, &[2, 1, queries, keys]));
                let case = case.feed("bias", r.tensor(d, &[heads, 1, keys]));
                case.check(&format!("{d}, {queries} queries, {keys} keys, spec {i}"));
            }
        }
    }
}

/// Engines of every instruction set, with both kinds of products, of which one scores the last tokens by dots.
fn engines() -> impl Iterator<Item = CpuEngine> {
    [Products::Exact, Products::Fast].into_iter().flat_map(engines_with)
}

struct Shape {
    heads: usize,
    kv: usize,
    width: usize,
    value: usize,
}

/// A graph whose activations and cache have types of their own.
fn paged_graph((d, cache): (DType, DType), s: &Shape, spec: &PagedSpec) -> Graph {
    let b = Builder::new();
    let inputs = StepInputs::declare(&b);
    let q = b.input("q", d, shape!["tokens", s.heads, s.width]);
    let k = b.input("k", d, shape!["tokens", s.kv, s.width]);
    let v = spec.value_dim.is_none().then(|| b.input("v", d, shape!["tokens", s.kv, s.value]));
    let sinks = spec.sinks.then(|| b.weight("sinks", d, &[s.heads]));
    let batch = PagedBatch { cache: Some(cache), ..inputs.paged() };
    b.output("y", b.paged_attention((q, k, v), batch, sinks, 0, spec.clone()));
    b.finish().unwrap()
}

fn paged_specs() -> Vec<PagedSpec> {
    let s = PagedSpec { scale: 0.25, window: None, softcap: None, sinks: false, value_dim: None };
    vec![
        s.clone(),
        PagedSpec { window: Some(6), ..s.clone() },
        PagedSpec { softcap: Some(1.5), sinks: true, ..s.clone() },
        PagedSpec { value_dim: Some(10), ..s },
    ]
}

/// One sequence's tokens: where its state is and the rows of q, k and v that belong to it.
struct Sequence {
    state: SequenceState,
    first: usize,
}

/// A step of some tokens of each sequence: `(sequence, start, count)`.
fn feeds(
    sequences: &[Sequence],
    chunks: &[(usize, usize, usize)],
    block: usize,
    tensors: &[(&str, &HostTensor)],
) -> mlxcel_engine::Feeds {
    let mut batch = Batch::new(block);
    let mut rows = vec![];
    for &(s, start, count) in chunks {
        batch.push(&sequences[s].state, &vec![1; count], start, Logits::None, &SamplingParams::default());
        rows.extend((start..start + count).map(|i| sequences[s].first + i));
    }
    let mut feeds = batch.feeds();
    for (name, t) in tensors {
        let row: usize = t.shape()[1..].iter().product();
        let all = t.to_f64();
        let picked: Vec<f64> = rows.iter().flat_map(|&r| all[r * row..(r + 1) * row].to_vec()).collect();
        let shape = [&[rows.len()], &t.shape()[1..]].concat();
        feeds.insert(name, HostTensor::from_f64(t.dtype(), &shape, &picked));
    }
    feeds
}

fn sequences() -> Vec<Sequence> {
    vec![
        Sequence { state: SequenceState { blocks: vec![3, 9, 1, 7], slot: 0, known_len: 40 }, first: 0 },
        Sequence { state: SequenceState { blocks: vec![2, 8, 0, 5], slot: 0, known_len: 23 }, first: 45 },
    ]
}

#[test]
fn paged_attention_over_ragged_steps_is_its_decomposition() {
    let mut r = Random(62);
    let steps: [&[(usize, usize, usize)]; 4] =
        [&[(0, 0, 20)], &[(0, 20, 1), (1, 0, 22)], &[(1, 22, 1), (0, 21, 24)], &[]];
    let same = [DType::F32, DType::BF16, DType::F64].map(|d| (d, d));
    let narrow = [DType::F16, DType::BF16, DType::I8].map(|cache| (DType::F32, cache));
    for types in same.into_iter().chain(narrow) {
        let d = types.0;
        for s in [
            Shape { heads: 6, kv: 2, width: 16, value: 32 },
            Shape { heads: 3, kv: 3, width: 12, value: 12 },
            // More heads than are read side by side, and more lines of each than share registers.
            Shape { heads: 24, kv: 3, width: 208, value: 16 },
        ] {
            for (i, spec) in paged_specs().iter().enumerate() {
                let graph = paged_graph(types, &s, spec);
                let mut weights = Weights::default();
                weights.add("sinks", r.weight(d, &[s.heads]));
                let q = r.tensor(d, &[68, s.heads, s.width]);
                // Numbers that the cache holds exactly: how casts round is not for this test.
                let mut kept = |width: usize| {
                    let shape = [68, s.kv, width];
                    let mut numbers = r.tensor(types.1, &shape).to_f64();
                    if types.1 == DType::I8 {
                        // Codes whose largest is the largest of the type, with steps of all kinds.
                        for (i, row) in numbers.chunks_mut(width).enumerate() {
                            row[i % width] = 127.0;
                            let step = ((i % 24) as f64 / 8.0 - 8.0).exp2();
                            row.iter_mut().for_each(|x| *x = x.max(-127.0) * step);
                        }
                    }
                    HostTensor::from_f64(d, &shape, &numbers)
                };
                let (k, v) = (kept(s.width), kept(s.value));
                let tensors = [("q", &q), ("k", &k), ("v", &v)];
                let dims = Bindings::from([("blocks".into(), 12), ("block".into(), 16)]);
                // What a cache of codes holds exactly is the same in one of floats.
                let floats = if types.1 == DType::I8 { DType::F32 } else { types.1 };
                let as_floats = paged_graph((d, floats), &s, spec);
                let mut reference = ReferenceEngine.compile(&as_floats, &weights, &dims).unwrap();
                let fed: Vec<_> = steps.iter().map(|c| feeds(&sequences(), c, 16, &tensors)).collect();
                let expected: Vec<_> = fed.iter().map(|f| step(&mut *reference, f, &["y"])).collect();
                let engines = engines().map(|e| Box::new(e) as Box<dyn Engine>);
                for engine in engines.chain([Box::new(ReferenceEngine) as Box<dyn Engine>]) {
                    if d == DType::F32 && engine.caps().name == "cpu" {
                        let paged = graph.nodes().iter().find(|n| matches!(n.op, Op::PagedAttention(_)));
                        let paged = paged.expect("the graph attends");
                        let operands: Vec<Type> = paged.inputs.iter().map(|v| graph.ty(*v).clone()).collect();
                        assert!(engine.native(&paged.op, &operands), "{types:?} has no kernel");
                    }
                    let mut program = engine.compile(&graph, &weights, &dims).unwrap();
                    for (n, (f, e)) in fed.iter().zip(&expected).enumerate() {
                        let found = step(&mut *program, f, &["y"]);
                        let what = format!("{types:?}, spec {i}, step {n}, {}", engine.caps().device);
                        assert_close(&found[0], &e[0], &what);
                    }
                }
            }
        }
    }
}

/// The results of sequence 0, computed in chunks with or without company.
fn chunked(engine: &CpuEngine, chunk: usize, company: bool) -> Vec<u8> {
    let mut r = Random(63);
    let s = Shape { heads: 6, kv: 2, width: 16, value: 16 };
    let spec = PagedSpec { scale: 0.25, window: Some(37), softcap: None, sinks: false, value_dim: None };
    let graph = paged_graph((DType::F32, DType::F32), &s, &spec);
    let [q, k, v] = [s.heads, s.kv, s.kv].map(|h| r.tensor(DType::F32, &[68, h, 16]));
    let tensors = [("q", &q), ("k", &k), ("v", &v)];
    let dims = Bindings::from([("blocks".into(), 12), ("block".into(), 16)]);
    let mut program = engine.compile(&graph, &Weights::default(), &dims).unwrap();
    let mut out = vec![];
    for start in (0..45).step_by(chunk) {
        let count = chunk.min(45 - start);
        let mut chunks = vec![];
        if company && start < 23 {
            chunks.push((1, start, count.min(23 - start)));
        }
        chunks.push((0, start, count));
        let y = step(&mut *program, &feeds(&sequences(), &chunks, 16, &tensors), &["y"]).remove(0);
        let bytes = count * 6 * 16 * 4;
        out.extend_from_slice(&y.bytes()[y.bytes().len() - bytes..]);
    }
    out
}

#[test]
fn a_token_does_not_depend_on_chunks_or_company() {
    for engine in engines() {
        let whole = chunked(&engine, 45, false);
        for chunk in [1, 5, 16, 45] {
            for company in [false, true] {
                let device = engine.caps().device;
                assert!(
                    chunked(&engine, chunk, company) == whole,
                    "chunks of {chunk}, company {company}, {device}"
                );
            }
        }
    }
}

/// Tokens of a long sequence, of which the last 60 are drawn.
const TOKENS: usize = 700;
const LONG: Shape = Shape { heads: 6, kv: 2, width: 32, value: 48 };
const WIDE: Shape = Shape { heads: 4, kv: 2, width: 96, value: 64 };
const PLAIN: PagedSpec =
    PagedSpec { scale: 0.25, window: None, softcap: None, sinks: false, value_dim: None };

/// The results of a long sequence, the prompt cut at `cuts`.
fn long(engine: &CpuEngine, cache: DType, cuts: &[usize]) -> Vec<u8> {
    long_with(engine, (cache, &LONG), (&PLAIN, |_| {}), cuts)
}

/// The same with some specification and changed values.
fn long_with(
    engine: &CpuEngine,
    (cache, s): (DType, &Shape),
    (spec, change): (&PagedSpec, impl Fn(&mut [f64])),
    cuts: &[usize],
) -> Vec<u8> {
    let mut r = Random(64);
    let graph = paged_graph((DType::F32, cache), s, spec);
    let q = r.tensor(DType::F32, &[TOKENS, s.heads, s.width]);
    let k = r.tensor(DType::F32, &[TOKENS, s.kv, s.width]);
    let mut v = r.tensor(DType::F32, &[TOKENS, s.kv, s.value]).to_f64();
    change(&mut v);
    let v = HostTensor::from_f64(DType::F32, &[TOKENS, s.kv, s.value], &v);
    let mut weights = Weights::default();
    weights.add("sinks", r.weight(DType::F32, &[s.heads]));
    let tensors = [("q", &q), ("k", &k), ("v", &v)];
    let state = SequenceState { blocks: (0..44).rev().collect(), slot: 0, known_len: TOKENS - 60 };
    let sequences = [Sequence { state, first: 0 }];
    let dims = Bindings::from([("blocks".into(), 44), ("block".into(), 16)]);
    let mut program = engine.compile(&graph, &weights, &dims).unwrap();
    let mut out = vec![];
    for (i, &start) in cuts.iter().enumerate() {
        let count = cuts.get(i + 1).unwrap_or(&TOKENS) - start;
        let fed = feeds(&sequences, &[(0, start, count)], 16, &tensors);
        out.extend_from_slice(step(&mut *program, &fed, &["y"])[0].bytes());
    }
    out
}

#[test]
fn a_long_sequence_does_not_depend_on_chunks_or_threads() {
    for level in SimdLevel::available() {
        for (cache, products) in [
            (DType::F32, Products::Exact),
            (DType::F16, Products::Exact),
            (DType::F16, Products::Fast),
            (DType::I8, Products::Fast),
        ] {
            let engine = |threads: usize| {
                CpuEngine::new(CpuOptions {
                    threads: Some(threads),
                    level: Some(level),
                    products,
                    ..CpuOptions::default()
                })
                .unwrap()
            };
            let whole = long(&engine(1), cache, &[0]);
            for threads in [1, 2, 5] {
                for cuts in [&[0, 699][..], &[0, 255, 256, 257, 640], &[0, 511, 513, 698, 699]] {
                    let found = long(&engine(threads), cache, cuts);
                    assert!(found == whole, "{level}, {cache}, {threads} threads, chunks at {cuts:?}");
                }
            }
        }
    }
}

/// Engines that round prompts and that do not, where there are tiles.
fn tiled() -> Option<[CpuEngine; 2]> {
    let level = SimdLevel::available().into_iter().find(|&l| l == SimdLevel::Amx)?;
    Some([Products::Fast, Products::Exact].map(|products| {
        CpuEngine::new(CpuOptions { threads: Some(2), level: Some(level), products, ..CpuOptions::default() })
            .unwrap()
    }))
}

#[test]
fn prompts_in_tiles_are_near_what_is_exact() {
    let Some([fast, exact]) = tiled() else { return };
    let specs = [
        PLAIN,
        PagedSpec { window: Some(70), ..PLAIN },
        PagedSpec { softcap: Some(1.5), sinks: true, ..PLAIN },
    ];
    let latent = PagedSpec { value_dim: Some(48), ..PLAIN };
    let cases = specs.iter().flat_map(|spec| [(&LONG, spec), (&WIDE, spec)]).chain([(&WIDE, &latent)]);
    for (s, spec) in cases {
        for cache in [DType::F16, DType::BF16, DType::I8] {
            let told =
                |engine: &CpuEngine, cuts: &[usize]| long_with(engine, (cache, s), (spec, |_| {}), cuts);
            let found = told(&fast, &[0]);
            assert!(told(&fast, &[0, 255, 300, 301]) == found, "{cache}, {spec:?} in chunks");
            let numbers = |bytes: Vec<u8>| -> Vec<f32> {
                bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
            };
            let (found, expected) = (numbers(found), numbers(told(&exact, &[0])));
            let largest = expected.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off > 1e-4 * largest && off < 2e-2 * largest, "{cache}, {spec:?}: {off} of {largest}");
        }
    }
}

#[test]
fn values_that_are_not_finite_reach_only_tokens_that_see_them() {
    let Some([fast, _]) = tiled() else { return };
    let plain = long(&fast, DType::F16, &[0]);
    let broken = 300;
    let row = LONG.heads * LONG.value * 4;
    let of_token = |v: &mut [f64]| v[broken * LONG.kv * LONG.value] = f64::INFINITY;
    for cuts in [&[0][..], &[0, 299, 310]] {
        let found = long_with(&fast, (DType::F16, &LONG), (&PLAIN, of_token), cuts);
        assert!(found[..broken * row] == plain[..broken * row], "{cuts:?}");
        let (after, all) = (&found[broken * row..], &plain[broken * row..]);
        // Heads of the first KV head have it in their first column.
        for (i, (found, plain)) in after.as_chunks::<4>().0.iter().zip(all.as_chunks::<4>().0).enumerate() {
            let (head, column) = (i / LONG.value % LONG.heads, i % LONG.value);
            let is_reached = head < LONG.heads / LONG.kv && column == 0;
            assert_eq!(f32::from_le_bytes(*found) == f32::INFINITY, is_reached, "{cuts:?}, {i}");
            assert!(is_reached || found == plain, "{cuts:?}, {i}");
        }
    }
}

#[test]
fn a_long_sequence_is_its_decomposition() {
    let mut r = Random(65);
    for queries in [1, 130] {
        let b = Builder::new();
        let q = b.input("q", DType::F32, shape![1, "queries", 6, 32]);
        let k = b.input("k", DType::F32, shape![1, "keys", 2, 32]);
        let v = b.input("v", DType::F32, shape![1, "keys", 2, 48]);
        let sinks = b.input("sinks", DType::F32, shape![6]);
        for (name, window) in [("plain", None), ("window", Some(300))] {
            let spec = AttentionSpec { causal: true, window, sinks: true, ..dense_spec() };
            b.output(name, b.attention([q, k, v], None, Some(sinks), spec));
        }
        let case = Case::new(b).feed("q", r.tensor(DType::F32, &[1, queries, 6, 32]));
        let case = case.feed("k", r.tensor(DType::F32, &[1, 600, 2, 32]));
        let case = case.feed("v", r.tensor(DType::F32, &[1, 600, 2, 48]));
        case.feed("sinks", r.tensor(DType::F32, &[6])).check(&format!("{queries} queries"));
    }
}

/// A graph that rotates what it attends to; if others are to read that too, it is rotated by steps of its own.
fn rotated_graph(cache: DType, op: &Op, (frequencies, are_read): (usize, bool)) -> Graph {
    let b = Builder::new();
    let inputs = StepInputs::declare(&b);
    // Heads of queries, keys and values, as one product leaves them.
    let x = b.input("x", DType::F32, shape!["tokens", 6 + 2 + 2, 32]);
    let (q, k, v) = (x.slice(1, 0, 6), x.slice(1, 6, 8), x.slice(1, 8, 10));
    let all = b.input("frequencies", DType::F32, shape!["tokens", 16]);
    let q = q.rope(inputs.positions, all, op.clone());
    let k = k.rope(inputs.positions, b.weight("f", DType::F32, &[frequencies]), op.clone());
    let batch = PagedBatch { cache: Some(cache), ..inputs.paged() };
    b.output("y", b.paged_attention((q, k, Some(v)), batch, None, 0, PLAIN));
    if are_read {
        b.output("q", q);
        b.output("k", k);
    }
    b.finish().unwrap()
}

#[test]
fn rotations_within_attention_have_the_bits_of_separate_ones() {
    let mut r = Random(66);
    let x = r.tensor(DType::F32, &[68, 10, 32]);
    let of_tokens = r.tensor(DType::F32, &[68, 16]);
    let tensors = [("x", &x), ("frequencies", &of_tokens)];
    let steps: [&[(usize, usize, usize)]; 3] =
        [&[(0, 0, 38)], &[(0, 38, 1), (1, 0, 22)], &[(1, 22, 1), (0, 39, 6)]];
    let fed = steps.map(|chunks| feeds(&sequences(), chunks, 16, &tensors));
    let dims = Bindings::from([("blocks".into(), 12), ("block".into(), 16)]);
    for (interleaved, frequencies) in [(false, 16), (true, 16), (false, 11), (true, 6)] {
        let op = Op::Rope { interleaved, scale: 1.25 };
        let mut weights = Weights::default();
        weights.add("f", r.weight(DType::F32, &[frequencies]));
        for (cache, engine) in
            [DType::F32, DType::F16, DType::I8].into_iter().flat_map(|d| engines().map(move |e| (d, e)))
        {
            let run = |are_read: bool| {
                let graph = rotated_graph(cache, &op, (frequencies, are_read));
                let mut program = engine.compile(&graph, &weights, &dims).unwrap();
                fed.each_ref().map(|f| step(&mut *program, f, &["y"]).remove(0))
            };
            let device = engine.caps().device;
            assert!(run(false) == run(true), "{op:?} of {frequencies}, {cache}, {device}");
        }
    }
}
