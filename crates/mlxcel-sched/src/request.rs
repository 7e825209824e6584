//! What is asked of the scheduler and what it answers: plain data. Text, tools and stop strings are the caller's
//! business; here are token ids only.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{Constraint, Failure, Sampling};

/// How much of everything there is. Where the numbers contradict each other the scheduler corrects them upwards:
/// a step has room for one token of each running sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Blocks of the KV cache; the program was compiled with as many.
    pub blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Slots of recurrent state; those that no running sequence needs keep snapshots. The program was compiled with
    /// as many.
    pub slots: usize,
    /// Tokens of one step.
    pub batch_tokens_max: usize,
    /// Sequences that run at once.
    pub sequences_max: usize,
    /// Requests that wait.
    pub queue_max: usize,
}

/// What the scheduler must know of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// The longest sequence, prompt and answer together.
    pub max_context: usize,
    pub vocab_size: usize,
    /// Whether there is state that cannot go back to an earlier token.
    pub is_recurrent: bool,
    /// Whether there is a KV cache.
    pub keeps_cache: bool,
    /// A sequence that grows past this length is computed anew, since its rotation changes.
    pub recompute_past: Option<usize>,
    /// What was computed in a sequence past this length cannot serve another.
    pub lengths_matter_past: Option<usize>,
}

/// One answer that is asked for. Several choices of one prompt are several requests; the prompt is computed once.
pub struct Request {
    pub prompt: Vec<u32>,
    /// New tokens at most; the context and the cache bound them too. None at all only computes the prompt.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer are not drawn before there are so many.
    pub min_tokens: usize,
    /// Tokens that end the answer. Empty to go on until the length is reached.
    pub end_ids: Arc<BTreeSet<u32>>,
    pub sampling: Sampling,
    /// How many alternatives to report for each token; `Some(0)` reports the chosen one only.
    pub logprobs: Option<usize>,
    pub constraint: Option<Box<dyn Constraint>>,
    /// Requests share what was computed only under the same key: adapter, template and media belong in it.
    pub cache_key: u64,
    /// Higher is sooner, within [`PRIORITIES`]. One level overtakes [`OVERTAKES`] earlier requests and no more, so
    /// that nobody waits for ever.
    pub priority: i32,
    pub speculate: Speculate,
}

/// Priorities beyond are taken as the nearest of these.
pub const PRIORITIES: std::ops::RangeInclusive<i32> = -16..=16;

/// How many earlier requests a request overtakes for each level of priority.
pub const OVERTAKES: i64 = 64;

impl Request {
    /// A greedy request without end.
    pub fn new(prompt: Vec<u32>) -> Self {
        Request {
            prompt,
            max_tokens: None,
            min_tokens: 0,
            end_ids: Arc::default(),
            sampling: Sampling::default(),
            logprobs: None,
            constraint: None,
            cache_key: 0,
            priority: 0,
            speculate: Speculate::Off,
        }
    }
}

/// Whether tokens are guessed ahead and several verified in one step. The answer is the same either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    #[default]
    Off,
    /// Guesses what followed the last time that the last `ngram` tokens occurred, up to `tokens` at once.
    Lookup { ngram: usize, tokens: usize },
    /// Guesses what the runner's draft program would say, up to `tokens` at once.
    Draft { tokens: usize },
}

/// A request's name, unique within its scheduler. Later requests compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What happened to a request.
#[derive(Debug)]
pub enum Event {
    /// The prompt is computed; `cached` of its tokens had been before.
    Prefilled { id: RequestId, cached: usize },
    /// A new token, the one that ends the answer included.
    Token { id: RequestId, token: u32, logprobs: Option<Logprobs> },
    /// Nothing follows.
    Finished { id: RequestId, reason: Finish },
    /// Nothing follows.
    Failed { id: RequestId, error: Failure },
}

impl Event {
    pub fn id(&self) -> RequestId {
        match self {
            Event::Prefilled { id, .. }
            | Event::Token { id, .. }
            | Event::Finished { id, .. }
            | Event::Failed { id, .. } => *id,
        }
    }
}

/// Natural logarithms of probabilities as the model has them, before bias, penalties and temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    pub chosen: f32,
    /// The likeliest tokens, the likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token that ends the answer was drawn.
    End,
    /// The constraint allows nothing more.
    Complete,
    /// As many tokens as were asked for, or as there is room for.
    Length,
}

/// Where the scheduler stands, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub waiting: usize,
    pub running: usize,
    pub blocks_total: usize,
    /// Blocks that sequences hold.
    pub blocks_used: usize,
    /// Blocks that nobody holds and that are kept for later prompts.
    pub blocks_cached: usize,
    pub slots_total: usize,
    pub slots_used: usize,
    /// Snapshots of recurrent state.
    pub slots_cached: usize,
    /// Of the steps planned so far: how many there were, the tokens computed in them, …
    pub steps: u64,
    pub tokens_computed: u64,
    /// … tokens of prompts that were computed before and found, …
    pub tokens_cached: u64,
    /// … tokens of prompts that were looked up, …
    pub tokens_looked_up: u64,
    /// … tokens that were guessed, and guesses that were right, …
    pub tokens_guessed: u64,
    pub tokens_guessed_right: u64,
    /// … and sequences that gave up their blocks and began anew.
    pub preemptions: u64,
    /// Sequences in the last step, and its tokens.
    pub batch_sequences: usize,
    pub batch_tokens: usize,
}
