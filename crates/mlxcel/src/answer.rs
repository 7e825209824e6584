//! The answer as it grows: token ids, the text they make, and the stop string that ends it. It decides what may be
//! shown, not where.

use anyhow::{Result, ensure};
use mlxcel_text::{DetokenizeOptions, Detokenizer, StopMatcher, Tokenizer};

use crate::session::Token;

pub struct Answer {
    pub tokens: Vec<Token>,
    /// `None` for a model without a tokenizer.
    text: Option<Text>,
}

struct Text {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Everything shown so far.
    shown: String,
    is_stopped: bool,
}

impl Answer {
    pub fn new(tokenizer: Option<&Tokenizer>, stops: &[String]) -> Result<Self> {
        ensure!(
            tokenizer.is_some() || stops.is_empty(),
            "the model has no tokenizer, so --stop cannot find any text; leave it out"
        );
        let matcher = StopMatcher::new(stops)?;
        let text = tokenizer.map(|tokenizer| Text {
            detokenizer: Detokenizer::new(tokenizer, DetokenizeOptions::default()),
            stops: matcher,
            shown: String::new(),
            is_stopped: false,
        });
        Ok(Answer { tokens: Vec::new(), text })
    }

    /// Adds a token and returns what can be shown now: its text, or its id where the model has no tokenizer.
    pub fn push(&mut self, token: &Token) -> Result<String> {
        self.tokens.push(token.clone());
        match &mut self.text {
            None => {
                let separator = if self.tokens.len() > 1 { " " } else { "" };
                Ok(format!("{separator}{}", token.id))
            }
            // What ends an answer is no part of it.
            Some(_) if token.is_end => Ok(String::new()),
            Some(text) => {
                let piece = text.detokenizer.push(token.id)?;
                Ok(text.show(&piece))
            }
        }
    }

    /// Ends the answer and returns what was held back.
    pub fn finish(&mut self) -> Result<String> {
        let Some(text) = self.text.as_mut().filter(|text| !text.is_stopped) else { return Ok(String::new()) };
        let rest = text.detokenizer.finish()?;
        let mut shown = text.show(&rest);
        if !text.is_stopped {
            let held = text.stops.finish();
            text.shown.push_str(&held);
            shown.push_str(&held);
        }
        Ok(shown)
    }

    /// Whether a stop string was reached.
    pub fn is_stopped(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.is_stopped)
    }

    pub fn text(&self) -> Option<&str> {
        self.text.as_ref().map(|text| text.shown.as_str())
    }
}

impl Text {
    fn show(&mut self, piece: &str) -> String {
        let progress = self.stops.push(piece);
        self.is_stopped |= progress.stopped_by.is_some();
        self.shown.push_str(&progress.text);
        progress.text
    }
}
