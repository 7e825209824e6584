//! Measuring: small graphs, each made of one thing a model does, run as a model is run. Sizes grow until a step takes
//! long enough to be timed; the shortest of several runs counts, since nothing makes a step too short.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::weights::WeightTensor;
use mlxcel_engine::{
    Batch, DType, Engine, EngineError, Feeds, HostTensor, Logits, Program, SequenceState, WeightSource,
};
use mlxcel_ir::step::StepInputs;
use mlxcel_ir::{Bindings, Builder, Graph, PagedSpec, ReduceOp, shape};

use super::{Rates, VERSION};

/// How large the graphs are.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Rows and columns of a matrix.
    pub width: usize,
    /// Matrices one after the other.
    pub layers: usize,
    /// Rows at most of a product.
    pub rows_max: usize,
    /// Elements that are copied and added up.
    pub elements: usize,
    /// Tokens in the cache.
    pub context: usize,
}

impl Default for Sizes {
    /// More than the caches of processors hold, and seconds on the slowest engine.
    fn default() -> Self {
        Sizes { width: 2048, layers: 6, rows_max: 4096, elements: 1 << 24, context: 8192 }
    }
}

/// Heads of the cache and their width.
const HEADS: usize = 8;
const HEAD: usize = 64;

/// Elements that are added up.
const ROW: usize = 1024;

/// Small ops one after the other.
const CHAIN: usize = 32;

/// A step that takes this long is long enough, and how long steps are repeated.
const ENOUGH: Duration = Duration::from_millis(20);
const REPEATED: Duration = Duration::from_millis(60);
const RUNS_MIN: usize = 3;

/// A step that takes longer is run once more and no further: it may have been the compiling of kernels.
const LONG: Duration = Duration::from_millis(500);

/// Measures an engine, for some seconds.
pub fn measure(engine: &dyn Engine, device: &str, sizes: Sizes) -> Result<Rates> {
    let round_trip = chain(engine, 0)?;
    let op = (chain(engine, CHAIN)? - round_trip).max(0.0) / CHAIN as f64;
    let (f32_rate, stream) = products(engine, DType::F32, sizes, round_trip)?;
    let (bf16_rate, _) = products(engine, DType::BF16, sizes, round_trip)?;
    let per_second = |bytes: usize, seconds: f64| bytes as f64 / net(seconds, round_trip) / 1e9;
    Ok(Rates {
        version: VERSION,
        engine: engine.caps().name.to_string(),
        device: device.to_string(),
        f32_gflop_per_s: f32_rate / 1e9,
        bf16_gflop_per_s: bf16_rate / 1e9,
        stream_gigabytes_per_s: stream / 1e9,
        copy_gigabytes_per_s: per_second(8 * sizes.elements, copying(engine, sizes.elements)?),
        reduce_gigabytes_per_s: per_second(4 * sizes.elements, reducing(engine, sizes.elements)?),
        attention_gigabytes_per_s: per_second(
            2 * 4 * HEADS * HEAD * sizes.context,
            attending(engine, sizes.context)?,
        ),
        round_trip_us: round_trip * 1e6,
        op_us: op * 1e6,
    })
}

/// A time without what every step takes; never nothing, since clocks are coarse.
fn net(seconds: f64, round_trip: f64) -> f64 {
    (seconds - round_trip).max(seconds / 10.0).max(1e-9)
}

/// Matrices of small numbers that are not all the same.
struct Matrices;

impl WeightSource for Matrices {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        let (width, dtype) = name.split_once(' ').unwrap_or(("1", "f32"));
        let width: usize = width.parse().unwrap_or(1);
        let dtype = if dtype.starts_with("bf16") { DType::BF16 } else { DType::F32 };
        let number = |i: usize| ((i * 7919) % 251) as f64 / 251e3 - 5e-4;
        let numbers: Vec<f64> = (0..width * width).map(number).collect();
        Ok(WeightTensor::from_host(HostTensor::from_f64(dtype, &[width, width], &numbers)))
    }
}

fn compile(engine: &dyn Engine, graph: &Graph, blocks: usize) -> Result<Box<dyn Program>> {
    let block = engine.caps().block_size;
    let dims = [("blocks", blocks), ("block", block), ("slots", 1)];
    let dims = Bindings::from(dims.map(|(name, size)| (name.to_string(), size)));
    Ok(engine.compile(graph, &Matrices, &dims)?)
}

/// The seconds of the shortest of several runs.
fn time(program: &mut dyn Program, feeds: &Feeds) -> Result<f64> {
    let mut run = || -> Result<Duration> {
        let started = Instant::now();
        let ticket = program.submit(feeds, &["y"])?;
        program.collect(ticket)?;
        Ok(started.elapsed())
    };
    let first = run()?;
    if first > LONG {
        return Ok(first.min(run()?).as_secs_f64());
    }
    let (started, mut shortest, mut runs) = (Instant::now(), Duration::MAX, 0);
    while runs < RUNS_MIN || started.elapsed() < REPEATED {
        shortest = shortest.min(run()?);
        runs += 1;
    }
    Ok(shortest.as_secs_f64())
}

fn fed(name: &str, tensor: HostTensor) -> Feeds {
    let mut feeds = Feeds::new();
    feeds.insert(name, tensor);
    feeds
}

