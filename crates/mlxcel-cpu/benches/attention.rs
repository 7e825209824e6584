//! What attention over the paged cache costs, alone: `cargo bench -p mlxcel-cpu --bench attention`. For each shape, type
//! and depth, the layers of a model attend one after the other, each to a cache of its own, so that nothing is served
//! from a cache that a real step would have emptied. Times are processor time of one thread, the least of several
//! rounds, since other programs on the machine lengthen it less than time of the wall. Linear layers are not part of it.

mod clock;

use mlxcel_cpu::{CpuEngine, CpuOptions, Products};
use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, Engine, Feeds, Logits, NoWeights, Program, SequenceState};
use mlxcel_ir::step::StepInputs;
use mlxcel_ir::{Bindings, Builder, DType, HostTensor, PagedBatch, PagedSpec, shape};

/// A model's attention.
struct Shape {
    name: &'static str,
    heads: usize,
    kv_heads: usize,
    width: usize,
    layers: usize,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "SmolLM2-135M", heads: 9, kv_heads: 3, width: 64, layers: 30 },
    Shape { name: "Qwen2.5-1.5B", heads: 12, kv_heads: 2, width: 128, layers: 28 },
];
const CACHES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];
/// Tokens before the step, and of the step.
const STEPS: [(usize, usize); 5] = [(512, 1), (2048, 1), (4096, 1), (0, 512), (3584, 512)];
const ROUNDS: usize = 4;

fn main() {
    println!("| shape | cache | depth | tokens | ms | cache read, GB/s | GFLOP/s |");
    println!("|---|---|---|---|---|---|---|");
    let engine =
        CpuEngine::new(CpuOptions { threads: Some(1), products: Products::Fast, ..CpuOptions::default() })
            .expect("one thread starts");
    for shape in &SHAPES {
        for cache in CACHES {
            for step in STEPS {
                report(&engine, shape, cache, step);
            }
        }
    }
}

fn report(engine: &CpuEngine, s: &Shape, cache: DType, (depth, tokens): (usize, usize)) {
    let mut program = compile(engine, s, cache, depth + tokens);
    let fed = feeds(s, engine.caps().block_size, (depth, tokens));
    // Memory that was never written to is one page of zeros, however much of it there is.
    let blocks = (depth + tokens).div_ceil(engine.caps().block_size) as u32;
    let pairs: Vec<(u32, u32)> = (0..blocks).map(|to| (blocks - 1 - to, to)).collect();
    program.copy_state("blocks", &pairs).expect("the blocks exist");
    let least = (0..ROUNDS).map(|_| clock::time(&mut *program, &fed)).min().expect("there are rounds");
    let size = cache.size().expect("a cache is plain");
    let bytes = 2 * s.layers * s.kv_heads * s.width * size * (depth + tokens);
    let pairs = tokens * depth + tokens * (tokens + 1) / 2;
    let flops = 4 * s.layers * s.heads * s.width * pairs;
    let seconds = least.as_secs_f64();
    println!(
        "| {} | {cache} | {depth} | {tokens} | {:.2} | {:.1} | {:.1} |",
        s.name,
        seconds * 1e3,
        bytes as f64 / seconds / 1e9,
        flops as f64 / seconds / 1e9
    );
}

fn compile(engine: &CpuEngine, s: &Shape, cache: DType, capacity: usize) -> Box<dyn Program> {
    let b = Builder::new();
    let batch = PagedBatch { cache: Some(cache), ..StepInputs::declare(&b).paged() };
    let q = b.input("q", DType::F32, shape!["tokens", s.heads, s.width]);
    let [k, v] = ["k", "v"].map(|name| b.input(name, DType::F32, shape!["tokens", s.kv_heads, s.width]));
    let scale = (s.width as f64).powf(-0.5);
    let spec = PagedSpec { scale, window: None, softcap: None, sinks: false, value_dim: None };
    let last = (0..s.layers)
        .fold(q, |x, layer| b.paged_attention((x, k, Some(v)), batch, None, layer, spec.clone()));
    b.output("y", last);
    let block = engine.caps().block_size;
    let sizes = [("blocks", capacity.div_ceil(block)), ("block", block)];
    let dims: Bindings = sizes.map(|(name, n)| (name.to_string(), n)).into();
    engine
        .compile(&b.finish().expect("the graph is well typed"), &NoWeights, &dims)
        .expect("the engine runs it")
}

fn feeds(s: &Shape, block: usize, (depth, tokens): (usize, usize)) -> Feeds {
    let known_len = depth + tokens;
    let blocks = (0..known_len.div_ceil(block) as u32).collect();
    let state = SequenceState { blocks, slot: 0, known_len };
    let mut batch = Batch::new(block);
    batch.push(&state, &vec![0; tokens], depth, Logits::None, &SamplingParams::default());
    let mut feeds = batch.feeds();
    for (name, heads) in [("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)] {
        let numbers: Vec<f32> =
            (0..tokens * heads * s.width).map(|i| (i * 37 % 101) as f32 * 0.02 - 1.0).collect();
        feeds.insert(name, HostTensor::new(&[tokens, heads, s.width], &numbers));
    }
    feeds
}
