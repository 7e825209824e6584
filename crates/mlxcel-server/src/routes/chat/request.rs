//! What a chat request may hold. Fields of sampling stand beside these.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::messages::Message;
use crate::conversation::Turn;
use crate::openai::{ResponseFormat, StreamOptions, Tool, ToolChoice};
use crate::refusal::Refusal;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatBody {
    /// The default model where it is missing.
    pub model: Option<String>,
    #[schemars(length(min = 1, max = 10000))]
    pub messages: Vec<Message>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    #[schemars(range(min = 1))]
    pub n: Option<u64>,
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u64>,
    /// The newer name of `max_tokens`.
    #[schemars(range(min = 1))]
    pub max_completion_tokens: Option<u64>,
    pub logprobs: Option<bool>,
    #[schemars(range(min = 0, max = 20))]
    pub top_logprobs: Option<u64>,
    pub response_format: Option<ResponseFormat>,
    pub tools: Option<Vec<Tool>>,
    pub tool_choice: Option<ToolChoice>,
    pub parallel_tool_calls: Option<bool>,
    /// Given to the template; `none` also asks it not to think.
    pub reasoning_effort: Option<Effort>,
    /// Whether the answer goes on from the last message, which is the assistant's. It does where that comes last,
    /// unless this or `add_generation_prompt` says otherwise.
    pub continue_final_message: Option<bool>,
    /// Whether the prompt ends with the words by which the template opens an answer.
    pub add_generation_prompt: Option<bool>,
    /// Further variables of the template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Requests with the same key share what was computed; others do not see it.
    pub prompt_cache_key: Option<String>,
    /// Written to the log.
    pub user: Option<String>,
    /// Answers are not kept: only `false`.
    pub store: Option<bool>,
    /// Only `auto` and `default`.
    #[serde(rename = "service_tier")]
    pub _service_tier: Option<ServiceTier>,
    /// Only `["text"]`.
    #[serde(rename = "modalities")]
    pub _modalities: Option<Vec<Modality>>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ServiceTier {
    Auto,
    Default,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Modality {
    Text,
}

impl Effort {
    /// What a template is told of it.
    pub fn variables(self) -> Map<String, Value> {
        let word = serde_json::to_value(self).unwrap_or_default();
        let mut variables = Map::from_iter([("reasoning_effort".to_string(), word)]);
        if self == Effort::None {
            variables.insert("enable_thinking".to_string(), Value::Bool(false));
        }
        variables
    }
}

impl ChatBody {
    /// New tokens at most.
    pub fn max_tokens(&self) -> Result<Option<u64>, Refusal> {
        let (field, given) = match (self.max_tokens, self.max_completion_tokens) {
            (Some(_), Some(_)) => {
                let message = "'max_completion_tokens' and 'max_tokens' are one thing; give one of them";
                return Err(Refusal::field("max_completion_tokens", message));
            }
            (given, None) => ("max_tokens", given),
            (None, given) => ("max_completion_tokens", given),
        };
        match given {
            Some(0) => Err(Refusal::field(field, format!("'{field}' is 0; ask for one token at least"))),
            given => Ok(given),
        }
    }

    /// How many alternatives are told for each token.
    pub fn logprobs(&self) -> Result<Option<usize>, Refusal> {
        const MOST: u64 = 20;
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (false, None) => Ok(None),
            (false, Some(_)) => {
                let message = "'top_logprobs' needs 'logprobs': true";
                Err(Refusal::field("top_logprobs", message))
            }
            (true, top) if top.unwrap_or(0) > MOST => {
                let message = format!("'top_logprobs' is more than {MOST}; ask for fewer");
                Err(Refusal::field("top_logprobs", message))
            }
            (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        }
    }

    /// Where the answer begins, by the messages as the template reads them.
    pub fn turn(continues: Option<bool>, opens: Option<bool>, messages: &[Value]) -> Result<Turn, Refusal> {
        const FIELD: &str = "continue_final_message";
        match (continues, opens, Turn::after(messages)) {
            (Some(true), Some(true), _) => {
                let message = "'continue_final_message' and 'add_generation_prompt' exclude each other";
                Err(Refusal::field(FIELD, message))
            }
            (Some(true), _, Turn::New) => {
                let message = "the last message is no text of the assistant, so it cannot be gone on from";
                Err(Refusal::field(FIELD, message))
            }
            (Some(true), _, _) | (None, None | Some(false), Turn::Begun) => Ok(Turn::Begun),
            (_, Some(false), _) => Ok(Turn::Bare),
            _ => Ok(Turn::New),
        }
    }

    /// Refuses what is understood and cannot be done.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.store == Some(true) {
            let message = "chats are not stored; send 'store': false, or use /v1/responses";
            return Err(Refusal::field("store", message));
        }
        Ok(())
    }
}