/// Products too small to take time, one after the other.
fn chain(engine: &dyn Engine, length: usize) -> Result<f64> {
    const WIDTH: usize = 8;
    let b = Builder::new();
    let mut x = b.input("x", DType::F32, shape![1, WIDTH]);
    for layer in 0..length {
        x = x.linear(b.weight(&format!("{WIDTH} f32 {layer}"), DType::F32, &[WIDTH, WIDTH]), None);
    }
    b.output("y", x + 1.0);
    let mut program = compile(engine, &b.finish()?, 1)?;
    time(&mut *program, &fed("x", HostTensor::new(&[1, WIDTH], &[1f32; WIDTH])))
}

/// Operations a second in products of many rows, and bytes a second of weights in products of one.
fn products(engine: &dyn Engine, dtype: DType, sizes: Sizes, round_trip: f64) -> Result<(f64, f64)> {
    let Sizes { width, layers, rows_max, .. } = sizes;
    let b = Builder::new();
    // Little is fed and little is read, as by a model: a device of its own would else wait for its bus.
    let x = b.input("x", DType::F32, shape!["tokens"]).reshape(shape!["tokens", 1]);
    let mut x = x.broadcast(shape!["tokens", width]).cast(dtype);
    for layer in 0..layers {
        x = x.linear(b.weight(&format!("{width} {dtype} {layer}"), dtype, &[width, width]), None);
    }
    b.output("y", x.cast(DType::F32).reduce(ReduceOp::Sum, &[1]));
    let mut program = compile(engine, &b.finish()?, 1)?;
    let feeds = |rows: usize| fed("x", HostTensor::new(&[rows], &vec![0.5f32; rows]));
    let one = time(&mut *program, &feeds(1))?;
    let size = dtype.size().ok_or_else(|| anyhow!("{dtype} is packed"))?;
    let stream = (layers * width * width * size) as f64 / net(one, round_trip);
    let mut rows = 64.min(rows_max);
    loop {
        let seconds = time(&mut *program, &feeds(rows))?;
        if seconds >= ENOUGH.as_secs_f64() || rows * 2 > rows_max {
            let flops = (2 * rows * width * width * layers) as f64;
            return Ok((flops / net(seconds, round_trip), stream));
        }
        rows *= 2;
    }
}

fn copying(engine: &dyn Engine, elements: usize) -> Result<f64> {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape![1]);
    let kept = b.state("kept", DType::F32, shape![elements]);
    let next = kept + x;
    b.output("y", next.slice(0, 0, 1));
    b.update("kept", next);
    let mut program = compile(engine, &b.finish()?, 1)?;
    time(&mut *program, &fed("x", HostTensor::new(&[1], &[1f32])))
}

fn reducing(engine: &dyn Engine, elements: usize) -> Result<f64> {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape![1]);
    // Rows, as norms have them.
    let kept = b.state("kept", DType::F32, shape![elements / ROW, ROW]);
    b.output("y", kept.reduce(ReduceOp::Sum, &[1]).slice(0, 0, 1) + x);
    let mut program = compile(engine, &b.finish()?, 1)?;
    time(&mut *program, &fed("x", HostTensor::new(&[1], &[1f32])))
}

/// One token behind so many.
fn attending(engine: &dyn Engine, context: usize) -> Result<f64> {
    let b = Builder::new();
    let inputs = StepInputs::declare(&b);
    let numbers = inputs.tokens.cast(DType::F32).reshape(shape!["tokens", 1, 1]);
    let q = numbers.broadcast(shape!["tokens", HEADS, HEAD]) * 1e-3;
    let spec = PagedSpec { scale: 0.125, window: None, softcap: None, sinks: false, value_dim: None };
    let out = b.paged_attention((q, q, Some(q)), inputs.paged(), None, 0, spec);
    b.output("y", out);
    let block = engine.caps().block_size;
    let blocks = context.div_ceil(block);
    let mut program = compile(engine, &b.finish()?, blocks)?;
    let mut batch = Batch::new(block);
    let sequence = SequenceState { blocks: (0..blocks as u32).collect(), slot: 0, known_len: context };
    batch.push(&sequence, &[1], context - 1, Logits::Last, &SamplingParams::default());
    time(&mut *program, &batch.feeds())
}

#[cfg(test)]
mod tests {
    use mlxcel_engine::Ticket;

    use super::*;

    /// Takes long for its first step, as where kernels are compiled for it.
    #[derive(Default)]
    struct Cold {
        runs: u64,
    }

    impl Program for Cold {
        fn submit(&mut self, _: &Feeds, _: &[&str]) -> Result<Ticket, EngineError> {
            if self.runs == 0 {
                std::thread::sleep(LONG + ENOUGH);
            }
            self.runs += 1;
            Ok(Ticket(self.runs))
        }
        fn collect(&mut self, _: Ticket) -> Result<Vec<HostTensor>, EngineError> {
            Ok(vec![])
        }
        fn copy_state(&mut self, _: &str, _: &[(u32, u32)]) -> Result<(), EngineError> {
            Ok(())
        }
    }

    #[test]
    fn a_step_that_takes_long_at_first_is_run_again() {
        let mut program = Cold::default();
        time(&mut program, &Feeds::new()).unwrap();
        assert_eq!(program.runs, 2);
    }
}
