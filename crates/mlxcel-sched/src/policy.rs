//! Who runs in the next step, and with how many tokens: the whole policy. It works on lengths alone, so that those who
//! go on can be planned while the step before is computed and its tokens are not known.
//!
//! Every running sequence that waits for one token gets it; what is left of the step goes to prompts, in chunks. The
//! first prompt gets at least half of it and the others the rest, so that a short prompt does not wait for a long one.
//! Requests have turns: they are let in, and computed, in that order, and the last one gives up its blocks when there
//! are none left. It is computed again later. So the first one always goes on, and everyone is the first one day. Nobody
//! who runs is sent away for somebody more urgent.

use crate::plan::{Part, Plan};
use crate::prefix::Key;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::{Speculate, speculate};

/// Long prompts that are computed side by side.
const PROMPTS_AT_ONCE: usize = 4;

/// When the policy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// While a step is computed. Nobody is sent away, since those who finish may leave enough room, and nobody is
    /// let in, since somebody more urgent may come and more may be found in the cache.
    Ahead,
    /// Before the step is submitted.
    Final,
}

impl Scheduler {
    /// Adds to the plan what fits and is not in it.
    pub(crate) fn fill(&mut self, plan: &mut Plan, pass: Pass) {
        let has_room = self.decode(plan, pass);
        if pass == Pass::Final {
            if has_room {
                self.let_in(plan);
            }
            self.prefill(plan);
        }
    }

    /// One token of every sequence that lacks one, and its guesses. False if somebody found no block.
    fn decode(&mut self, plan: &mut Plan, pass: Pass) -> bool {
        let (mut has_room, mut i) = (true, 0);
        while i < self.running.len() {
            let s = &self.running[i];
            if s.is_planned || s.remaining() != 1 || !s.is_ready(pass) || plan.budget == 0 {
                i += 1;
            } else if self.must_begin_anew(s) {
                match pass {
                    Pass::Ahead => i += 1,
                    Pass::Final => self.send_back(i, plan),
                }
            } else if self.find_block(i, plan, pass) {
                let part = self.decode_part(i, plan);
                plan.add(&mut self.running[i], part);
                i += 1;
            } else {
                has_room = false;
                i += 1;
            }
        }
        has_room
    }

    /// Sees to it that a sequence has a block for its next token; the last in turn makes room, be it itself.
    fn find_block(&mut self, i: usize, plan: &mut Plan, pass: Pass) -> bool {
        let needed = self.blocks_for(self.running[i].scheduled + 1);
        while self.running[i].place.as_ref().is_some_and(|place| place.blocks.len() < needed) {
            if let Some(block) = self.blocks.take() {
                self.running[i].add_block(block);
                continue;
            }
            if pass == Pass::Ahead {
                return false;
            }
            let last = self.running.len() - 1;
            self.send_back(last, plan);
            self.stats.preemptions += 1;
            if last == i {
                return false;
            }
        }
        true
    }

    /// The next token of a sequence, with the guesses that there is room for.
    fn decode_part(&mut self, i: usize, plan: &mut Plan) -> Part {
        self.snapshot(i, plan);
        let s = &self.running[i];
        let mut part = Part::new(s, 1, s.has_room());
        if s.speculate == Speculate::Off {
            return part;
        }
        // Everybody else gets a token first.
        let lacking = self.running.iter().filter(|s| !s.is_planned && s.remaining() > 0).count();
        let room = self.room_for_guesses(i, plan.budget.saturating_sub(lacking));
        match s.speculate {
            Speculate::Lookup { ngram, tokens } => {
                part.guesses = speculate::look_up(&s.tokens, ngram, tokens.min(room)).to_vec();
            }
            Speculate::Draft { tokens } => part.wanted_guesses = tokens.min(room),
            Speculate::Off => {}
        }
        let end = part.start + part.tokens();
        while self.running[i].place.as_ref().is_some_and(|p| p.blocks.len() < self.blocks_for(end)) {
            let block = self.blocks.take().expect("room_for_guesses counted the blocks");
            self.running[i].add_block(block);
        }
        part
    }

