//! A toy model being served, with everything that was told of its requests.

use std::collections::BTreeMap;

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Program, Ticket};
use mlxcel_sched::{Event, Failure, Finish, Limits, Request, RequestId, Runner, Sampling, Scheduler, Step};

use crate::toy::{Fault, Toy};

/// What was told of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub tokens: Vec<u32>,
    pub cached: Option<usize>,
    pub end: Option<Result<Finish, Failure>>,
}

/// All that was told.
pub type Ledger = BTreeMap<RequestId, Told>;

fn hear(ledger: &mut Ledger, events: Vec<Event>) {
    for event in events {
        let told = ledger.get_mut(&event.id()).expect("a request that was asked");
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

/// Someone who serves requests.
pub trait Server {
    fn ask(&mut self, request: Request) -> RequestId;
    fn cancel(&mut self, id: RequestId);
    fn set_batch_tokens_max(&mut self, tokens: usize);
    /// Gets on by one step or half a step, after which nothing may be lost.
    fn step(&mut self);
    fn scheduler(&self) -> &Scheduler;
    fn fault(&self) -> &Fault;
    fn ledger(&self) -> &Ledger;
}

/// Served by a runner.
pub struct World {
    pub runner: Runner,
    pub fault: Fault,
    pub told: Ledger,
}

impl World {
    pub fn new(toy: Toy, limits: Limits) -> Self {
        let (program, fault) = toy.program(&limits);
        World { runner: Runner::new(program, limits, toy.traits()), fault, told: BTreeMap::new() }
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

impl Server for World {
    fn ask(&mut self, request: Request) -> RequestId {
        let id = self.runner.admit(request).expect("the request is fine");
        self.told.insert(id, Told::default());
        id
    }

    fn cancel(&mut self, id: RequestId) {
        self.runner.cancel(id);
        self.scheduler().assert_integrity(None);
    }

    fn set_batch_tokens_max(&mut self, tokens: usize) {
        self.runner.set_batch_tokens_max(tokens);
    }

    fn step(&mut self) {
        let events = self.runner.step();
        self.scheduler().assert_integrity(None);
        hear(&mut self.told, events);
    }

    fn scheduler(&self) -> &Scheduler {
        self.runner.scheduler()
    }

    fn fault(&self) -> &Fault {
        &self.fault
    }

    fn ledger(&self) -> &Ledger {
        &self.told
    }
}

/// Served by hand, in half steps, so that anything may happen while a step is in flight.
pub struct Flight {
    scheduler: Scheduler,
    program: Box<dyn Program>,
    fault: Fault,
    told: Ledger,
    in_flight: Option<(Step, Ticket)>,
    halves: usize,
}

impl Flight {
    pub fn new(toy: Toy, limits: Limits) -> Self {
        let (program, fault) = toy.program(&limits);
        let scheduler = match toy.rounds_prompts {
            true => Scheduler::new(limits, toy.traits()).with_rounded_prompts(),
            false => Scheduler::new(limits, toy.traits()),
        };
        Flight { scheduler, program, fault, told: BTreeMap::new(), in_flight: None, halves: 0 }
    }

    fn check(&self) {
        self.scheduler.assert_integrity(self.in_flight.as_ref().map(|(step, _)| step));
    }

    fn take_off(&mut self) {
        let Some(step) = self.scheduler.plan() else { return };
        for (axis, pairs) in step.copies() {
            self.program.copy_state(axis, pairs).expect("a toy copies");
        }
        match self.program.submit(step.feeds(), step.outputs()) {
            Ok(ticket) => self.in_flight = Some((step, ticket)),
            Err(error) => hear(&mut self.told, self.scheduler.fail(step, &error)),
        }
    }
}

impl Server for Flight {
    fn ask(&mut self, request: Request) -> RequestId {
        let id = self.scheduler.admit(request).expect("the request is fine");
        self.told.insert(id, Told::default());
        id
    }

    fn cancel(&mut self, id: RequestId) {
        self.scheduler.cancel(id);
        self.check();
    }

    fn set_batch_tokens_max(&mut self, tokens: usize) {
        self.scheduler.set_batch_tokens_max(tokens);
    }

    fn step(&mut self) {
        self.halves += 1;
        match self.in_flight.take() {
            None => self.take_off(),
            Some((step, ticket)) => {
                // Preparing is never necessary, and may happen before or after anything else.
                if !self.halves.is_multiple_of(3) {
                    self.scheduler.prepare();
                    self.scheduler.assert_integrity(Some(&step));
                }
                let events = match self.program.collect(ticket) {
                    Ok(outputs) => self.scheduler.complete(step, outputs),
                    Err(error) => self.scheduler.fail(step, &error),
                };
                hear(&mut self.told, events);
            }
        }
        self.check();
    }

    fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    fn fault(&self) -> &Fault {
        &self.fault
    }

    fn ledger(&self) -> &Ledger {
        &self.told
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
