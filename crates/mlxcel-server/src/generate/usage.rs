//! What an answer cost: tokens and times.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::metrics::milliseconds;
use crate::trace::Made;

/// Tokens and moments of one request.
#[derive(Clone, Debug)]
pub struct Usage {
    pub prompt: usize,
    /// Tokens of the prompt that had been computed before.
    pub cached: usize,
    /// Tokens made, of all choices together.
    pub made: usize,
    /// Tokens of them that were reasoning.
    pub reasoning: usize,
    started: Instant,
    first_token: Option<Instant>,
    end: Instant,
    has_prefilled: bool,
}

/// The times of a request as llama-server names them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Timings {
    /// Tokens of the prompt that were found computed.
    pub cache_n: usize,
    /// Tokens of the prompt that were computed.
    pub prompt_n: usize,
    /// From the request to its first token, waiting included.
    pub prompt_ms: f64,
    pub prompt_per_second: Option<f64>,
    pub predicted_n: usize,
    /// From the first token to the last.
    pub predicted_ms: f64,
    pub predicted_per_second: Option<f64>,
}

impl Usage {
    pub fn new(prompt: usize, started: Instant) -> Self {
        Usage {
            prompt,
            cached: 0,
            made: 0,
            reasoning: 0,
            started,
            first_token: None,
            end: started,
            has_prefilled: false,
        }
    }

    /// The first choice tells what was in the cache; the others find what it computed.
    pub fn prefilled(&mut self, cached: usize) {
        if !self.has_prefilled {
            self.has_prefilled = true;
            self.cached = cached;
        }
    }

    pub fn token(&mut self) {
        self.made += 1;
        self.end = Instant::now();
        self.first_token.get_or_insert(self.end);
    }

    pub fn ended(&mut self) {
        self.end = Instant::now();
    }

    pub fn total(&self) -> usize {
        self.prompt + self.made
    }

    /// What a trace tells of it.
    pub fn made_by<'a>(&self, model: &'a str) -> Made<'a> {
        Made {
            model,
            started: self.started,
            first_token: self.first_token,
            ended: self.end,
            prompt_tokens: self.prompt,
            cached_tokens: self.cached,
            new_tokens: self.made,
        }
    }

    pub fn timings(&self) -> Timings {
        let first = self.first_token.unwrap_or(self.end);
        let (prompt_time, decode_time) = (first - self.started, self.end - first);
        let prompt_n = self.prompt - self.cached.min(self.prompt);
        Timings {
            cache_n: self.cached,
            prompt_n,
            prompt_ms: milliseconds(prompt_time),
            prompt_per_second: rate(prompt_n, prompt_time),
            predicted_n: self.made,
            predicted_ms: milliseconds(decode_time),
            predicted_per_second: rate(self.made.saturating_sub(1), decode_time),
        }
    }
}

/// How many in a second, to two places.
fn rate(count: usize, time: Duration) -> Option<f64> {
    let seconds = time.as_secs_f64();
    (count > 0 && seconds > 0.0).then(|| (count as f64 / seconds * 100.0).round() / 100.0)
}
