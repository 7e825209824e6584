//! What OpenAI's interfaces have in common: usage, log-probabilities, tools, formats of answers.

mod format;
mod logprobs;
mod tools;

pub use format::ResponseFormat;
pub use logprobs::Logprob;
pub use tools::{Function, FunctionName, Mode, Must, Named, Tool, ToolChoice, Tools};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The tokens of a request.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptDetails,
    pub completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct PromptDetails {
    /// Tokens that had been computed for an earlier prompt.
    pub cached_tokens: usize,
}

#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct CompletionDetails {
    pub reasoning_tokens: usize,
}

impl From<&crate::generate::Usage> for Usage {
    fn from(usage: &crate::generate::Usage) -> Self {
        Usage {
            prompt_tokens: usage.prompt,
            completion_tokens: usage.made,
            total_tokens: usage.total(),
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached },
            completion_tokens_details: CompletionDetails { reasoning_tokens: usage.reasoning },
        }
    }
}

/// How a stream is told.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether a last chunk tells the usage.
    pub include_usage: Option<bool>,
}

impl StreamOptions {
    /// Whether usage is told; `stream_options` makes sense in a stream only.
    pub fn usage(given: Option<StreamOptions>, stream: bool) -> Result<bool, crate::refusal::Refusal> {
        match given {
            Some(_) if !stream => Err(crate::refusal::Refusal::field(
                "stream_options",
                "'stream_options' is for streams; send 'stream': true with it, or leave it out",
            )),
            given => Ok(given.and_then(|options| options.include_usage).unwrap_or(false)),
        }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// What computes, as far as answers depend on it.
pub fn fingerprint(info: &crate::model::Info) -> String {
    format!("mlxcel-{}-{}", env!("CARGO_PKG_VERSION"), info.engine)
}
