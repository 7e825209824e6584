//! `/health`: the process answers. `/ready`: it can take work now.

use std::sync::Arc;

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::{Access, Call, Route};
use crate::app::App;
use crate::lifecycle::Phase;
use crate::model::Standing;
use crate::openapi::{Described, Reply, schema};
use crate::refusal::Refusal;

pub static HEALTH: Route = Route {
    method: Method::GET,
    paths: &["/health", "/v1/health"],
    summary: "Whether the process answers.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(health(app, call)),
};

pub static READY: Route = Route {
    method: Method::GET,
    paths: &["/ready"],
    summary: "Whether requests are taken now: 200, else 503 with the reason.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(ready(app, call)),
};

async fn health(_: Arc<App>, _: Call) -> Result<Response, Refusal> {
    Ok(Json(json!({"status": "ok"})).into_response())
}

async fn ready(app: Arc<App>, _: Call) -> Result<Response, Refusal> {
    let reason = reason(&app);
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = if reason.is_none() { "ready" } else { "not ready" };
    Ok((status, Json(json!({"status": word, "reason": reason}))).into_response())
}

/// Why no work can be taken.
fn reason(app: &App) -> Option<&'static str> {
    if app.lifecycle.phase() != Phase::Running {
        return Some("the server is about to end");
    }
    let cards = app.models.cards();
    let standings: Vec<Standing> = cards.iter().map(|card| app.models.standing(&card.id)).collect();
    if standings.contains(&Standing::Down) {
        return Some("an engine is being started anew");
    }
    // With one model, being ready means that it is loaded; with several, each is loaded when it is asked for.
    match standings[..] {
        [] => Some("there is no model"),
        [Standing::Loading | Standing::Unloaded] => Some("the model is being loaded"),
        _ => None,
    }
}
