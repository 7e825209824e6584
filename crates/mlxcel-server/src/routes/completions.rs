//! `/v1/completions`: OpenAI's older interface, in which a model goes on from a text.

mod answer;

use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use mlxcel_text::EncodeOptions;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

pub use answer::Completion;

use super::chat::{Heading, Telling};
use super::{Access, Call, Route};
use crate::app::App;
use crate::generate::Generation;
use crate::model::Model;
use crate::openai::{ResponseFormat, StreamOptions};
use crate::openapi::{Described, Reply, schema, schema_with_sampling};
use crate::order::{self, Order};
use crate::refusal::Refusal;
use crate::wire::{self, TextOr};
use crate::{sse, strict};
use answer::{Chunks, Echo, whole};

pub static COMPLETIONS: Route = Route {
    method: Method::POST,
    paths: &["/v1/completions"],
    summary: "Goes on from a text.",
    access: Access::Keyed,
    described: Described {
        request: Some(schema_with_sampling::<CompletionBody>),
        response: Reply::JsonOrEvents(schema::<Completion<'static>>),
    },
    handler: |app, call| Box::pin(completions(app, call)),
};

/// New tokens where nothing is said, as OpenAI has it.
const MAX_TOKENS: usize = 16;
const LOGPROBS_MAX: u64 = 20;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionBody {
    /// The default model where it is missing.
    pub model: Option<String>,
    /// A text, token ids, or a list of either.
    pub prompt: TextOr<Value>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    #[schemars(range(min = 1))]
    pub n: Option<u64>,
    #[schemars(range(min = 0))]
    pub max_tokens: Option<u64>,
    #[schemars(range(min = 0, max = 20))]
    pub logprobs: Option<u64>,
    /// Whether the prompt stands before the answer.
    pub echo: Option<bool>,
    pub response_format: Option<ResponseFormat>,
    /// Only 1, or as many as `n`.
    pub best_of: Option<u64>,
    /// Written to the log.
    pub user: Option<String>,
}

async fn completions(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let (body, sampling) = wire::parse_with_sampling::<CompletionBody>(&call.body)?;
    let stream = body.stream.unwrap_or(false);
    let usage =
        if StreamOptions::usage(body.stream_options, stream)? { Telling::Usage } else { Telling::Text };
    let n = order::choices("n", body.n, app.config.limits.choices)?;
    check(&body, n)?;
    let model = app.model(body.model.as_deref()).await?;
    tracing::debug!(id = %call.id, model = %model.id, user = body.user, "a completion");
    let prompts = prompts(&model, body.prompt, app.config.limits.choices / n).await?;
    let echo = Echo::new(&model, body.echo.unwrap_or(false), &prompts, n)?;
    let grammar = match body.response_format.as_ref().map(ResponseFormat::grammar).transpose()?.flatten() {
        Some(source) => Some(model.text.grammar(source, "response_format").await?),
        None => None,
    };
    let max_tokens = Some(order::count(body.max_tokens).unwrap_or(MAX_TOKENS));
    let logprobs = order::count(body.logprobs);
    let order = Order::new(&model, prompts, &sampling, &app.config.sampling)?;
    let order = Order { n, max_tokens, logprobs, grammar, ..order };
    let mut generation = Generation::start(&app, Arc::clone(&model), order).await?;
    let heading = Heading::new("cmpl-", &model);
    if stream {
        return sse::respond(generation, Chunks::new(heading, model, echo, usage)).await;
    }
    let pieces = generation.all().await?;
    Ok(Json(whole(heading, &generation, pieces, &echo)).into_response())
}

fn check(body: &CompletionBody, n: usize) -> Result<(), Refusal> {
    if body.logprobs.is_some_and(|k| k > LOGPROBS_MAX) {
        let message = format!("'logprobs' is more than {LOGPROBS_MAX}; ask for fewer");
        return Err(Refusal::field("logprobs", message));
    }
    if body.best_of.is_some_and(|best| order::count(Some(best)) != Some(n)) {
        let message = "'best_of' other than 'n' is not supported; leave it out";
        return Err(Refusal::field("best_of", message));
    }
    if body.echo == Some(true) && body.logprobs.is_some() {
        let message = "'echo' with 'logprobs' is not supported; leave one of them out";
        return Err(Refusal::field("echo", message));
    }
    Ok(())
}

/// The prompts in tokens: a text, token ids, or a list of either.
pub async fn prompts(model: &Model, given: TextOr<Value>, limit: usize) -> Result<Vec<Vec<u32>>, Refusal> {
    let items = match given {
        TextOr::Text(text) => return Ok(vec![encode(model, text).await?]),
        TextOr::Items(items) => items,
    };
    let is_one = items.first().is_some_and(Value::is_number);
    let items = if is_one { vec![Value::Array(items)] } else { items };
    if items.is_empty() || items.len() > limit.max(1) {
        let message = format!("there are {} prompts; send 1 to {}", items.len(), limit.max(1));
        return Err(Refusal::field("prompt", message));
    }
    let mut prompts = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let place = if is_one { "prompt".to_string() } else { format!("prompt[{index}]") };
        prompts.push(one(model, item, &place).await?);
    }
    Ok(prompts)
}

async fn one(model: &Model, item: Value, place: &str) -> Result<Vec<u32>, Refusal> {
    match item {
        Value::String(text) => encode(model, text).await,
        Value::Array(ids) => token_ids(model, ids, place),
        other => {
            let message = format!("'{place}' is {}; send text or token ids", strict::kind_of(&other));
            Err(Refusal::field(place, message))
        }
    }
}

/// Ids that a client sent, all of them in the vocabulary.
pub fn token_ids(model: &Model, ids: Vec<Value>, place: &str) -> Result<Vec<u32>, Refusal> {
    let vocab_size = model.info.vocab_size;
    let id = |value: &Value| {
        let id =
            value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < vocab_size);
        id.ok_or_else(|| {
            let shown: String = value.to_string().chars().take(40).collect();
            Refusal::field(
                place,
                format!("{shown} is no token id from 0 to {}", vocab_size.saturating_sub(1)),
            )
        })
    };
    ids.iter().map(id).collect()
}

async fn encode(model: &Model, text: String) -> Result<Vec<u32>, Refusal> {
    let encoded = model.text.encode(text, EncodeOptions::default()).await;
    encoded.map_err(|refusal| Refusal { param: Some("prompt".to_string()), ..refusal })
}
