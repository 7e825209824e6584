//! Times steps of a model on the CUDA engine without anything around it: `speed MODEL KIND:SEQUENCES:DEPTH…`, where the
//! model is a folder, with `@f32` after it for activations in f32, and the kind is `decode` or `prompt` (then the second number is its tokens). `check:TOKENS:0` compares a prompt in one step with
//! the same in smaller ones, and a token in company with the same alone; `greedy:TOKENS:COUNT` prints what follows the prompt
//! 5, 42, 79, …. For work on kernels; `mlxcel bench` is for users.
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
    let (folder, dtype) = match arguments[0].strip_suffix("@f32") {
        Some(folder) => (folder, DType::F32),
        None => (arguments[0].as_str(), DType::BF16),
    };
    let checkpoint = Checkpoint::open(folder).unwrap();
    let model = mlxcel_models::load(&checkpoint, dtype).unwrap();
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
        match kind.as_str() {
            "decode" => decode(&mut *program, block, count, depth),
            "greedy" => greedy(&mut *program, block, count, depth),
            "check" => check(&mut *program, block, count),
            _ => prompt(&mut *program, block, count, depth),
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
    let make = |at: usize| {
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
        batch
    };
    (0..20).for_each(|i| run(program, &make(depth + i)));
    let started = Instant::now();
    let steps = 100;
    (0..steps).for_each(|i| run(program, &make(depth + 20 + i)));
    let each = started.elapsed().as_secs_f64() / steps as f64;
    // Without waiting between steps: what the device alone takes.
    let started = Instant::now();
    let mut submit = |i: usize| program.submit(&make(depth + 120 + i).feeds(), &[step::SAMPLED]).unwrap();
    let tickets: Vec<_> = (0..steps).map(&mut submit).collect();
    tickets.into_iter().for_each(|t| drop(program.collect(t).unwrap()));
    let device = started.elapsed().as_secs_f64() / steps as f64;
    let rate = sequences as f64 / each;
    println!(
        "decode {sequences} at {depth}: {:.3} ms, {rate:.1} tok/s ({:.3} ms on the device)",
        each * 1e3,
        device * 1e3
    );
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

/// Steps of these tokens, `each` at a time and `copies` sequences alike: the logits of the last token of the last sequence.
fn last_logits(
    program: &mut dyn Program,
    ids: &[u32],
    (block, each): (usize, usize),
    from: usize,
    copies: usize,
) -> Vec<f64> {
    let mut logits = vec![];
    let mut start = from;
    while start < ids.len() {
        let end = (start + each).min(ids.len());
        let blocks = (0..end.div_ceil(block) as u32).collect();
        let state = SequenceState { blocks, slot: 0, known_len: end };
        let mut batch = Batch::new(block);
        for _ in 0..copies {
            batch.push(&state, &ids[start..end], start, Logits::Last, &SamplingParams::default());
        }
        let ticket = program.submit(&batch.feeds(), &[step::LOGITS]).unwrap();
        let host = program.collect(ticket).unwrap().remove(0);
        let row = host.shape()[1];
        logits = host.to_f64()[(copies - 1) * row..].to_vec();
        start = end;
    }
    logits
}

fn check(program: &mut dyn Program, block: usize, tokens: usize) {
    let ids: Vec<u32> = (0..tokens as u32).map(|i| (i * 7919 + i * i % 977) % 30000 + 5).collect();
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let top = |v: &[f64]| (0..v.len()).max_by(|&a, &b| v[a].total_cmp(&v[b])).unwrap();
    let alone = last_logits(program, &ids, (block, 1), 0, 1);
    let compare = |what: String, v: Vec<f64>| {
        let apart: Vec<f64> = v.iter().zip(&alone).map(|(a, b)| a - b).collect();
        let (relative, equal) = (norm(&apart) / norm(&alone), v == alone);
        println!("{what}: {relative:.2e} apart, bit by bit {equal}, top {} and {}", top(&v), top(&alone));
    };
    for copies in [2, 3, 8, 9, 16, 17, 64, 65, 100, 200] {
        let v = last_logits(program, &ids, (block, 1), tokens - 1, copies);
        compare(format!("one of {copies}"), v);
    }
    for each in [tokens, 130, 65, 40, 24, 8] {
        let v = last_logits(program, &ids, (block, each), 0, 1);
        compare(format!("{each} at a time"), v);
    }
}

/// The tokens that follow a prompt, each the most likely.
fn greedy(program: &mut dyn Program, block: usize, tokens: usize, count: usize) {
    let mut ids: Vec<u32> = (0..tokens as u32).map(|i| i * 37 % 1000 + 5).collect();
    let mut from = 0;
    for _ in 0..count {
        let blocks = (0..ids.len().div_ceil(block) as u32).collect();
        let state = SequenceState { blocks, slot: 0, known_len: ids.len() };
        let mut batch = Batch::new(block);
        batch.push(&state, &ids[from..], from, Logits::Last, &SamplingParams::default());
        let ticket = program.submit(&batch.feeds(), &[step::SAMPLED]).unwrap();
        let sampled = program.collect(ticket).unwrap().remove(0).to_i64()[0];
        from = ids.len();
        ids.push(sampled as u32);
    }
    println!("greedy {:?}", &ids[tokens..]);
}
