//! The scheduler: requests in, steps out, events back. It owns what is decided; how is in [`policy`](crate::policy),
//! and where state lies in [`place`](crate::place).

use std::collections::BTreeMap;

use mlxcel_engine::EngineError;

use crate::plan::{CHECK_EVERY, Look, Plan, Step};
use crate::policy::Pass;
use crate::pool::{Entry, Pool};
use crate::prefix::{Chain, Key};
use crate::request::{OVERTAKES, PRIORITIES};
use crate::sampling::Chooser;
use crate::sequence::{Sequence, Turn};
use crate::{Event, Failure, Limits, Refusal, Request, RequestId, Speculate, Stats, Traits};

/// Decides what runs. Steps are run by someone else, one after the other.
pub struct Scheduler {
    pub(crate) limits: Limits,
    pub(crate) traits: Traits,
    has_draft: bool,
    pub(crate) has_rounded_prompts: bool,
    has_checked_draws: bool,
    pub(crate) blocks: Pool,
    pub(crate) slots: Pool,
    pub(crate) waiting: BTreeMap<Turn, Sequence>,
    /// In the order of turns.
    pub(crate) running: Vec<Sequence>,
    /// The step after the one in flight, as far as it is known.
    prepared: Option<Plan>,
    is_in_flight: bool,
    admitted: u64,
    pub(crate) stats: Stats,
}

impl Scheduler {
    pub fn new(limits: Limits, traits: Traits) -> Self {
        let slots = if traits.is_recurrent { limits.slots.max(1) } else { 0 };
        let sequences_max = limits.sequences_max.max(1).min(if slots > 0 { slots } else { usize::MAX });
        let limits = Limits {
            blocks: if traits.keeps_cache { limits.blocks.max(1) } else { 0 },
            block_size: limits.block_size.max(1),
            slots,
            batch_tokens_max: limits.batch_tokens_max.max(sequences_max),
            sequences_max,
            queue_max: limits.queue_max.max(1),
        };
        Scheduler {
            limits,
            traits,
            has_draft: false,
            has_rounded_prompts: false,
            has_checked_draws: false,
            blocks: Pool::new(limits.blocks),
            slots: Pool::new(limits.slots),
            waiting: BTreeMap::new(),
            running: vec![],
            prepared: None,
            is_in_flight: false,
            admitted: 0,
            stats: Stats::default(),
        }
    }

    /// For a program that computes tokens otherwise where known tokens follow
    /// ([`Program::rounds_prompts`](mlxcel_engine::Program::rounds_prompts)): requests share only what every one of them
    /// would have computed alike, which is the inside of prompts.
    pub fn with_rounded_prompts(self) -> Self {
        Scheduler { has_rounded_prompts: true, ..self }
    }

    /// For a program that tells by what it draws that logits are not numbers
    /// ([`Program::draws_no_nan`](mlxcel_engine::Program::draws_no_nan)).
    pub fn with_checked_draws(self) -> Self {
        Scheduler { has_checked_draws: true, ..self }
    }

    /// Requests may ask for guesses of a draft program, which someone else runs.
    pub(crate) fn allow_drafts(&mut self) {
        self.has_draft = true;
    }

    /// Tokens of prompt and answer together that a sequence may have.
    pub fn context(&self) -> usize {
        let cache =
            if self.traits.keeps_cache { self.limits.blocks * self.limits.block_size } else { usize::MAX };
        self.traits.max_context.min(cache)
    }

    /// Tokens of a step from the next one on. Someone with a clock can keep steps short by it; answers do not depend on
    /// it. A step has room for one token of each running sequence in any case.
    pub fn set_batch_tokens_max(&mut self, tokens: usize) {
        self.limits.batch_tokens_max = tokens.max(self.limits.sequences_max);
    }

