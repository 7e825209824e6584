//! Structured output: which tokens may come next so that the text follows a JSON schema, a regular expression or a
//! grammar.
//!
//! A [`Vocabulary`] is the tokens of one tokenizer laid out as a trie, made once. [`Grammars`] compiles sources against
//! it, away from the decoding loop, within bounds that count work and never look at a clock, and keeps the last few.
//! A [`Matcher`] follows one generation. The automata are those of [llguidance](https://docs.rs/llguidance).
//!
//! Nothing here knows logits, batches or requests: a mask is bits, and whoever samples applies them.

mod bounds;
mod compile;
mod gbnf;
mod matcher;
mod vocabulary;

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

pub use bounds::GrammarLimits;
pub(crate) use compile::BLANKS;
pub use matcher::Matcher;
pub use vocabulary::Vocabulary;

use crate::error::Result;

/// What the text has to follow.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// A JSON schema. A keyword that cannot be enforced is refused, never skipped.
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// A regular expression that the whole text matches, in the syntax of the `regex` crate, without look-around.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// A grammar in the form of llama.cpp.
    Gbnf(String),
}

impl GrammarSource {
    /// What the source is called in errors.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "JSON schema",
            Self::JsonObject => "JSON object",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark grammar",
            Self::Gbnf(_) => "GBNF grammar",
        }
    }
}

/// A compiled source, ready to follow any number of generations.
pub struct Grammar {
    start: Matcher,
}

impl Grammar {
    /// A matcher at the beginning. It shares nothing that another one's work could change.
    pub fn matcher(&self) -> Matcher {
        self.start.fork()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

/// Compiles sources for one vocabulary and keeps those used last.
#[derive(Debug)]
pub struct Grammars {
    vocabulary: Arc<Vocabulary>,
    limits: GrammarLimits,
    /// The most recently used is last.
    kept: Mutex<Vec<(GrammarSource, Arc<Grammar>)>>,
}

impl Grammars {
    pub fn new(vocabulary: Arc<Vocabulary>, limits: GrammarLimits) -> Self {
        Self { vocabulary, limits, kept: Mutex::default() }
    }

    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// The compiled source. This may take a good part of a second: call it where waiting harms nobody.
    pub fn get(&self, source: &GrammarSource) -> Result<Arc<Grammar>> {
        self.limits.check(source)?;
        if let Some(grammar) = self.recall(source) {
            return Ok(grammar);
        }
        let start = compile::compile(&self.vocabulary, &self.limits, source)?;
        let grammar = Arc::new(Grammar { start });
        self.keep(source.clone(), Arc::clone(&grammar));
        Ok(grammar)
    }

    fn recall(&self, source: &GrammarSource) -> Option<Arc<Grammar>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == source)?;
        let entry = kept.remove(at);
        let grammar = Arc::clone(&entry.1);
        kept.push(entry);
        Some(grammar)
    }

    fn keep(&self, source: GrammarSource, grammar: Arc<Grammar>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(known, _)| *known != source);
        kept.push((source, grammar));
        let surplus = kept.len().saturating_sub(self.limits.kept_max);
        kept.drain(..surplus);
    }
}
