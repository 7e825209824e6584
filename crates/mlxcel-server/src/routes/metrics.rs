//! `/metrics`, for Prometheus.

use std::sync::Arc;

use axum::http::{Method, header};
use axum::response::{IntoResponse as _, Response};

use super::{Access, Call, Route};
use crate::app::App;
use crate::openapi::{Described, Reply};
use crate::refusal::Refusal;

pub static METRICS: Route = Route {
    method: Method::GET,
    paths: &["/metrics"],
    summary: "Counters in the text form of Prometheus.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Text("text/plain") },
    handler: |app, call| Box::pin(metrics(app, call)),
};

async fn metrics(app: Arc<App>, _: Call) -> Result<Response, Refusal> {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, app.metrics.render()).into_response())
}
