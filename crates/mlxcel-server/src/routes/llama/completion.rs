//! `/completion`: llama-server's own way to go on from a text.

use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use mlxcel_text::GrammarSource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::App;
use crate::generate::{Ended, Generation, Piece, Shown, Timings, TokenInfo};
use crate::model::Model;
use crate::openai::Logprob;
use crate::openapi::{Described, Reply, schema, schema_with_sampling};
use crate::order::Order;
use crate::refusal::{Dialect, Refusal};
use crate::routes::completions::prompts;
use crate::routes::{Access, Call, Route};
use crate::sse::{self, Events, Script};
use crate::wire::{self, SamplingFields, TextOr};

pub static COMPLETION: Route = Route {
    method: Method::POST,
    paths: &["/completion", "/completions"],
    summary: "Goes on from a text.",
    access: Access::Keyed,
    described: Described {
        request: Some(schema_with_sampling::<CompletionBody>),
        response: Reply::JsonOrEvents(schema::<Completed>),
    },
    handler: |app, call| Box::pin(completion(app, call)),
};

const PROBS_MAX: u64 = 100;

/// What `/completion` and `/infill` take.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionBody {
    /// A text, or token ids; for `/infill` the beginning of what fills the gap.
    pub prompt: Option<TextOr<Value>>,
    /// For `/infill`: what stands before the gap, and after it.
    pub input_prefix: Option<String>,
    pub input_suffix: Option<String>,
    pub model: Option<String>,
    pub stream: Option<bool>,
    /// New tokens at most; -1 goes on to the end of the answer or of the context.
    #[schemars(range(min = -1))]
    pub n_predict: Option<i64>,
    /// How many alternatives are told for each token.
    #[schemars(range(min = 0, max = 100))]
    pub n_probs: Option<u64>,
    /// Whether token ids are told.
    pub return_tokens: Option<bool>,
    /// What prompts have in common is always kept: only `true`.
    pub cache_prompt: Option<bool>,
    /// Places are not chosen by clients: only -1.
    pub id_slot: Option<i64>,
    /// A grammar in GBNF.
    pub grammar: Option<String>,
    pub json_schema: Option<Value>,
}

/// An answer, or a part of one.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Completed {
    pub index: usize,
    pub content: String,
    pub tokens: Vec<u32>,
    pub id_slot: i64,
    pub stop: bool,
    pub tokens_predicted: usize,
    pub tokens_evaluated: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub completion_probabilities: Vec<Logprob>,
    #[serde(flatten)]
    pub end: Option<End>,
}

/// What is told at the end.
#[derive(Debug, JsonSchema, Serialize)]
pub struct End {
    pub model: String,
    pub stop_type: &'static str,
    pub stopping_word: String,
    /// A prompt is refused rather than cut.
    pub truncated: bool,
    pub tokens_cached: usize,
    pub timings: Timings,
}

async fn completion(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let (body, sampling) = wire::parse_with_sampling::<CompletionBody>(&call.body)?;
    for (field, given) in [("input_prefix", &body.input_prefix), ("input_suffix", &body.input_suffix)] {
        if given.is_some() {
            return Err(Refusal::field(field, format!("the field '{field}' is for /infill; leave it out")));
        }
    }
    let model = app.model(body.model.as_deref()).await?;
    let prompt =
        body.prompt.clone().ok_or_else(|| Refusal::field("prompt", "the field 'prompt' is missing"))?;
    let prompts = prompts(&model, prompt, 1).await?;
    answer(&app, model, prompts, &sampling, body).await
}

/// Goes on from a prompt in tokens.
pub async fn answer(
    app: &App,
    model: Arc<Model>,
    prompts: Vec<Vec<u32>>,
    sampling: &SamplingFields,
    how: CompletionBody,
) -> Result<Response, Refusal> {
    how.check()?;
    let grammar = match how.grammar()? {
        Some((source, field)) => Some(model.text.grammar(source, field).await?),
        None => None,
    };
    let order = Order::new(&model, prompts, sampling, &app.config.sampling)?;
    let max_tokens = how.n_predict.and_then(|n| usize::try_from(n).ok());
    let logprobs = how.n_probs.filter(|n| *n > 0).map(|n| n as usize);
    let order = Order { max_tokens, logprobs, grammar, ..order };
    let mut generation = Generation::start(app, Arc::clone(&model), order).await?;
    let mut parts = Parts { model, tells_tokens: how.return_tokens.unwrap_or(false), ended: None };
    if how.stream.unwrap_or(false) {
        return sse::respond(generation, parts).await;
    }
    let mut whole = Completed { id_slot: -1, stop: true, ..Completed::default() };
    for shown in generation.all().await? {
        let part = parts.part(shown.piece, &generation);
        whole.content.push_str(&part.content);
        whole.tokens.extend(part.tokens);
        whole.completion_probabilities.extend(part.completion_probabilities);
    }
    whole.tokens_predicted = generation.usage.made;
    whole.tokens_evaluated = generation.usage.prompt;
    whole.end = Some(parts.end_of(&generation));
    Ok(Json(whole).into_response())
}

