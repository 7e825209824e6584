//! Checks of kernels that only run on shapes larger than those of the fixtures: products of 16-bit numbers with any number of
//! rows, and attention over long contexts with heads of 64 and 128. What is expected is computed here in f64.

use std::collections::HashMap;

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_engine::{Engine, EngineError, Feeds, Program, WeightSource};
use mlxcel_ir::{Bindings, Builder, DType, HostTensor, PagedBatch, PagedSpec, QuantFormat, ScaleType, shape};

/// Numbers that look random, always the same.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// Between -1 and 1.
    fn real(&mut self) -> f64 {
        self.next() as f64 / f64::from(1u32 << 30) - 1.0
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> HostTensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| self.real()).collect();
        HostTensor::from_f64(dtype, shape, &values)
    }
}

struct Weights(HashMap<String, WeightTensor>);

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        Ok(self.0[name].clone())
    }
}

fn apart(got: &[f64], expected: &[f64]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    assert!(got.iter().all(|x| x.is_finite()));
    let difference = norm(&mut got.iter().zip(expected).map(|(a, b)| a - b));
    difference / norm(&mut expected.iter().copied())
}

fn run(program: &mut dyn Program, feeds: &Feeds, name: &str) -> HostTensor {
    let ticket = program.submit(feeds, &[name]).expect("the step starts");
    program.collect(ticket).expect("the step ends").remove(0)
}

/// A weight in a format, and its numbers.
fn weight(numbers: &mut Numbers, dtype: DType, shape: &[usize]) -> (WeightTensor, Vec<f64>) {
    let DType::Quant(QuantFormat::Affine { group, .. }) = dtype else {
        let host = numbers.tensor(dtype, shape);
        let values = host.to_f64();
        return (WeightTensor::from_host(host), values);
    };
    let (group, k) = (usize::from(group), shape[shape.len() - 1]);
    let n = shape[..shape.len() - 1].iter().product::<usize>();
    let codes: Vec<u8> = (0..n * k).map(|_| (numbers.next() % 16) as u8).collect();
    let packed: Vec<u8> = codes.chunks(2).map(|c| c[0] | c[1] << 4).collect();
    let scales = numbers.tensor(DType::BF16, &[n, k / group]);
    let biases = numbers.tensor(DType::BF16, &[n, k / group]);
    let (s, b) = (scales.to_f64(), biases.to_f64());
    let values = codes.iter().enumerate().map(|(i, &c)| s[i / group] * f64::from(c) + b[i / group]).collect();
    let parts = vec![
        Bytes::copied(&[packed.as_slice()]),
        Bytes::copied(&[scales.bytes()]),
        Bytes::copied(&[biases.bytes()]),
    ];
    (WeightTensor::new(dtype, shape.to_vec(), parts).expect("a whole weight"), values)
}

/// Products with any number of rows are close to what f64 gives, and a row is the same to the last bit in a company of up to
/// so many.
pub fn check_products(engine: &dyn Engine, company: usize) {
    let affine = |group| DType::Quant(QuantFormat::Affine { bits: 4, group, scale: ScaleType::BF16 });
    let cases = [
        (DType::BF16, DType::BF16, 576, 200),
        (DType::BF16, DType::BF16, 2048, 1040),
        (DType::F16, DType::F16, 1088, 330),
        (DType::BF16, affine(32), 512, 100),
        (DType::BF16, affine(64), 2560, 272),
        (DType::BF16, affine(128), 1024, 50),
    ];
    for (dtype, format, k, n) in cases {
        let mut numbers = Numbers(7);
        let (tensor, values) = weight(&mut numbers, format, &[n, k]);
        let b = Builder::new();
        let x = b.input("x", dtype, shape!["tokens", k]);
        b.output("y", x.linear(b.weight("w", format, &[n, k]), None));
        let graph = b.finish().expect("a graph");
        let source = Weights(HashMap::from([("w".to_string(), tensor)]));
        let mut program = engine.compile(&graph, &source, &Bindings::new()).expect("compiles");
        let all = numbers.tensor(dtype, &[300, k]);
        let rows = all.to_f64();
        let expected: Vec<f64> = rows
            .chunks(k)
            .flat_map(|x| values.chunks(k).map(move |w| w.iter().zip(x).map(|(a, b)| a * b).sum()))
            .collect();
        let mut alone: Option<Vec<f64>> = None;
        for m in [1, 2, 7, 8, 9, 16, 17, 63, 64, 65, 128, 129, 200, 300] {
            let mut feeds = Feeds::new();
            feeds.insert("x", HostTensor::from_f64(dtype, &[m, k], &rows[..m * k]));
            let got = run(&mut *program, &feeds, "y").to_f64();
            let error = apart(&got, &expected[..m * n]);
            assert!(error < 6e-3, "{m} rows of {dtype} by {n} x {k} of {format} are off by {error:e}");
            let first = alone.get_or_insert_with(|| got[..n].to_vec());
            assert!(m > company || got[..n] == first[..], "{m} rows of {format} change the first one");
        }
    }
}

