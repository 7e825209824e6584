//! `/v1/chat/completions`: OpenAI's chats.

mod answer;
mod messages;
mod request;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value};

pub use answer::{ChatCompletion, Heading, Telling};
pub use messages::{Message, for_template};
pub use request::{ChatBody, Effort};

use super::{Access, Call, Route};
use crate::app::App;
use crate::conversation::{Conversation, DeveloperRole};
use crate::generate::Generation;
use crate::model::Model;
use crate::openai::{StreamOptions, Tools};
use crate::openapi::{Described, Reply, schema, schema_with_sampling};
use crate::order::{self, Order};
use crate::reading::Calls;
use crate::refusal::Refusal;
use crate::sse;
use crate::wire::{self, SamplingFields};
use answer::{Chunks, whole};

pub static CHAT: Route = Route {
    method: Method::POST,
    paths: &["/v1/chat/completions", "/chat/completions"],
    summary: "Answers a chat.",
    access: Access::Keyed,
    described: Described {
        request: Some(schema_with_sampling::<ChatBody>),
        response: Reply::JsonOrEvents(schema::<ChatCompletion>),
    },
    handler: |app, call| Box::pin(chat(app, call)),
};

async fn chat(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let (body, sampling) = wire::parse_with_sampling::<ChatBody>(&call.body)?;
    body.check()?;
    let stream = body.stream.unwrap_or(false);
    let usage =
        if StreamOptions::usage(body.stream_options, stream)? { Telling::Usage } else { Telling::Text };
    let model = app.model(body.model.as_deref()).await?;
    tracing::debug!(id = %call.id, model = %model.id, user = body.user, "a chat");
    let order = order(&app, &model, body, &sampling).await?;
    let order = if stream { order.streamed() } else { order };
    let choices = order.n;
    let mut generation = Generation::start(&app, Arc::clone(&model), order).await?;
    let heading = Heading::new("chatcmpl-", &model);
    if stream {
        return sse::respond(generation, Chunks::new(heading, model, choices, usage)).await;
    }
    let pieces = generation.all().await?;
    Ok(Json(whole(heading, &generation, pieces)).into_response())
}

/// What the client asks for, checked and in tokens.
async fn order(
    app: &App,
    model: &Model,
    mut body: ChatBody,
    sampling: &SamplingFields,
) -> Result<Order, Refusal> {
    let format = body.response_format.as_ref().map(|format| format.grammar()).transpose()?.flatten();
    let (max_tokens, logprobs) = (order::count(body.max_tokens()?), body.logprobs()?);
    let n = order::choices("n", body.n, app.config.limits.choices)?;
    let cache_key = body.prompt_cache_key.as_deref().map_or(0, cache_key);
    let (continues, opens) = (body.continue_final_message, body.add_generation_prompt);
    let variables = variables(&mut body);
    let messages = messages::for_template(body.messages, DeveloperRole::of(model))?;
    let conversation = Conversation {
        tools: Tools::new(body.tools.take(), body.tool_choice.take())?,
        calls: if body.parallel_tool_calls == Some(false) { Calls::One } else { Calls::Several },
        variables,
        format: format.map(|source| (source, "response_format")),
        thinking: None,
        turn: ChatBody::turn(continues, opens, &messages)?,
        messages,
    };
    let order = conversation.order(app, model, sampling).await?;
    Ok(Order { n, max_tokens, logprobs, cache_key, ..order })
}

/// What a template is told beside the messages: what the client says itself comes first.
fn variables(body: &mut ChatBody) -> Map<String, Value> {
    let mut variables = body.reasoning_effort.map(Effort::variables).unwrap_or_default();
    variables.extend(body.chat_template_kwargs.take().unwrap_or_default());
    variables
}

/// A client's key as the scheduler takes it; 0 is for those without one.
pub fn cache_key(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish().max(1)
}
