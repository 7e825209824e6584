//! Follows one generation through a grammar. It never sees logits.

use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::{Logger, Matcher as Automaton};
use toktrie::{InferenceCapabilities, SimpleVob};

use super::Vocabulary;
use crate::error::{Error, Result};

/// Where a generation stands in its grammar.
pub struct Matcher {
    automaton: Automaton,
    mask: SimpleVob,
    /// Whether `mask` is of the present position.
    is_current: bool,
    /// A token has ended the text after nothing else could follow; the automaton was not told.
    is_ended: bool,
}

impl Matcher {
    pub(super) fn start(
        vocabulary: &Vocabulary,
        limits: ParserLimits,
        grammar: TopLevelGrammar,
    ) -> Result<Self, String> {
        let init = llguidance::api::GrammarInit::Serialized(grammar);
        let capabilities = InferenceCapabilities::default();
        let parser =
            vocabulary.factory.create_parser_from_init_ext(init, Logger::new(0, 0), capabilities, limits);
        let automaton = Automaton::new(Ok(parser.map_err(|error| reason(&error.to_string()))?));
        let mut matcher = Self { automaton, mask: SimpleVob::new(), is_current: false, is_ended: false };
        // A grammar that allows nothing at all is better refused than started.
        matcher.mask().map_err(|error| match error {
            Error::GrammarFailed { reason } => reason,
            other => other.to_string(),
        })?;
        Ok(matcher)
    }

    /// The tokens that may come next: bit `i % 32` of word `i / 32` stands for token `i`. Where the text is complete
    /// and nothing can follow, these are the tokens that end it, if there are any.
    pub fn mask(&mut self) -> Result<&[u32]> {
        if !self.is_current {
            self.mask = self.automaton.compute_mask_or_eos().map_err(|error| failed(&error))?;
            self.is_current = true;
        }
        Ok(self.mask.as_slice())
    }

    /// Whether a token may come next.
    pub fn allows(&mut self, token: u32) -> Result<bool> {
        let mask = self.mask()?;
        Ok(mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1))
    }

    /// Takes a token. One that may not come here is refused, and the position stays.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        if self.is_complete() {
            let ends = !self.is_ended
                && self.automaton.stop_reason() != StopReason::EndOfSentence
                && self.allows(token)?;
            self.is_ended |= ends;
            return if ends { Ok(()) } else { Err(Error::TokenRefused { token }) };
        }
        let taken = self.automaton.try_consume_tokens(&[token]).map_err(|error| failed(&error))?;
        if taken == 0 {
            return Err(Error::TokenRefused { token });
        }
        self.is_current = false;
        Ok(())
    }

    /// Takes back the last tokens.
    pub fn roll_back(&mut self, tokens: usize) -> Result<()> {
        if tokens == 0 {
            return Ok(());
        }
        self.is_current = false;
        let tokens = tokens - usize::from(std::mem::take(&mut self.is_ended));
        self.automaton.rollback(tokens).map_err(|error| failed(&error))
    }

    /// Whether the text could end here.
    pub fn may_end(&mut self) -> Result<bool> {
        self.automaton.is_accepting().map_err(|error| failed(&error))
    }

    /// Whether the text is complete and nothing can follow, or it was ended by a token.
    pub fn is_complete(&self) -> bool {
        matches!(
            self.automaton.stop_reason(),
            StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence
        )
    }

    /// A matcher at the same position that goes its own way.
    pub fn fork(&self) -> Self {
        Self {
            automaton: self.automaton.deep_clone(),
            mask: self.mask.clone(),
            is_current: self.is_current,
            is_ended: self.is_ended,
        }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("is_complete", &self.is_complete()).finish_non_exhaustive()
    }
}

fn failed(error: &impl std::fmt::Display) -> Error {
    Error::GrammarFailed { reason: reason(&error.to_string()) }
}

/// The library's message without what only its authors need, and not longer than a person reads.
fn reason(message: &str) -> String {
    const CHARACTERS_MAX: usize = 500;
    let message = message.split("\n<").next().unwrap_or_default().trim();
    match message.char_indices().nth(CHARACTERS_MAX) {
        Some((at, _)) => format!("{} …", &message[..at]),
        None => message.to_owned(),
    }
}
