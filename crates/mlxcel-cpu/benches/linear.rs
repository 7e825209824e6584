//! What products cost, alone: `cargo bench -p mlxcel-cpu --bench linear`. A few feed-forward blocks of a
//! model's shape run one after the other, each with weights of its own, so that nothing is served from a cache that a real
//! step would have emptied. Times are processor time of one thread, the median of several rounds, since other programs on
//! the machine lengthen it less than time of the wall. An argument chooses what it is part of: `Qwen2.5-1.5B/q8_0`.

mod clock;

use std::time::Duration;

use mlxcel_cpu::{CpuEngine, CpuOptions, Products};
use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_engine::{Engine, EngineError, Feeds, Program, WeightSource};
use mlxcel_ir::{Activation, Bindings, Builder, DType, HostTensor, shape};

/// A model's feed-forward blocks.
struct Shape {
    name: &'static str,
    hidden: usize,
    inner: usize,
    layers: usize,
    types: [&'static str; 3],
}

const SHAPES: [Shape; 2] = [
    Shape { name: "SmolLM2-135M", hidden: 576, inner: 1536, layers: 8, types: ["bf16", "q8_0", "q4_1"] },
    Shape { name: "Qwen2.5-1.5B", hidden: 1536, inner: 8960, layers: 3, types: ["bf16", "q8_0", "q4_k"] },
];
/// Tokens of a step, of which all but the last are followed by others: one drawn token, and prompts.
const TOKENS: [usize; 4] = [1, 16, 64, 512];
const ROUNDS: usize = 5;

/// Weights that are zero: products take as long with any.
struct Zeros;

impl WeightSource for Zeros {
    /// A name ends in the type, the rows and the columns.
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        let mut parts = name.rsplit('.');
        let mut next = || parts.next().expect("the name has all parts");
        let [cols, rows] = [next(), next()].map(|n| n.parse().expect("a number"));
        let dtype: DType = next().parse().expect("a type");
        let bytes = vec![0; dtype.storage_bytes(&[rows, cols]).expect("whole blocks")];
        WeightTensor::new(dtype, vec![rows, cols], vec![Bytes::copied(&[&bytes])])
            .map_err(|_| EngineError::MissingFeed { name: name.to_string() })
    }
}

fn main() {
    println!("| shape | weights | tokens | ms | GFLOP/s |");
    println!("|---|---|---|---|---|");
    let engine =
        CpuEngine::new(CpuOptions { threads: Some(1), products: Products::Fast, ..CpuOptions::default() })
            .expect("one thread starts");
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    for shape in &SHAPES {
        for dtype in shape.types {
            let name = format!("{}/{dtype}", shape.name);
            if !wanted.iter().all(|part| name.contains(part)) {
                continue;
            }
            let mut program = compile(&engine, shape, dtype);
            for tokens in TOKENS {
                report(&mut *program, shape, (dtype, tokens));
            }
        }
    }
}

fn report(program: &mut dyn Program, s: &Shape, (dtype, tokens): (&str, usize)) {
    let fed = feeds(s, tokens);
    let mut times: Vec<Duration> = (0..=ROUNDS).map(|_| clock::time(program, &fed)).skip(1).collect();
    times.sort();
    let seconds = times[ROUNDS / 2].as_secs_f64();
    let flops = 2 * 3 * s.hidden * s.inner * s.layers * tokens;
    println!(
        "| {} | {dtype} | {tokens} | {:.2} | {:.0} |",
        s.name,
        seconds * 1e3,
        flops as f64 / seconds / 1e9
    );
}

fn compile(engine: &CpuEngine, s: &Shape, dtype: &str) -> Box<dyn Program> {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", s.hidden]);
    let stored: DType = dtype.parse().expect("a type");
    let weight = |name: String, rows: usize, cols: usize| {
        b.weight(&format!("{name}.{dtype}.{rows}.{cols}"), stored, &[rows, cols])
    };
    let last = (0..s.layers).fold(x, |x, layer| {
        let gate = x.linear(weight(format!("gate{layer}"), s.inner, s.hidden), None);
        let up = x.linear(weight(format!("up{layer}"), s.inner, s.hidden), None);
        let inner = gate.activation(Activation::Silu) * up;
        inner.linear(weight(format!("down{layer}"), s.hidden, s.inner), None)
    });
    b.output("y", last);
    engine
        .compile(&b.finish().expect("the graph is well typed"), &Zeros, &Bindings::new())
        .expect("the engine runs it")
}

fn feeds(s: &Shape, tokens: usize) -> Feeds {
    let mut feeds = Feeds::new();
    let numbers: Vec<f32> = (0..tokens * s.hidden).map(|i| (i * 37 % 101) as f32 * 0.02 - 1.0).collect();
    feeds.insert("x", HostTensor::new(&[tokens, s.hidden], &numbers));
    let positions: Vec<i32> = (0..tokens as i32).collect();
    feeds.insert("positions", HostTensor::new(&[tokens], &positions));
    feeds.insert("known_lens", HostTensor::new(&[tokens], &vec![tokens as i32; tokens]));
    feeds
}
