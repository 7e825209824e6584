//! Log-probabilities as chats show them: each token as text and as bytes.

use mlxcel_text::Tokenizer;
use schemars::JsonSchema;
use serde::Serialize;

use crate::generate::TokenInfo;

/// A token of the answer, and what else was likely.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Logprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Option<Vec<u8>>,
    pub top_logprobs: Vec<TopLogprob>,
}

#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct TopLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Option<Vec<u8>>,
}

/// The least that is written: JSON has no minus infinity.
const LEAST: f32 = -9999.0;

impl Logprob {
    /// `None` where nothing was asked for.
    pub fn new(tokenizer: &Tokenizer, token: &TokenInfo) -> Option<Self> {
        let logprobs = token.logprobs.as_ref()?;
        let TopLogprob { token, logprob, bytes } = TopLogprob::new(tokenizer, token.id, logprobs.chosen);
        let top = logprobs.top.iter().map(|(id, logprob)| TopLogprob::new(tokenizer, *id, *logprob));
        Some(Logprob { token, logprob, bytes, top_logprobs: top.collect() })
    }
}

impl TopLogprob {
    fn new(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Self {
        let bytes = tokenizer.token_bytes(id);
        let token = bytes.as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        TopLogprob { token, logprob: logprob.max(LEAST), bytes }
    }
}
