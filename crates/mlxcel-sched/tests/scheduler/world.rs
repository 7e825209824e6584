//! A runner of a toy model, with everything that came out of it.

use std::collections::BTreeMap;

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_sched::{Event, Failure, Finish, Limits, Request, RequestId, Runner, Sampling};

use crate::toy::{Fault, Toy};

pub struct World {
    pub runner: Runner,
    pub fault: Fault,
    pub told: BTreeMap<RequestId, Told>,
}

/// What was told of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub tokens: Vec<u32>,
    pub cached: Option<usize>,
    pub end: Option<Result<Finish, Failure>>,
}

impl World {
    pub fn new(toy: Toy, limits: Limits) -> Self {
        let (program, fault) = toy.program(&limits);
        World { runner: Runner::new(program, limits, toy.traits()), fault, told: BTreeMap::new() }
    }

    pub fn ask(&mut self, request: Request) -> RequestId {
        let id = self.runner.admit(request).expect("the request is fine");
        self.told.insert(id, Told::default());
        id
    }

    /// One step, after which nothing may be lost.
    pub fn step(&mut self) {
        let events = self.runner.step();
        self.runner.scheduler().assert_integrity(None);
        for event in events {
            let told = self.told.get_mut(&event.id()).expect("a request that was asked");
            assert!(told.end.is_none(), "an event after the end: {event:?}");
            match event {
                Event::Prefilled { cached, .. } => assert_eq!(told.cached.replace(cached), None),
                Event::Token { token, .. } => told.tokens.push(token),
                Event::Finished { reason, .. } => told.end = Some(Ok(reason)),
                Event::Failed { error, .. } => told.end = Some(Err(error)),
            }
            assert!(told.cached.is_some() || told.tokens.is_empty(), "a token before the prompt is computed");
        }
    }

    /// Steps until nothing is left to do.
    pub fn finish(&mut self) {
        let mut steps = 0;
        while !self.runner.is_idle() {
            self.step();
            steps += 1;
            assert!(steps < 100_000, "this never ends");
        }
        let stats = self.runner.stats();
        assert_eq!((stats.blocks_used, stats.slots_used), (0, 0), "somebody keeps a block");
    }

    /// Asks alone and waits for the end.
    pub fn answer(&mut self, request: Request) -> Told {
        let id = self.ask(request);
        self.finish();
        self.told[&id].clone()
    }
}

/// A prompt that depends on its seed.
pub fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed.wrapping_mul(31) + i * i + 7 * i) % 49).collect()
}

pub fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), ..Request::new(prompt) }
}

/// Draws with a seed, at a temperature that leaves many tokens possible.
pub fn warm(seed: u32) -> (Sampling, SamplingParams) {
    let sampling = Sampling { temperature: 0.9, top_k: 20, top_p: 0.95, seed, ..Sampling::default() };
    let params = SamplingParams { temperature: 0.9, top_k: 20, top_p: 0.95, min_p: 0.0, seed };
    (sampling, params)
}
