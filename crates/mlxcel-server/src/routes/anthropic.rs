//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's chats.

mod answer;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Access, Call, Route};
use crate::app::App;
use crate::generate::Generation;
use crate::openapi::{Described, Reply, schema};
use crate::order::{self, Order};
use crate::refusal::Refusal;
use crate::{sse, strict};
use answer::{MessageObject, Telling, whole};
use request::{CountBody, MessagesBody};

pub static MESSAGES: Route = Route {
    method: Method::POST,
    paths: &["/v1/messages"],
    summary: "Answers a chat, as Anthropic does.",
    access: Access::Keyed,
    described: Described {
        request: Some(schema::<MessagesBody>),
        response: Reply::JsonOrEvents(schema::<MessageObject>),
    },
    handler: |app, call| Box::pin(messages(app, call)),
};

pub static COUNT_TOKENS: Route = Route {
    method: Method::POST,
    paths: &["/v1/messages/count_tokens"],
    summary: "Counts the tokens of a chat.",
    access: Access::Keyed,
    described: Described { request: Some(schema::<CountBody>), response: Reply::Json(schema::<Count>) },
    handler: |app, call| Box::pin(count_tokens(app, call)),
};

#[derive(Debug, JsonSchema, Serialize)]
pub struct Count {
    pub input_tokens: usize,
}

async fn messages(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let mut body: MessagesBody = strict::parse(&call.body)?;
    body.check()?;
    let model = app.model(Some(&body.model)).await?;
    let (sampling, stream) = (body.sampling(), body.stream.unwrap_or(false));
    let max_tokens = order::count(Some(body.max_tokens));
    order::check_stops("stop_sequences", body.stop_sequences.as_deref().unwrap_or_default())?;
    let conversation = body.conversation()?;
    let order = conversation.order(&app, &model, &sampling).await?;
    let order = Order { max_tokens, ..order };
    let order = if stream { order.streamed() } else { order };
    let mut generation = Generation::start(&app, model, order).await?;
    if stream {
        return sse::respond(generation, Telling::new()).await;
    }
    let pieces = generation.all().await?;
    Ok(Json(whole(&generation, pieces)).into_response())
}

async fn count_tokens(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let mut body: CountBody = strict::parse(&call.body)?;
    let model = app.model(Some(&body.model)).await?;
    let prompt = body.conversation()?.render(&model).await?;
    Ok(Json(Count { input_tokens: prompt.tokens.len() }).into_response())
}