/// Rows that each choose two of several matrices, one of which nobody chooses, give what f64 gives.
pub fn check_experts(engine: &dyn Engine) {
    let affine = DType::Quant(QuantFormat::Affine { bits: 4, group: 64, scale: ScaleType::BF16 });
    for (dtype, format, is_shared) in [
        (DType::BF16, DType::BF16, true),
        (DType::BF16, DType::BF16, false),
        (DType::F16, DType::F16, true),
        (DType::BF16, affine, true),
        (DType::F16, DType::F32, false),
    ] {
        let (experts, n, k, choices) = (6usize, 200usize, 576usize, 2usize);
        let each = if is_shared { 1 } else { choices };
        let mut numbers = Numbers(13);
        let (tensor, values) = weight(&mut numbers, format, &[experts, n, k]);
        let bias = numbers.tensor(dtype, &[experts, n]);
        let b = Builder::new();
        let x = b.input("x", dtype, shape!["tokens", each, k]);
        let ids = b.input("ids", DType::I32, shape!["tokens", choices]);
        let [w, added] = [b.weight("w", format, &[experts, n, k]), b.weight("b", dtype, &[experts, n])];
        b.output("y", x.expert_linear(w, ids, Some(added)));
        let graph = b.finish().expect("a graph");
        let named = [("w", tensor), ("b", WeightTensor::from_host(bias.clone()))];
        let source = Weights(HashMap::from(named.map(|(name, t)| (name.to_string(), t))));
        let mut program = engine.compile(&graph, &source, &Bindings::new()).expect("compiles");
        let bias = bias.to_f64();
        for tokens in [1, 8, 9, 40, 300] {
            let rows = numbers.tensor(dtype, &[tokens, each, k]);
            let chosen: Vec<i32> =
                (0..tokens * choices).map(|_| [0, 1, 1, 1, 3, 5][(numbers.next() % 6) as usize]).collect();
            let x = rows.to_f64();
            let mut feeds = Feeds::new();
            feeds.insert("x", rows);
            feeds.insert("ids", HostTensor::new(&[tokens, choices], &chosen));
            let got = run(&mut *program, &feeds, "y").to_f64();
            let expected: Vec<f64> = chosen
                .iter()
                .enumerate()
                .flat_map(|(i, &id)| {
                    let x = &x[(if is_shared { i / choices } else { i }) * k..][..k];
                    let (w, bias) = (&values[id as usize * n * k..][..n * k], &bias[id as usize * n..][..n]);
                    w.chunks(k)
                        .zip(bias)
                        .map(move |(w, b)| w.iter().zip(x).map(|(a, b)| a * b).sum::<f64>() + b)
                })
                .collect();
            let error = apart(&got, &expected);
            assert!(error < 6e-3, "{tokens} tokens of {dtype} with experts of {format} are off by {error:e}");
        }
    }
}

/// Attention of prompts and of single tokens over long contexts is what f64 gives.
pub fn check_attention(engine: &dyn Engine) {
    for (dtype, width, heads, window, softcap, sinks) in [
        (DType::BF16, 128, 8, None, None, false),
        (DType::BF16, 64, 6, Some(700), None, true),
        (DType::F16, 128, 2, None, Some(3.0), false),
        (DType::F16, 64, 2, Some(100), None, false),
    ] {
        let spec = PagedSpec { scale: 0.2, window, softcap, sinks, value_dim: None };
        check_one(engine, dtype, (width, heads), &spec);
    }
}

const KV_HEADS: usize = 2;