    /// Tokens of a step at most.
    pub fn batch_tokens_max(&self) -> usize {
        self.limits.batch_tokens_max
    }

    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Takes a request, or says at once why not.
    pub fn admit(&mut self, mut request: Request) -> Result<RequestId, Refusal> {
        self.check(&request)?;
        let id = RequestId(self.admitted);
        self.admitted += 1;
        let priority = request.priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
        let turn = Turn { place: id.0 as i64 - i64::from(priority) * OVERTAKES, id };
        // What a draft program has not computed is of no use to those who need its guesses.
        let is_drafted = matches!(request.speculate, Speculate::Draft { .. });
        let root = Key::root(request.cache_key).then(&[u32::from(is_drafted)]);
        let mut chain = Chain::new(root, self.limits.block_size);
        let tokens = std::mem::take(&mut request.prompt);
        chain.extend(&tokens);
        let prompt_len = tokens.len();
        let new_max = request.max_tokens.unwrap_or(usize::MAX);
        let sequence = Sequence {
            turn,
            prompt_len,
            limit: prompt_len.saturating_add(new_max).min(self.context()),
            chain,
            speculate: request.speculate,
            place: None,
            scheduled: 0,
            is_drawing: false,
            is_planned: false,
            cached: None,
            is_prefilled: false,
            drafted: 0,
            last_snapshot: None,
            tokens,
            chooser: Chooser::new(request),
        };
        self.waiting.insert(turn, sequence);
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let (prompt, context) = (request.prompt.len(), self.context());
        let vocab_size = self.traits.vocab_size;
        if prompt == 0 {
            return Err(Refusal::PromptEmpty);
        }
        if prompt > context || prompt == context && request.max_tokens != Some(0) {
            return Err(Refusal::PromptTooLong { prompt, context });
        }
        if let Some(&token) = request.prompt.iter().find(|t| **t as usize >= vocab_size) {
            return Err(Refusal::UnknownToken { token, vocab_size });
        }
        request.sampling.check(vocab_size)?;
        match request.speculate {
            Speculate::Off => {}
            _ if self.traits.is_recurrent => {
                return Err(Refusal::Speculation { why: "with a model whose state cannot go back" });
            }
            Speculate::Draft { .. } if !self.has_draft => {
                return Err(Refusal::Speculation { why: "with a draft model, since none was loaded" });
            }
            Speculate::Lookup { .. } | Speculate::Draft { .. } => {}
        }
        if self.waiting.len() >= self.limits.queue_max {
            return Err(Refusal::QueueFull { waiting: self.waiting.len() });
        }
        Ok(())
    }

    /// Ends a request wherever it is. No event tells of it again, and what it held is free for the next step.
    pub fn cancel(&mut self, id: RequestId) {
        self.running.retain(|s| s.turn.id != id);
        self.waiting.retain(|turn, _| turn.id != id);
        self.rest();
    }

    /// Gives back what was taken for the next step if there will be none.
    pub(crate) fn rest(&mut self) {
        if self.is_idle() {
            self.prepared = None;
        }
    }

    /// Plans the next step as far as it can be known while another one is in flight, and does what else can be done
    /// meanwhile. Calling it is never necessary.
    pub fn prepare(&mut self) {
        for s in self.running.iter_mut().filter(|s| s.is_drawing) {
            s.chooser.prepare();
        }
        let mut plan = self.prepared.take().unwrap_or_else(|| Plan::new(self.limits.batch_tokens_max));
        self.fill(&mut plan, Pass::Ahead);
        self.prepared = Some(plan);
    }

    /// The next step; `None` if there is nothing to do. The step before must be complete.
    pub fn plan(&mut self) -> Option<Step> {
        assert!(!self.is_in_flight, "a step is completed before the next one is planned");
        let mut plan = self.prepared.take().unwrap_or_else(|| Plan::new(self.limits.batch_tokens_max));
        plan.set_budget(self.limits.batch_tokens_max);
        let mut near = 0;
        plan.retain(|turn| {
            let found = self.find_near(turn, near);
            near = found.map_or(near, |i| i + 1);
            found.is_some()
        });
        self.fill(&mut plan, Pass::Final);
        if plan.parts.is_empty() {
            return None;
        }
        for s in &mut self.running {
            s.is_planned = false;
        }
        self.is_in_flight = true;
        self.stats.steps += 1;
        let Plan { parts, copies, snapshots, .. } = plan;
        let looks = match self.stats.steps.is_multiple_of(CHECK_EVERY) {
            _ if self.has_checked_draws => Look::Never,
            true => Look::Always,
            false => Look::First,
        };
        let mut step = Step { looks, parts, copies, snapshots, ..Step::default() };
        if !step.wants_guesses() {
            self.fill_in(&mut step);
        }
        Some(step)
    }

