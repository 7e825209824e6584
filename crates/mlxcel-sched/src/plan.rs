//! What a step will do: the part that each sequence has in it, and what is copied before it runs. The sizes are known
//! while the step before it runs; the token ids are filled in afterwards.

use mlxcel_engine::{Batch, Feeds, Logits, step};

use crate::pool::Entry;
use crate::prefix::Key;
use crate::sequence::{Sequence, Turn};

/// Logits of tokens that the graph draws are looked at every so many steps, since what is not a number stays so for
/// the rest of a sequence.
pub(crate) const CHECK_EVERY: u64 = 16;

/// Of which tokens a step looks at the logits although the graph draws.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Look {
    /// Of the first of each answer.
    #[default]
    First,
    Always,
    /// The program tells by what it draws.
    Never,
}

impl Look {
    /// Whether logits are looked at where an answer has so many tokens.
    pub(crate) fn at(self, made: usize) -> bool {
        match self {
            Look::First => made == 0,
            Look::Always => true,
            Look::Never => false,
        }
    }
}

/// A step in the making.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<Part>,
    /// Tokens that still fit.
    pub(crate) budget: usize,
    pub(crate) copies: Copies,
    pub(crate) snapshots: Vec<Snapshot>,
}

/// One sequence in a step.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) turn: Turn,
    /// Where its first token is.
    pub(crate) start: usize,
    /// Tokens of the sequence.
    pub(crate) count: usize,
    /// Tokens after those that may turn out to be right.
    pub(crate) guesses: Vec<u32>,
    /// Guesses that the draft program shall add.
    pub(crate) wanted_guesses: usize,
    /// Whether a token is drawn after the last one, and after each guess.
    pub(crate) draws: bool,
}

/// Entries of state that are copied before a step runs, in this order: from the first to the second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) blocks: Vec<(u32, u32)>,
    pub(crate) slots: Vec<(u32, u32)>,
}

/// A copy of recurrent state that is published when the step is done.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) turn: Turn,
    pub(crate) slot: Entry,
    pub(crate) key: Key,
    pub(crate) tokens: Box<[u32]>,
}

/// A step to run: copy, submit, collect; then give it back to the scheduler with the outputs.
#[derive(Debug, Default)]
pub struct Step {
    pub(crate) looks: Look,
    pub(crate) parts: Vec<Part>,
    pub(crate) copies: Copies,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) outputs: Vec<&'static str>,
    pub(crate) feeds: Feeds,
}

impl Part {
    /// The next `count` tokens of a sequence.
    pub(crate) fn new(s: &Sequence, count: usize, draws: bool) -> Self {
        Part { turn: s.turn, start: s.scheduled, count, guesses: vec![], wanted_guesses: 0, draws }
    }

    /// Rows of logits and of drawn tokens that are this part's.
    pub(crate) fn rows(&self) -> usize {
        if self.draws { 1 + self.guesses.len() } else { 0 }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.count + self.guesses.len() + self.wanted_guesses
    }
}

impl Plan {
    pub(crate) fn new(budget: usize) -> Self {
        Plan { budget, ..Plan::default() }
    }

    /// Leaves room for so many tokens with those that are in it.
    pub(crate) fn set_budget(&mut self, tokens: usize) {
        let taken: usize = self.parts.iter().map(Part::tokens).sum();
        self.budget = tokens.saturating_sub(taken);
    }

    /// Takes a sequence into the step.
    pub(crate) fn add(&mut self, sequence: &mut Sequence, part: Part) {
        self.budget -= part.tokens();
        sequence.scheduled = part.start + part.count;
        sequence.is_drawing = part.draws;
        sequence.is_planned = true;
        self.parts.push(part);
    }

    /// Takes parts out again whose sequences are gone.
    pub(crate) fn retain(&mut self, mut is_live: impl FnMut(Turn) -> bool) {
        let budget = &mut self.budget;
        self.parts.retain(|part| {
            let keeps = is_live(part.turn);
            if !keeps {
                *budget += part.tokens();
            }
            keeps
        });
    }

    /// Takes a sequence out that gives up its place. What it has not drawn it is not drawing.
    pub(crate) fn withdraw(&mut self, sequence: &mut Sequence) {
        if sequence.is_planned {
            sequence.is_drawing = false;
            self.retain(|turn| turn != sequence.turn);
        }
    }
}

impl Step {
    /// What is copied first: the axis, and pairs from first to second.
    pub fn copies(&self) -> impl Iterator<Item = (&'static str, &[(u32, u32)])> {
        let both = [("blocks", &self.copies.blocks[..]), ("slots", &self.copies.slots[..])];
        both.into_iter().filter(|(_, pairs)| !pairs.is_empty())
    }

    pub fn feeds(&self) -> &Feeds {
        &self.feeds
    }

    /// Names of the outputs that are wanted, in this order.
    pub fn outputs(&self) -> &[&'static str] {
        &self.outputs
    }

    /// Tokens that are computed.
    pub fn tokens(&self) -> usize {
        self.parts.iter().map(Part::tokens).sum()
    }

    pub fn sequences(&self) -> usize {
        self.parts.len()
    }

    /// Whether guesses of the draft program are to come before token ids are filled in.
    pub(crate) fn wants_guesses(&self) -> bool {
        self.parts.iter().any(|part| part.wanted_guesses > 0)
    }

    /// Fills in token ids. `sequence` finds a part's sequence, which runs.
    pub(crate) fn fill_in<'a>(&mut self, block_size: usize, mut sequence: impl FnMut(Turn) -> &'a Sequence) {
        let mut batch = Batch::new(block_size);
        let (mut wants_logits, mut wants_drawn) = (false, false);
        for part in &self.parts {
            let s = sequence(part.turn);
            let state = &s.place.as_ref().expect("a planned sequence runs").state;
            let sampling = s.chooser.in_graph();
            let rows = match (part.draws, part.guesses.is_empty()) {
                (false, _) => Logits::None,
                (true, true) => Logits::Last,
                (true, false) => Logits::All,
            };
            let tokens = &s.tokens[part.start..part.start + part.count];
            if part.guesses.is_empty() {
                batch.push(state, tokens, part.start, rows, sampling);
            } else {
                batch.push(state, &[tokens, &part.guesses].concat(), part.start, rows, sampling);
            }
            let (first, last) = (s.made(), s.made() + part.guesses.len());
            let is_seen = s.chooser.needs_logits(first) || self.looks.at(first);
            wants_logits |= part.draws && is_seen;
            // A long enough answer may need them no more.
            wants_drawn |= part.draws && !s.chooser.needs_logits(last);
        }
        self.feeds = batch.feeds();
        self.outputs.clear();
        self.outputs.extend(wants_drawn.then_some(step::SAMPLED));
        self.outputs.extend(wants_logits.then_some(step::LOGITS));
    }
}