/// Steps of two sequences: prompts in one piece, then single tokens.
fn check_one(engine: &dyn Engine, dtype: DType, (width, heads): (usize, usize), spec: &PagedSpec) {
    let (length, block) = (2300usize, engine.caps().block_size);
    let pages = length.div_ceil(block);
    let mut numbers = Numbers(11);
    let b = Builder::new();
    let input = |name: &str, heads: usize| b.input(name, dtype, shape!["tokens", heads, width]);
    let (q, k, v) = (input("q", heads), input("k", KV_HEADS), input("v", KV_HEADS));
    let of = |name: &str| b.input(name, DType::I32, shape!["tokens"]);
    let batch = PagedBatch {
        positions: of("positions"),
        seq_ids: of("seq_ids"),
        slot_mapping: of("slot_mapping"),
        block_table: b.input("block_table", DType::I32, shape!["sequences", "pages"]),
        cache: None,
    };
    let sinks = spec.sinks.then(|| b.weight("sinks", DType::F32, &[heads]));
    b.output("y", b.paged_attention((q, k, Some(v)), batch, sinks, 0, spec.clone()));
    let graph = b.finish().expect("a graph");
    let sink_values = numbers.tensor(DType::F32, &[heads]);
    let source =
        Weights(HashMap::from([("sinks".to_string(), WeightTensor::from_host(sink_values.clone()))]));
    let dims = Bindings::from([("blocks".to_string(), 2 * pages), ("block".to_string(), block)]);
    let mut program = engine.compile(&graph, &source, &dims).expect("compiles");
    let mut rows = |heads: usize| numbers.tensor(dtype, &[2 * length, heads, width]).to_f64();
    let all = [rows(heads), rows(KV_HEADS), rows(KV_HEADS)];
    // Blocks of the two sequences take turns.
    let table: Vec<i32> = (0..2 * pages).map(|i| (2 * (i % pages) + i / pages) as i32).collect();
    let mut done = 0;
    for end in [600, 1020, 1021, 1022, 1060, 2040, 2041, 2060, 2290, 2291] {
        let tokens: Vec<(usize, usize)> = (0..2).flat_map(|s| (done..end).map(move |p| (s, p))).collect();
        let mut feeds = Feeds::new();
        for ((name, values), heads) in ["q", "k", "v"].iter().zip(&all).zip([heads, KV_HEADS, KV_HEADS]) {
            let row = heads * width;
            let picked: Vec<f64> =
                tokens.iter().flat_map(|(s, p)| &values[(s * length + p) * row..][..row]).copied().collect();
            feeds.insert(name, HostTensor::from_f64(dtype, &[tokens.len(), heads, width], &picked));
        }
        let mut ints = |name: &str, of: &dyn Fn(usize, usize) -> usize| {
            let values: Vec<i32> = tokens.iter().map(|&(s, p)| of(s, p) as i32).collect();
            feeds.insert(name, HostTensor::new(&[tokens.len()], &values));
        };
        ints("positions", &|_, p| p);
        ints("seq_ids", &|s, _| s);
        ints("slot_mapping", &|s, p| table[s * pages + p / block] as usize * block + p % block);
        feeds.insert("block_table", HostTensor::new(&[2, pages], &table));
        let got = run(&mut *program, &feeds, "y").to_f64();
        for (i, &(s, p)) in tokens.iter().enumerate().filter(|(i, _)| i % 97 == 0 || i + 1 == tokens.len()) {
            let sinks = spec.sinks.then(|| sink_values.to_f64());
            let expected = attended(&all, (s * length, p), (width, heads), (spec, sinks));
            let error = apart(&got[i * heads * width..][..heads * width], &expected);
            assert!(error < 8e-3, "token {p} of {dtype} with heads of {width} is off by {error:e}");
        }
        done = end;
    }
}

/// What one token sees, in f64.
fn attended(
    [q, k, v]: &[Vec<f64>; 3],
    (base, position): (usize, usize),
    (width, heads): (usize, usize),
    (spec, sinks): (&PagedSpec, Option<Vec<f64>>),
) -> Vec<f64> {
    let first = spec.window.map_or(0, |w| (position + 1).saturating_sub(w));
    let mut out = vec![];
    for head in 0..heads {
        let kv = head / (heads / KV_HEADS);
        let query = &q[((base + position) * heads + head) * width..][..width];
        let at = |t: usize| ((base + t) * KV_HEADS + kv) * width;
        let score = |t: usize| {
            let s = query.iter().zip(&k[at(t)..][..width]).map(|(a, b)| a * b).sum::<f64>() * spec.scale;
            spec.softcap.map_or(s, |c| (s / c).tanh() * c)
        };
        let weights: Vec<f64> = (first..=position).map(|t| score(t).exp()).collect();
        let total = weights.iter().sum::<f64>() + sinks.as_ref().map_or(0.0, |s| s[head].exp());
        let mut sum = vec![0.0; width];
        for (w, t) in weights.iter().zip(first..) {
            sum.iter_mut().zip(&v[at(t)..][..width]).for_each(|(a, b)| *a += w / total * b);
        }
        out.extend(sum);
    }
    out
}
