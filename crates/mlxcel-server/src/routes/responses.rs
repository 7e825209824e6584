//! `/v1/responses`: OpenAI's newer interface, with answers that are kept and can be gone on from.

mod building;
mod events;
mod request;
mod store;

use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};

pub use store::Store;

use super::{Access, Call, Route};
use crate::app::App;
use crate::conversation::{Conversation, DeveloperRole, Turn};
use crate::generate::Generation;
use crate::model::Model;
use crate::openapi::{Described, Reply, schema};
use crate::order::{self, Order};
use crate::reading::Calls;
use crate::refusal::{Kind, Refusal};
use crate::{sse, strict};
use building::Building;
use events::Telling;
use request::ResponsesBody;

pub static CREATE: Route = Route {
    method: Method::POST,
    paths: &["/v1/responses"],
    summary: "Answers, and keeps the answer.",
    access: Access::Keyed,
    described: Described {
        request: Some(schema::<ResponsesBody>),
        response: Reply::JsonOrEvents(schema::<Value>),
    },
    handler: |app, call| Box::pin(create(app, call)),
};

pub static READ: Route = Route {
    method: Method::GET,
    paths: &["/v1/responses/{id}"],
    summary: "Shows a kept answer.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(read(app, call)),
};

pub static DELETE: Route = Route {
    method: Method::DELETE,
    paths: &["/v1/responses/{id}"],
    summary: "Forgets a kept answer.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(delete(app, call)),
};

async fn create(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let object = strict::object(&call.body)?;
    let body: ResponsesBody = strict::typed(Value::Object(object.clone()))?;
    body.check()?;
    let model = app.model(body.model.as_deref()).await?;
    let stream = body.stream.unwrap_or(false);
    let is_kept = body.store.unwrap_or(true);
    let (max_tokens, sampling) = (order::count(body.max_output_tokens), body.sampling());
    let (earlier, conversation) = conversation(&app, &model, body)?;
    let order = conversation.order(&app, &model, &sampling).await?;
    let order = Order { max_tokens, ..order };
    let order = if stream { order.streamed() } else { order };
    let mut generation = Generation::start(&app, Arc::clone(&model), order).await?;
    let mut building = Building::new(about(&model, &object), earlier);
    if stream {
        return sse::respond(generation, Telling::new(app, building, is_kept)).await;
    }
    for shown in generation.all().await? {
        building.add(shown.piece, &mut |_, _| {});
    }
    let finished = building.finish(&generation.usage, &mut |_, _| {});
    let answer = finished.response.clone();
    if is_kept {
        app.responses.keep(finished);
    }
    Ok(Json(answer).into_response())
}

/// The messages that the answer is to, and the conversation that asks for it.
fn conversation(
    app: &App,
    model: &Model,
    mut body: ResponsesBody,
) -> Result<(Vec<Value>, Conversation), Refusal> {
    let mut said = match &body.previous_response_id {
        None => Vec::new(),
        Some(id) => app.responses.messages(id).ok_or_else(|| {
            let shown: String = id.chars().filter(|c| !c.is_control()).take(80).collect();
            let message = format!("there is no kept response '{shown}'; it was forgotten, or never kept");
            Refusal {
                param: Some("previous_response_id".to_string()),
                ..Refusal::new(Kind::NotFound, message)
            }
        })?,
    };
    said.extend(body.messages(DeveloperRole::of(model))?);
    let system = body.instructions.take().map(|text| json!({"role": "system", "content": text}));
    let conversation = Conversation {
        messages: system.into_iter().chain(said.iter().cloned()).collect(),
        tools: body.tools()?,
        calls: if body.parallel_tool_calls == Some(false) { Calls::One } else { Calls::Several },
        variables: body.variables(),
        format: body.format()?.map(|source| (source, "text.format")),
        thinking: None,
        turn: Turn::New,
    };
    Ok((said, conversation))
}

/// The fields of the answer that repeat the request.
fn about(model: &Model, request: &Map<String, Value>) -> Map<String, Value> {
    let given = |field: &str, default: Value| {
        let value = request.get(field).filter(|value| !value.is_null()).cloned();
        (field.to_string(), value.unwrap_or(default))
    };
    let mut about = Map::from_iter([
        given("instructions", Value::Null),
        given("max_output_tokens", Value::Null),
        given("metadata", json!({})),
        given("parallel_tool_calls", json!(true)),
        given("previous_response_id", Value::Null),
        given("reasoning", json!({"effort": null, "summary": null})),
        given("store", json!(true)),
        given("temperature", Value::Null),
        given("text", json!({"format": {"type": "text"}})),
        given("tool_choice", json!("auto")),
        given("tools", json!([])),
        given("top_p", Value::Null),
        given("truncation", json!("disabled")),
        given("user", Value::Null),
    ]);
    about.insert("model".to_string(), json!(model.id));
    about
}

async fn read(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let id = call.params.get("id").map(String::as_str).unwrap_or_default();
    app.responses.get(id).map(|response| Json(response).into_response()).ok_or_else(unknown)
}

async fn delete(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let id = call.params.get("id").map(String::as_str).unwrap_or_default();
    if !app.responses.forget(id) {
        return Err(unknown());
    }
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})).into_response())
}

fn unknown() -> Refusal {
    Refusal::new(Kind::NotFound, "there is no such response; it was forgotten, or never kept")
}
