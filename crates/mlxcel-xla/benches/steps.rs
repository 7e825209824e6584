//! Speeds of a checkpoint on any plugin: `steps PLUGIN DEVICE CHECKPOINT TYPE [TOKENS [forced]]`. Prefill of 2048 tokens,
//! then decodes of one and of 64 streams behind prompts of 128 tokens, greedy. TOKENS is a file of two lines of ids, a
//! prompt and what another runtime answered; then only those are compared, and ours are printed. With `forced` every step
//! is fed the other's token, so that one that differs does not change those after it. Prints one line per figure. In a
//! build with the feature `iree`, PLUGIN may be IREE's compiler, `libIREECompiler.so` or `iree-compile`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::weights::Checkpoint;
use mlxcel_engine::{Batch, Engine as _, Logits, Program, SequenceState, step};
use mlxcel_ir::{Bindings, DType};
use mlxcel_xla::pjrt::{PjrtExecutor, PjrtOptions};
use mlxcel_xla::{Executor, XlaEngine, XlaOptions};

const PROMPT: usize = 128;
const DECODED: usize = 96;

struct Bench {
    program: Box<dyn Program>,
    block: usize,
}

impl Bench {
    fn state(&self, index: usize, room: usize) -> SequenceState {
        let each = room.div_ceil(self.block) as u32;
        let blocks = (0..each).map(|b| index as u32 * each + b).collect();
        SequenceState { blocks, slot: index as u32, known_len: 0 }
    }

    fn run(&mut self, batch: &Batch) -> Vec<u32> {
        let ticket = self.program.submit(&batch.feeds(), &[step::SAMPLED]).expect("the step starts");
        let out = self.program.collect(ticket).expect("the step ends");
        out[0].to_i64().iter().map(|t| *t as u32).collect()
    }

    fn prefill(&mut self, prompt: &[u32], index: usize, room: usize) -> u32 {
        let mut batch = Batch::new(self.block);
        batch.push(&self.state(index, room), prompt, 0, Logits::Last, &greedy());
        self.run(&batch)[0]
    }

    /// Tokens that follow, for each of several sequences.
    fn decode(&mut self, last: &mut [u32], start: usize, room: usize) {
        let mut batch = Batch::new(self.block);
        for (i, token) in last.iter().enumerate() {
            batch.push(&self.state(i, room), &[*token], start, Logits::Last, &greedy());
        }
        last.copy_from_slice(&self.run(&batch));
    }
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

fn prompt(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + 11) % 30_000) as u32).collect()
}

fn compare(bench: &mut Bench, file: &Path, is_forced: bool) {
    let text = std::fs::read_to_string(file).expect("the tokens can be read");
    let ids = |line: &str| line.split_whitespace().map(|t| t.parse().expect("an id")).collect::<Vec<u32>>();
    let lines: Vec<Vec<u32>> = text.lines().map(ids).collect();
    let (prompt, expected) = (&lines[0], &lines[1]);
    let room = prompt.len() + expected.len();
    let mut ours = vec![bench.prefill(prompt, 0, room)];
    for i in 1..expected.len() {
        let mut last = [if is_forced { expected[i - 1] } else { ours[i - 1] }];
        bench.decode(&mut last, prompt.len() + i - 1, room);
        ours.push(last[0]);
    }
    let equal = ours.iter().zip(expected).filter(|(a, b)| a == b).count();
    println!("tokens equal: {equal}/{}", expected.len());
    println!("ours: {}", ours.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
}

fn measure(bench: &mut Bench) {
    let long = prompt(2048, 1);
    bench.prefill(&long, 0, 2048);
    let start = Instant::now();
    let times = 5;
    for _ in 0..times {
        bench.prefill(&long, 0, 2048);
    }
    println!("prefill 2048: {:.0} tok/s", times as f64 * 2048.0 / start.elapsed().as_secs_f64());
    for streams in [1, 64] {
        let room = PROMPT + DECODED;
        let mut last: Vec<u32> = (0..streams).map(|i| bench.prefill(&prompt(PROMPT, i), i, room)).collect();
        let warm = 8;
        (0..warm).for_each(|i| bench.decode(&mut last, PROMPT + i, room));
        let start = Instant::now();
        (warm..DECODED).for_each(|i| bench.decode(&mut last, PROMPT + i, room));
        let tokens = (DECODED - warm) * streams;
        println!("decode {streams}: {:.0} tok/s", tokens as f64 / start.elapsed().as_secs_f64());
    }
}

/// IREE, where the file is its compiler.
#[cfg(feature = "iree")]
fn iree(plugin: &Path, device: &str) -> Option<Arc<dyn Executor>> {
    use mlxcel_xla::iree::{Compiler, IreeExecutor, IreeOptions};
    plugin.file_name().filter(|name| name.to_string_lossy().to_lowercase().contains("iree"))?;
    let compiler = Compiler::open(plugin).expect("the compiler opens");
    let device = device.parse().expect("a device");
    let options = IreeOptions { device, ..IreeOptions::default() };
    Some(Arc::new(IreeExecutor::open(compiler, &options).expect("the device opens")))
}

#[cfg(not(feature = "iree"))]
fn iree(_: &Path, _: &str) -> Option<Arc<dyn Executor>> {
    None
}

fn pjrt(plugin: &Path, device: &str) -> Arc<dyn Executor> {
    let options = PjrtOptions { device: device.to_string(), ..PjrtOptions::default() };
    Arc::new(PjrtExecutor::open(plugin, &options).expect("the plugin opens"))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [plugin, device, checkpoint, dtype, rest @ ..] = arguments.as_slice() else {
        eprintln!("steps PLUGIN DEVICE CHECKPOINT TYPE [TOKENS [forced]]");
        return;
    };
    let dtype: DType = dtype.parse().expect("an element type");
    let plugin = Path::new(plugin);
    let executor = iree(plugin, device).unwrap_or_else(|| pjrt(plugin, device));
    let engine = XlaEngine::new(executor, XlaOptions::default());
    let checkpoint = Checkpoint::open(Path::new(checkpoint)).expect("a checkpoint");
    let model = mlxcel_models::load(&checkpoint, dtype).expect("a model");
    let block = engine.caps().block_size;
    let blocks = (64 * (PROMPT + DECODED)).max(4096).div_ceil(block);
    let dims = [("blocks", blocks), ("block", block), ("slots", 64)].map(|(n, v)| (n.to_string(), v));
    let start = Instant::now();
    let program = engine.compile(&model.graph, &checkpoint, &Bindings::from(dims)).expect("compiles");
    println!("{}: loaded in {:.1} s", engine.caps().device, start.elapsed().as_secs_f64());
    let mut bench = Bench { program, block };
    match rest.first() {
        Some(tokens) => compare(&mut bench, Path::new(tokens), rest.get(1).is_some_and(|r| r == "forced")),
        None => measure(&mut bench),
    }
}
