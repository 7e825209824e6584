//! Times steps of a model on the CUDA engine without anything around it: `speed MODEL KIND:SEQUENCES:DEPTH…`, where the
//! kind is `decode` or `prompt` (then the second number is its tokens). For work on kernels; `mlxcel bench` is for users.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for developers")]

use std::time::Instant;

use mlxcel_cuda::{CudaEngine, CudaOptions};
use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, Engine, Logits, Program, SequenceState};
use mlxcel_ir::{Bindings, DType, step};
use mlxcel_weights::Checkpoint;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let engine = CudaEngine::new(CudaOptions::default()).unwrap();
    let block = engine.caps().block_size;
    let checkpoint = Checkpoint::open(&arguments[0]).unwrap();
    let model = mlxcel_models::load(&checkpoint, DType::BF16).unwrap();
    let cases: Vec<(String, usize, usize)> = arguments[1..].iter().map(|a| parse(a)).collect();
    let room = |c: &(String, usize, usize)| match c.0.as_str() {
        "decode" => c.1 * (c.2 + 300).div_ceil(block),
        _ => (c.1 + c.2).div_ceil(block),
    };
    let blocks = cases.iter().map(room).max().unwrap();
    let slots = cases.iter().map(|c| c.1).max().unwrap();
    let dims: Bindings =
        [("blocks", blocks), ("block", block), ("slots", slots)].map(|(n, s)| (n.to_string(), s)).into();
    let started = Instant::now();
    let mut program = engine.compile(&model.graph, &checkpoint, &dims).unwrap();
    println!("{}: loaded in {:.2} s", engine.caps().device, started.elapsed().as_secs_f64());
    for (kind, count, depth) in cases {
        if kind == "decode" {
            decode(&mut *program, block, count, depth);
        } else {
            prompt(&mut *program, block, count, depth);
        }
    }
}

fn parse(text: &str) -> (String, usize, usize) {
    let parts: Vec<&str> = text.split(':').collect();
    (parts[0].to_string(), parts[1].parse().unwrap(), parts[2].parse().unwrap())
}

fn run(program: &mut dyn Program, batch: &Batch) {
    let ticket = program.submit(&batch.feeds(), &[step::SAMPLED]).unwrap();
    program.collect(ticket).unwrap();
}

fn decode(program: &mut dyn Program, block: usize, sequences: usize, depth: usize) {
    let each = (depth + 300).div_ceil(block);
    let states: Vec<SequenceState> = (0..sequences)
        .map(|s| SequenceState {
            blocks: (s * each..(s + 1) * each).map(|b| b as u32).collect(),
            slot: s as u32,
            known_len: depth,
        })
        .collect();
    let mut step = |at: usize| {
        let mut batch = Batch::new(block);
        for (s, state) in states.iter().enumerate() {
            let blocks = state.blocks[..(at + 1).div_ceil(block)].to_vec();
            let state = SequenceState { blocks, known_len: at + 1, ..state.clone() };
            batch.push(
                &state,
                &[(s * 31 + at * 7) as u32 % 1000 + 5],
                at,
                Logits::Last,
                &SamplingParams::default(),
            );
        }
        run(program, &batch);
    };
    (0..20).for_each(|i| step(depth + i));
    let started = Instant::now();
    let steps = 100;
    (0..steps).for_each(|i| step(depth + 20 + i));
    let each = started.elapsed().as_secs_f64() / steps as f64;
    println!("decode {sequences} at {depth}: {:.3} ms, {:.1} tok/s", each * 1e3, sequences as f64 / each);
}

fn prompt(program: &mut dyn Program, block: usize, tokens: usize, depth: usize) {
    let blocks = (0..(depth + tokens).div_ceil(block) as u32).collect();
    let state = SequenceState { blocks, slot: 0, known_len: depth + tokens };
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i * 37 % 1000 + 5).collect();
    let mut batch = Batch::new(block);
    batch.push(&state, &ids, depth, Logits::Last, &SamplingParams::default());
    (0..3).for_each(|_| run(program, &batch));
    let started = Instant::now();
    let runs = 10;
    (0..runs).for_each(|_| run(program, &batch));
    let each = started.elapsed().as_secs_f64() / runs as f64;
    println!("prompt {tokens} at {depth}: {:.3} ms, {:.0} tok/s", each * 1e3, tokens as f64 / each);
}