    /// Fills in what is known only now.
    pub(crate) fn fill_in(&mut self, step: &mut Step) {
        let mut near = 0;
        step.fill_in(self.limits.block_size, |turn| {
            let found = self.find_near(turn, near).expect("a planned sequence runs");
            near = found + 1;
            &self.running[found]
        });
        self.stats.batch_sequences = step.parts.len();
        self.stats.batch_tokens = step.tokens();
    }

    /// The step could not be run: its requests fail, others go on.
    pub fn fail(&mut self, step: Step, error: &EngineError) -> Vec<Event> {
        self.fail_all(&step, Failure::Engine { message: error.to_string() })
    }

    pub(crate) fn fail_all(&mut self, step: &Step, error: Failure) -> Vec<Event> {
        self.is_in_flight = false;
        let failed = |turn: Turn| step.parts.iter().any(|part| part.turn == turn);
        if let Some(plan) = &mut self.prepared {
            // Their state is not what the snapshots would promise.
            plan.snapshots.retain(|snapshot| !failed(snapshot.turn));
        }
        let mut events = vec![];
        for part in &step.parts {
            if let Some(i) = self.find(part.turn) {
                self.running.remove(i);
                events.push(Event::Failed { id: part.turn.id, error: error.clone() });
            }
        }
        self.rest();
        events
    }

    pub(crate) fn landed(&mut self) {
        self.is_in_flight = false;
    }

    /// Where a sequence is among those that run.
    pub(crate) fn find(&self, turn: Turn) -> Option<usize> {
        self.running.binary_search_by_key(&turn, |s| s.turn).ok()
    }

    /// The same, where it probably is at `near`: parts of a step are mostly in the order of turns.
    pub(crate) fn find_near(&self, turn: Turn, near: usize) -> Option<usize> {
        match self.running.get(near) {
            Some(s) if s.turn == turn => Some(near),
            _ => self.find(turn),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    pub fn stats(&self) -> Stats {
        Stats {
            waiting: self.waiting.len(),
            running: self.running.len(),
            blocks_total: self.blocks.len(),
            blocks_used: self.blocks.len() - self.blocks.available(),
            blocks_cached: self.blocks.idle(),
            slots_total: self.slots.len(),
            slots_used: self.slots.len() - self.slots.available(),
            slots_cached: self.slots.idle(),
            ..self.stats
        }
    }

    /// Asserts that nothing was lost: every block and slot is free, kept or held by those who run, and those who
    /// run have what they need. `step` is the one in flight.
    pub fn assert_integrity(&self, step: Option<&Step>) {
        let places = || self.running.iter().filter_map(|s| s.place.as_ref());
        self.blocks.assert_integrity(places().flat_map(|place| &place.blocks));
        let planned = self.prepared.iter().flat_map(|plan| &plan.snapshots);
        let snapshots = planned.chain(step.iter().flat_map(|step| &step.snapshots)).map(|s| &s.slot);
        self.slots.assert_integrity(places().filter_map(|place| place.slot.as_ref()).chain(snapshots));
        assert!(self.running.is_sorted_by_key(|s| s.turn), "the running are out of turn");
        assert!(self.running.len() <= self.limits.sequences_max, "too many run");
        assert!(self.waiting.values().all(|s| s.place.is_none()), "one who waits holds a place");
        self.running.iter().for_each(|s| self.assert_place(s));
    }

    fn assert_place(&self, s: &Sequence) {
        let place = s.place.as_ref().expect("one who runs has a place");
        let size = self.limits.block_size;
        assert!(place.blocks.iter().map(Entry::index).eq(place.state.blocks.iter().copied()), "wrong blocks");
        assert!(place.blocks.len() >= self.blocks_for(s.scheduled), "tokens without a block");
        assert_eq!(place.slot.is_some(), self.traits.is_recurrent, "a slot too many or too few");
        assert!(s.tokens.len() <= s.limit && s.scheduled <= s.known_len(), "more is computed than is known");
        let writable = place.blocks.iter().skip(s.scheduled.div_ceil(size));
        assert!(
            writable.into_iter().all(|b| !self.blocks.is_read_only(b)),
            "a shared block would be written"
        );
    }
}
