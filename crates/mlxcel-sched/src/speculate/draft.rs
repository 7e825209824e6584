//! A second program that guesses: it keeps its state in blocks of the same numbers as the target's, computes what the
//! target computes, and draws ahead with the request's own seed. What it says is never trusted, so it cannot spoil an
//! answer.

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, EngineError, Logits, Program, SequenceState, step};

use crate::plan::{Part, Step};
use crate::scheduler::Scheduler;
use crate::{Refusal, Speculate, Traits};

/// A program that guesses for another one. It was compiled with as many blocks of the same size.
pub struct Draft {
    pub program: Box<dyn Program>,
    pub traits: Traits,
}

/// What the draft program shall compute for one part of a step, and how many tokens it shall guess after it.
#[derive(Debug)]
pub(crate) struct Ask {
    part: usize,
    state: SequenceState,
    sampling: SamplingParams,
    tokens: Vec<u32>,
    start: usize,
    wanted: usize,
    guesses: Vec<u32>,
}

impl Draft {
    /// Whether it can guess for a target at all.
    pub(crate) fn check(&self, target: &Traits) -> Result<(), Refusal> {
        let why = match (&self.traits, target) {
            (draft, target) if draft.is_recurrent || target.is_recurrent => {
                "with a model whose state cannot go back"
            }
            (draft, target) if draft.vocab_size != target.vocab_size => {
                "with a draft model of another vocabulary"
            }
            (draft, target) if !draft.keeps_cache || !target.keeps_cache => {
                "with a model that keeps no cache"
            }
            _ => return Ok(()),
        };
        Err(Refusal::Speculation { why })
    }

    /// Computes and guesses, all parts together: first what is new of each, then one guess after the other.
    pub(crate) fn guess(&mut self, asks: &mut [Ask], block_size: usize) -> Result<(), EngineError> {
        let mut round: Vec<usize> = (0..asks.len()).collect();
        while !round.is_empty() {
            let mut batch = Batch::new(block_size);
            for ask in round.iter().map(|&i| &asks[i]) {
                let rows = if ask.wanted > 0 { Logits::Last } else { Logits::None };
                batch.push(&ask.state, &ask.tokens, ask.start, rows, &ask.sampling);
            }
            round.retain(|&i| asks[i].wanted > 0);
            let outputs: &[&str] = if round.is_empty() { &[] } else { &[step::SAMPLED] };
            let ticket = self.program.submit(&batch.feeds(), outputs)?;
            let drawn = self.program.collect(ticket)?.first().map(|t| t.to_i64()).unwrap_or_default();
            for (&i, token) in round.iter().zip(drawn) {
                asks[i].take(token);
            }
            round.retain(|&i| asks[i].guesses.len() < asks[i].wanted);
        }
        Ok(())
    }
}

impl Ask {
    /// Goes on after a guess, unless it is no token.
    fn take(&mut self, token: i64) {
        match u32::try_from(token) {
            Ok(token) => {
                self.start += self.tokens.len();
                self.tokens = vec![token];
                self.guesses.push(token);
            }
            Err(_) => self.wanted = self.guesses.len(),
        }
    }
}

impl Scheduler {
    /// What a draft program shall do for a step.
    pub(crate) fn asks(&self, step: &Step, draft_context: usize) -> Vec<Ask> {
        let ask = |(n, part): (usize, &Part)| {
            let s = &self.running[self.find(part.turn)?];
            let end = part.start + part.count;
            let is_drafted = matches!(s.speculate, Speculate::Draft { .. });
            if !is_drafted || end + part.wanted_guesses > draft_context || s.drafted >= end {
                return None;
            }
            Some(Ask {
                part: n,
                state: s.place.as_ref()?.state.clone(),
                sampling: s.chooser.in_graph().clone(),
                tokens: s.tokens[s.drafted..end].to_vec(),
                start: s.drafted,
                wanted: part.wanted_guesses,
                guesses: vec![],
            })
        };
        step.parts.iter().enumerate().filter_map(ask).collect()
    }

    /// Puts guesses into their step.
    pub(crate) fn answer(&mut self, step: &mut Step, asks: Vec<Ask>) {
        let is_open = step.wants_guesses();
        step.parts.iter_mut().for_each(|part| part.wanted_guesses = 0);
        for ask in asks {
            let part = &mut step.parts[ask.part];
            part.guesses = ask.guesses;
            if let Some(i) = self.find(part.turn) {
                // The last guess was drawn and not computed.
                self.running[i].drafted = part.start + part.count + part.guesses.len().saturating_sub(1);
            }
        }
        if is_open {
            self.fill_in(step);
        }
    }
}
