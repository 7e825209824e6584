//! `/openapi.json`: this interface, described for programs.

use std::sync::{Arc, OnceLock};

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

use super::{Access, Call, Route};
use crate::app::App;
use crate::openapi::{self, Described, Reply, schema};
use crate::refusal::Refusal;

pub static OPENAPI: Route = Route {
    method: Method::GET,
    paths: &["/openapi.json"],
    summary: "This document.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(openapi(app, call)),
};

async fn openapi(_: Arc<App>, _: Call) -> Result<Response, Refusal> {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    Ok(Json(DOCUMENT.get_or_init(openapi::document)).into_response())
}