impl CompletionBody {
    fn check(&self) -> Result<(), Refusal> {
        if self.n_predict.is_some_and(|n| n < -1) {
            return Err(Refusal::field("n_predict", "'n_predict' is -1 for no bound, or a number of tokens"));
        }
        if self.n_probs.is_some_and(|n| n > PROBS_MAX) {
            return Err(Refusal::field(
                "n_probs",
                format!("'n_probs' is more than {PROBS_MAX}; ask for fewer"),
            ));
        }
        if self.cache_prompt == Some(false) {
            let message = "prompts that begin alike always share what was computed; leave 'cache_prompt' out";
            return Err(Refusal::field("cache_prompt", message));
        }
        if self.id_slot.is_some_and(|id| id != -1) {
            return Err(Refusal::field("id_slot", "requests are not bound to a slot; leave 'id_slot' out"));
        }
        Ok(())
    }

    fn grammar(&self) -> Result<Option<(GrammarSource, &'static str)>, Refusal> {
        let grammar = self.grammar.clone().filter(|grammar| !grammar.is_empty());
        match (grammar, self.json_schema.clone()) {
            (Some(_), Some(_)) => {
                let message =
                    "'grammar' and 'json_schema' cannot be followed together; leave one of them out";
                Err(Refusal::field("grammar", message))
            }
            (Some(gbnf), None) => Ok(Some((GrammarSource::Gbnf(gbnf), "grammar"))),
            (None, Some(schema)) => Ok(Some((GrammarSource::JsonSchema(schema), "json_schema"))),
            (None, None) => Ok(None),
        }
    }
}

/// Tells an answer in parts.
struct Parts {
    model: Arc<Model>,
    tells_tokens: bool,
    ended: Option<Ended>,
}

impl Parts {
    fn part(&mut self, piece: Piece, generation: &Generation) -> Completed {
        let mut part = Completed {
            id_slot: -1,
            tokens_predicted: generation.usage.made,
            tokens_evaluated: generation.usage.prompt,
            ..Completed::default()
        };
        match piece {
            Piece::Text { text, tokens } => {
                let logprob = |token: &TokenInfo| Logprob::new(&self.model.text.tokenizer, token);
                part.completion_probabilities = tokens.iter().filter_map(logprob).collect();
                if self.tells_tokens {
                    part.tokens = tokens.iter().map(|token| token.id).collect();
                }
                part.content = text;
            }
            Piece::Ended(ended) => self.ended = Some(ended),
            Piece::Reasoning(_) | Piece::ToolBegin { .. } | Piece::ToolArguments { .. } => {}
        }
        part
    }

    fn end_of(&self, generation: &Generation) -> End {
        let (stop_type, word) = match &self.ended {
            Some(Ended::Complete) => ("eos", ""),
            Some(Ended::Stop(word)) => ("word", word.as_str()),
            Some(Ended::Length) => ("limit", ""),
            None => ("none", ""),
        };
        End {
            model: self.model.id.clone(),
            stop_type,
            stopping_word: word.to_string(),
            truncated: false,
            tokens_cached: generation.usage.cached,
            timings: generation.usage.timings(),
        }
    }
}

impl Script for Parts {
    const DIALECT: Dialect = Dialect::Llama;

    fn begin(&mut self, _: &Generation, _: &mut Events) {}

    fn show(&mut self, shown: Shown, generation: &Generation, events: &mut Events) {
        let is_text = matches!(shown.piece, Piece::Text { .. });
        let part = self.part(shown.piece, generation);
        if is_text {
            events.data(&part);
        }
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        let end = Some(self.end_of(generation));
        let (tokens_predicted, tokens_evaluated) = (generation.usage.made, generation.usage.prompt);
        let last = Completed {
            id_slot: -1,
            stop: true,
            tokens_predicted,
            tokens_evaluated,
            end,
            ..Completed::default()
        };
        events.data(&last);
    }
}
