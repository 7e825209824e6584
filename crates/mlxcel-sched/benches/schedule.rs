//! What scheduling a step costs: `cargo bench -p mlxcel-sched`. Every sequence is in the middle of its answer and
//! draws a token in every step; the engine is instant, so all of the time is the scheduler's.

use std::time::{Duration, Instant};

use mlxcel_engine::HostTensor;
use mlxcel_sched::{Limits, Request, Sampling, Scheduler, Traits};

const STEPS: u32 = 900;

fn main() {
    for (sequences, prompt) in [(1, 1000), (16, 1000), (64, 1000), (64, 8000), (256, 1000)] {
        let [total, between] = measure(sequences, prompt);
        println!(
            "{sequences:4} sequences of {prompt} tokens: {:6.1} us a step, {:6.1} us of it while the engine waits",
            total.as_secs_f64() * 1e6,
            between.as_secs_f64() * 1e6,
        );
    }
}

/// The median time of a step, and of what of it is spent between one step and the next.
fn measure(sequences: usize, prompt: usize) -> [Duration; 2] {
    let mut scheduler = scheduler(sequences, prompt + STEPS as usize + 100);
    for n in 0..sequences as u32 {
        let sampling = Sampling { temperature: 0.7, seed: n, ..Sampling::default() };
        let tokens = (0..prompt as u32).map(|i| i * 31 % 1000 + n).collect();
        let request = Request { sampling, ..Request::new(tokens) };
        scheduler.admit(request).expect("there is room");
    }
    while scheduler.stats().batch_tokens != sequences {
        step(&mut scheduler);
    }
    let times = (0..STEPS).map(|_| {
        let times = step(&mut scheduler);
        assert_eq!(scheduler.stats().batch_sequences, sequences, "all of them run");
        times
    });
    let (mut total, mut between): (Vec<Duration>, Vec<Duration>) = times.unzip();
    [&mut total, &mut between].map(|times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}

fn scheduler(sequences: usize, tokens: usize) -> Scheduler {
    let limits = Limits {
        blocks: sequences * tokens.div_ceil(16),
        block_size: 16,
        slots: 0,
        batch_tokens_max: 4096,
        sequences_max: sequences,
        queue_max: sequences,
    };
    let traits = Traits {
        max_context: 1 << 20,
        vocab_size: 50_000,
        is_recurrent: false,
        keeps_cache: true,
        recompute_past: None,
        lengths_matter_past: None,
    };
    Scheduler::new(limits, traits)
}

fn step(scheduler: &mut Scheduler) -> (Duration, Duration) {
    let begun = Instant::now();
    let step = scheduler.plan().expect("there is work");
    let planned = begun.elapsed();
    let rows = step.feeds().get("logit_rows").map_or(0, HostTensor::len);
    let outputs: Vec<HostTensor> = step.outputs().iter().map(|name| output(name, rows)).collect();
    let begun = Instant::now();
    scheduler.prepare();
    let prepared = begun.elapsed();
    let begun = Instant::now();
    scheduler.complete(step, outputs);
    let completed = begun.elapsed();
    (planned + prepared + completed, planned + completed)
}

/// Some token for each row; of logits few, since looking at them is not scheduling.
fn output(name: &str, rows: usize) -> HostTensor {
    match name {
        "sampled" => HostTensor::new(&[rows], &vec![7i32; rows]),
        _ => HostTensor::new(&[rows, 8], &vec![0f32; rows * 8]),
    }
}
