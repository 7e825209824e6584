//! One compiled program and its scheduler: requests in, events out. Synchronous, and owned by one thread.

use mlxcel_engine::{EngineError, HostTensor, Program};

use crate::plan::Step;
use crate::{Draft, Event, Limits, Refusal, Request, RequestId, Scheduler, Stats, Traits};

/// Runs requests on a program that was compiled with the blocks and slots of its limits.
pub struct Runner {
    program: Box<dyn Program>,
    draft: Option<Draft>,
    scheduler: Scheduler,
    block_size: usize,
}

impl Runner {
    pub fn new(program: Box<dyn Program>, limits: Limits, traits: Traits) -> Self {
        let block_size = limits.block_size.max(1);
        let mut scheduler = Scheduler::new(limits, traits);
        if program.rounds_prompts() {
            scheduler = scheduler.with_rounded_prompts();
        }
        if program.draws_no_nan() {
            scheduler = scheduler.with_checked_draws();
        }
        Runner { program, draft: None, scheduler, block_size }
    }

    /// Has requests that ask for it speculate with a second program, which was compiled with the same limits. Refused
    /// where the two do not go together.
    pub fn with_draft(mut self, draft: Draft) -> Result<Self, Refusal> {
        draft.check(self.scheduler.traits())?;
        self.scheduler.allow_drafts();
        self.draft = Some(draft);
        Ok(self)
    }

    /// Takes a request, or says at once why not.
    pub fn admit(&mut self, request: Request) -> Result<RequestId, Refusal> {
        self.scheduler.admit(request)
    }

    /// Ends a request wherever it is. No event tells of it again.
    pub fn cancel(&mut self, id: RequestId) {
        self.scheduler.cancel(id);
    }

    /// Tokens of a step from the next one on. Someone with a clock can keep steps short by it; answers do not depend on
    /// it.
    pub fn set_batch_tokens_max(&mut self, tokens: usize) {
        self.scheduler.set_batch_tokens_max(tokens);
    }

    /// One step. While the engine computes it, the next one is planned. No event and [`is_idle`](Self::is_idle)
    /// means that there is nothing to do.
    pub fn step(&mut self) -> Vec<Event> {
        let Some(mut step) = self.scheduler.plan() else { return vec![] };
        match self.run(&mut step) {
            Ok(outputs) => self.scheduler.complete(step, outputs),
            Err(error) => self.scheduler.fail(step, &error),
        }
    }

    fn run(&mut self, step: &mut Step) -> Result<Vec<HostTensor>, EngineError> {
        self.copy(step)?;
        self.guess(step)?;
        let ticket = self.program.submit(step.feeds(), step.outputs())?;
        self.scheduler.prepare();
        self.program.collect(ticket)
    }

    fn copy(&mut self, step: &Step) -> Result<(), EngineError> {
        for (axis, pairs) in step.copies() {
            self.program.copy_state(axis, pairs)?;
            if let Some(draft) = &mut self.draft {
                draft.program.copy_state(axis, pairs)?;
            }
        }
        Ok(())
    }

    fn guess(&mut self, step: &mut Step) -> Result<(), EngineError> {
        let Some(draft) = &mut self.draft else { return Ok(()) };
        let mut asks = self.scheduler.asks(step, draft.traits.max_context);
        draft.guess(&mut asks, self.block_size)?;
        self.scheduler.answer(step, asks);
        Ok(())
    }

    /// Whether a program's state is gone, so that no step succeeds any more.
    pub fn is_lost(&self) -> bool {
        self.program.is_lost() || self.draft.as_ref().is_some_and(|draft| draft.program.is_lost())
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
