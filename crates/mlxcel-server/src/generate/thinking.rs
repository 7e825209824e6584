//! A bound on what a model thinks before it answers: when it has thought so many tokens, only the mark that closes its
//! thoughts may follow. It does not know what else the answer must follow; that comes from a constraint inside.

use std::collections::VecDeque;
use std::sync::Arc;

use mlxcel_sched::{Constraint, ConstraintError, TokenMask};
use mlxcel_text::{DetokenizeOptions, Detokenizer, SpecialText};

use crate::model::Model;

/// How long thoughts may be, and how they are marked.
#[derive(Clone, Debug)]
pub struct Budget {
    pub tokens: usize,
    pub open: &'static str,
    pub close: &'static str,
    /// The mark that closes thoughts, in tokens.
    pub closing: Arc<[u32]>,
    /// Whether the prompt has opened them.
    pub is_open: bool,
}

pub struct BoundedThoughts {
    inside: Option<Box<dyn Constraint>>,
    detokenizer: Detokenizer,
    budget: Budget,
    phase: Phase,
    /// The last text, as much as a mark may stand in.
    tail: String,
    mask: TokenMask,
    vocab_size: usize,
}

enum Phase {
    /// Thoughts may begin.
    Before,
    Thinking {
        left: usize,
    },
    /// These tokens follow and no others.
    Closing(VecDeque<u32>),
    After,
}

impl BoundedThoughts {
    pub fn boxed(model: &Model, budget: Budget, inside: Option<Box<dyn Constraint>>) -> Box<dyn Constraint> {
        let options = DetokenizeOptions { special: SpecialText::Show, ..DetokenizeOptions::default() };
        let is_open = budget.is_open;
        let mut thoughts = BoundedThoughts {
            inside,
            detokenizer: Detokenizer::new(&model.text.tokenizer, options),
            phase: Phase::Before,
            tail: String::new(),
            mask: TokenMask::default(),
            vocab_size: model.info.vocab_size,
            budget,
        };
        if is_open {
            thoughts.phase = thoughts.thinking(thoughts.budget.tokens);
        }
        Box::new(thoughts)
    }

    fn thinking(&self, left: usize) -> Phase {
        match left {
            0 => Phase::Closing(self.budget.closing.iter().copied().collect()),
            left => Phase::Thinking { left },
        }
    }

    /// Whether a mark has come. Of other text only as much is kept as may be the beginning of one.
    fn finds(&mut self, mark: &str) -> bool {
        let is_found = self.tail.contains(mark);
        let start = if is_found { self.tail.len() } else { self.tail.len().saturating_sub(mark.len()) };
        let start = (0..=start).rev().find(|&at| self.tail.is_char_boundary(at));
        self.tail.drain(..start.unwrap_or(0));
        is_found
    }

    /// What comes after the token that was told last.
    fn next(&mut self) -> Phase {
        match std::mem::replace(&mut self.phase, Phase::After) {
            Phase::Before if self.finds(self.budget.open) => self.thinking(self.budget.tokens),
            Phase::Before => Phase::Before,
            Phase::Thinking { .. } if self.finds(self.budget.close) => Phase::After,
            Phase::Thinking { left } => self.thinking(left - 1),
            Phase::Closing(mut tokens) => {
                tokens.pop_front();
                if tokens.is_empty() { Phase::After } else { Phase::Closing(tokens) }
            }
            Phase::After => Phase::After,
        }
    }
}

impl Constraint for BoundedThoughts {
    fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        if let Phase::Closing(tokens) = &self.phase {
            self.mask = TokenMask::none(self.vocab_size);
            tokens.front().into_iter().for_each(|token| self.mask.allow(*token));
            return Ok(&self.mask);
        }
        if let Some(inside) = &mut self.inside {
            return inside.mask();
        }
        let words = self.vocab_size.div_ceil(32);
        if self.mask.words().iter().any(|word| *word != u32::MAX) || self.mask.words().len() != words {
            self.mask = TokenMask::from_words(vec![u32::MAX; words]);
        }
        Ok(&self.mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if let Some(inside) = &mut self.inside {
            inside.accept(token)?;
        }
        if matches!(self.phase, Phase::Before | Phase::Thinking { .. }) {
            let text = self.detokenizer.push(token);
            let text = text.map_err(|error| ConstraintError::TooComplex { what: error.to_string() })?;
            self.tail.push_str(&text);
        }
        self.phase = self.next();
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.inside.as_ref().is_some_and(|inside| inside.is_complete())
    }
}
