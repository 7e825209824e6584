//! What is asked of a model, whichever interface it came by: valid by construction, so that nothing after this has to
//! doubt it. It knows no JSON.

mod sampling;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use sampling::{Defaults, draws};

use mlxcel_sched::{Sampling, Speculate};
use mlxcel_text::Grammar;

use crate::generate::Budget;
use crate::model::Model;
use crate::reading::Reading;
use crate::refusal::Refusal;
use crate::wire::SamplingFields;

/// Stop strings of a request, and their bytes together.
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 8 << 10;

/// Prompts and how they are answered.
pub struct Order {
    /// One at least.
    pub prompts: Vec<Vec<u32>>,
    /// Choices of each prompt.
    pub n: usize,
    /// `None` goes on to the end of the answer or of the context.
    pub max_tokens: Option<usize>,
    pub end: End,
    pub sampling: Sampling,
    /// How many alternatives are reported for each token; `None` reports nothing.
    pub logprobs: Option<usize>,
    /// How the answer is taken apart; `None` reads plain text.
    pub reading: Option<Reading>,
    /// What the text must follow.
    pub grammar: Option<Arc<Grammar>>,
    /// How long the model may think first; `None` as long as it likes.
    pub thinking: Option<Budget>,
    /// Requests share what was computed only under the same key.
    pub cache_key: u64,
    pub priority: i32,
    pub speculate: Speculate,
}

/// What ends an answer.
#[derive(Clone, Debug, Default)]
pub struct End {
    pub stops: Vec<String>,
    pub ids: Arc<BTreeSet<u32>>,
    pub min_tokens: usize,
}

impl Order {
    /// An order for prompts by what the client said of sampling.
    pub fn new(
        model: &Model,
        prompts: Vec<Vec<u32>>,
        fields: &SamplingFields,
        defaults: &Defaults,
    ) -> Result<Self, Refusal> {
        Ok(Order {
            prompts,
            n: 1,
            max_tokens: None,
            end: end(model, fields)?,
            sampling: draws(model, fields, defaults)?,
            logprobs: None,
            reading: None,
            grammar: None,
            thinking: None,
            cache_key: 0,
            priority: fields.priority.unwrap_or(0),
            speculate: Speculate::Off,
        })
    }

    /// For a client who hears of the answer as it comes, the arguments of calls included.
    pub fn streamed(self) -> Self {
        Order { reading: self.reading.map(Reading::streamed), ..self }
    }
}

/// What ends an answer, by the model and by the client.
fn end(model: &Model, fields: &SamplingFields) -> Result<End, Refusal> {
    let stops = fields.stop.clone().map(|stop| stop.into_list()).unwrap_or_default();
    check_stops("stop", &stops)?;
    let mut ids = model.text.end_ids.clone();
    if fields.ignore_eos == Some(true) {
        ids = Arc::default();
    }
    let own = fields.stop_token_ids.as_deref().unwrap_or_default();
    if own.len() > STOPS_MAX {
        let message = format!("{} token ids are more than the {STOPS_MAX} that are taken", own.len());
        return Err(Refusal::field("stop_token_ids", message));
    }
    if let Some(id) = own.iter().find(|id| **id as usize >= model.info.vocab_size) {
        let message = format!("token {id} is not in the vocabulary of {}", model.info.vocab_size);
        return Err(Refusal::field("stop_token_ids", message));
    }
    if !own.is_empty() {
        ids = Arc::new(ids.iter().chain(own).copied().collect());
    }
    let min_tokens = usize::try_from(fields.min_tokens.unwrap_or(0)).unwrap_or(usize::MAX);
    if min_tokens > model.info.context {
        let message = format!("{min_tokens} tokens are more than the context of {}", model.info.context);
        return Err(Refusal::field("min_tokens", message));
    }
    Ok(End { stops, ids, min_tokens })
}

/// Refuses stop strings that are empty, too many or too long.
pub fn check_stops(field: &str, stops: &[String]) -> Result<(), Refusal> {
    if stops.len() > STOPS_MAX {
        let message = format!("{} stop strings are more than the {STOPS_MAX} that are taken", stops.len());
        return Err(Refusal::field(field, message));
    }
    if let Some(index) = stops.iter().position(String::is_empty) {
        return Err(Refusal::field(field, format!("stop string {index} is empty; leave it out")));
    }
    let bytes: usize = stops.iter().map(String::len).sum();
    if bytes > STOP_BYTES_MAX {
        let message = format!("the stop strings have {bytes} bytes, more than the {STOP_BYTES_MAX} taken");
        return Err(Refusal::field(field, message));
    }
    Ok(())
}

/// A count that a client gave, as far as this machine can count.
pub fn count(given: Option<u64>) -> Option<usize> {
    given.map(|n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// The number of choices, within the server's limit.
pub fn choices(field: &str, given: Option<u64>, limit: usize) -> Result<usize, Refusal> {
    match count(given).unwrap_or(1) {
        0 => Err(Refusal::field(field, format!("'{field}' is 0; ask for one choice at least"))),
        n if n > limit => {
            Err(Refusal::field(field, format!("'{field}' is {n}, more than the {limit} choices allowed")))
        }
        n => Ok(n),
    }
}
