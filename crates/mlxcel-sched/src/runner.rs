//! One compiled program and its scheduler: requests in, events out. Synchronous, and owned by one thread.

use mlxcel_engine::{EngineError, HostTensor, Program, Ticket};

use crate::plan::Step;
use crate::{Event, Limits, Refusal, Request, RequestId, Scheduler, Stats, Traits};

/// Runs requests on a program that was compiled with the blocks and slots of its limits.
pub struct Runner {
    program: Box<dyn Program>,
    scheduler: Scheduler,
}

impl Runner {
    pub fn new(program: Box<dyn Program>, limits: Limits, traits: Traits) -> Self {
        Runner { program, scheduler: Scheduler::new(limits, traits) }
    }

    /// Takes a request, or says at once why not.
    pub fn admit(&mut self, request: Request) -> Result<RequestId, Refusal> {
        self.scheduler.admit(request)
    }

    /// Ends a request wherever it is. No event tells of it again.
    pub fn cancel(&mut self, id: RequestId) {
        self.scheduler.cancel(id);
    }

    /// One step. While the engine computes it, the next one is planned. No event and [`is_idle`](Self::is_idle)
    /// means that there is nothing to do.
    pub fn step(&mut self) -> Vec<Event> {
        let Some(step) = self.scheduler.plan() else { return vec![] };
        match self.run(&step) {
            Ok(outputs) => self.scheduler.complete(step, outputs),
            Err(error) => self.scheduler.fail(step, &error),
        }
    }

    fn run(&mut self, step: &Step) -> Result<Vec<HostTensor>, EngineError> {
        let ticket = self.submit(step)?;
        self.scheduler.prepare();
        self.program.collect(ticket)
    }

    fn submit(&mut self, step: &Step) -> Result<Ticket, EngineError> {
        for (axis, pairs) in step.copies() {
            self.program.copy_state(axis, pairs)?;
        }
        self.program.submit(step.feeds(), step.outputs())
    }

    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}
