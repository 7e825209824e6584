//! `/v1/models`: what can be asked for.

use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Access, Call, Route};
use crate::app::App;
use crate::model::{Card, Standing};
use crate::openapi::{Described, Reply, schema};
use crate::refusal::{Kind, Refusal};

pub static MODELS: Route = Route {
    method: Method::GET,
    paths: &["/v1/models", "/models"],
    summary: "Lists the models.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<ModelList>) },
    handler: |app, call| Box::pin(models(app, call)),
};

pub static MODEL: Route = Route {
    method: Method::GET,
    paths: &["/v1/models/{*model}"],
    summary: "Tells about a model.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<ModelObject>) },
    handler: |app, call| Box::pin(model(app, call)),
};

#[derive(Debug, JsonSchema, Serialize)]
pub struct ModelList {
    pub object: &'static str,
    pub data: Vec<ModelObject>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct ModelObject {
    pub id: String,
    pub object: &'static str,
    pub created: u64,
    pub owned_by: &'static str,
    pub aliases: Vec<String>,
    /// `unloaded`, `loading`, `ready` or `down`.
    pub status: &'static str,
    /// What is known once it is loaded.
    pub meta: Option<Meta>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct Meta {
    pub n_ctx: usize,
    pub n_vocab: usize,
    pub family: String,
}

async fn models(app: Arc<App>, _: Call) -> Result<Response, Refusal> {
    let data = app.models.cards().into_iter().map(|card| object(&app, card)).collect();
    Ok(Json(ModelList { object: "list", data }).into_response())
}

async fn model(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let name = call.params.get("model").map(String::as_str).unwrap_or_default();
    let card = app.models.cards().into_iter().find(|card| card.answers_to(name));
    let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    let card = card.ok_or_else(|| {
        Refusal::new(Kind::NotFound, format!("there is no model '{shown}'; /v1/models lists them"))
            .with_code("model_not_found")
    })?;
    Ok(Json(object(&app, card)).into_response())
}

fn object(app: &App, card: Card) -> ModelObject {
    let status = match app.models.standing(&card.id) {
        Standing::Unloaded => "unloaded",
        Standing::Loading => "loading",
        Standing::Ready => "ready",
        Standing::Down => "down",
    };
    let meta = app.models.peek(&card.id).map(|model| Meta {
        n_ctx: model.info.context,
        n_vocab: model.info.vocab_size,
        family: model.info.family.clone(),
    });
    let Card { id, aliases, created } = card;
    ModelObject { id, object: "model", created, owned_by: "mlxcel", aliases, status, meta }
}