    /// Lets the first in turn in, as long as there is room for it and work for the step.
    fn let_in(&mut self, plan: &mut Plan) {
        let mut passed = 0;
        let mut soon: Vec<(usize, Key)> = self.running.iter().filter_map(|s| self.next_shared(s)).collect();
        while self.running.len() < self.limits.sequences_max && self.lacks_work(plan) {
            // Who begins with something that is being computed waits for it.
            let is_alone = |s: &Sequence| !soon.iter().any(|(index, key)| s.chain.get(*index) == Some(key));
            let next = self.waiting.iter().skip(passed).position(|(_, s)| is_alone(s));
            passed += next.unwrap_or(self.waiting.len());
            let Some(turn) = self.waiting.keys().nth(passed).copied() else { return };
            let mut s = self.waiting.remove(&turn).expect("the key was found");
            if !self.settle(&mut s, plan) {
                self.waiting.insert(turn, s);
                return;
            }
            soon.extend(self.next_shared(&s));
            let at = self.running.partition_point(|other| other.turn < turn);
            self.running.insert(at, s);
        }
    }

    /// Whether the prompts that were let in leave some of the step. A long one counts for a part of the step only, so
    /// that short ones come in beside it.
    fn lacks_work(&self, plan: &Plan) -> bool {
        let share = plan.budget.div_ceil(PROMPTS_AT_ONCE);
        let prompts = self.running.iter().filter(|s| !s.is_planned).map(|s| s.remaining().min(share));
        prompts.sum::<usize>() < plan.budget
    }

    /// The block that a sequence computes next for others to find, and what is in it.
    fn next_shared(&self, s: &Sequence) -> Option<(usize, Key)> {
        let index = s.place.as_ref().filter(|_| !s.is_prefilled)?.shared;
        s.chain.get(index).filter(|_| self.may_publish(s, index)).map(|key| (index, *key))
    }

    /// Divides what is left of the step among the prompts.
    fn prefill(&mut self, plan: &mut Plan) {
        let mut later: usize = self.running.iter().map(|s| self.lacks(s)).sum();
        let mut others = self.running.iter().filter(|s| self.lacks(s) > 0).count();
        for i in 0..self.running.len() {
            let lacking = self.lacks(&self.running[i]);
            if lacking == 0 || plan.budget == 0 {
                continue;
            }
            later -= lacking;
            others -= 1;
            let reserved = later.min(plan.budget / 2).max(others.min(plan.budget - 1));
            let part = self.prompt_part(i, plan.budget - reserved);
            self.snapshot(i, plan);
            plan.add(&mut self.running[i], part);
        }
    }

    /// Tokens of a sequence that have blocks and are not in the plan.
    fn lacks(&self, s: &Sequence) -> usize {
        let blocks = s.place.as_ref().map_or(0, |place| place.blocks.len());
        if s.is_planned || blocks < self.blocks_for(s.tokens.len()) { 0 } else { s.remaining() }
    }

    fn prompt_part(&self, i: usize, tokens_max: usize) -> Part {
        let s = &self.running[i];
        let count = self.chunk(s, tokens_max.min(s.remaining()));
        Part::new(s, count, count == s.remaining() && s.has_room())
    }

    /// Takes a sequence's place away. It is the first of its turn again when there is room.
    fn send_back(&mut self, i: usize, plan: &mut Plan) {
        let mut s = self.running.remove(i);
        plan.withdraw(&mut s);
        s.leave();
        self.waiting.insert(s.turn, s);
    }
}

impl Sequence {
    /// Whether its next tokens can be planned: how many of the guesses in flight are right is not known.
    fn is_ready(&self, pass: Pass) -> bool {
        pass == Pass::Final || !self.is_drawing || self.speculate == Speculate::Off
    }
}
