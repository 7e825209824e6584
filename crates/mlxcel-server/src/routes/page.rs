//! The chat page at `/`: files within the program, which ask nothing of anyone else.

use std::sync::Arc;

use axum::http::{Method, header};
use axum::response::{IntoResponse as _, Response};

use super::{Access, Call, Route};
use crate::app::App;
use crate::openapi::{Described, Reply};
use crate::refusal::Refusal;

pub static PAGE: Route = Route {
    method: Method::GET,
    paths: &["/"],
    summary: "The chat page.",
    access: Access::Open,
    described: Described { request: None, response: Reply::Text("text/html") },
    handler: |app, call| Box::pin(page(app, call)),
};

pub static SCRIPT: Route = Route {
    method: Method::GET,
    paths: &["/app.js"],
    summary: "The script of the chat page.",
    access: Access::Open,
    described: Described { request: None, response: Reply::Text("text/javascript") },
    handler: |app, call| Box::pin(script(app, call)),
};

pub static STYLE: Route = Route {
    method: Method::GET,
    paths: &["/style.css"],
    summary: "The style of the chat page.",
    access: Access::Open,
    described: Described { request: None, response: Reply::Text("text/css") },
    handler: |app, call| Box::pin(style(app, call)),
};

async fn page(_: Arc<App>, _: Call) -> Result<Response, Refusal> {
    Ok(file("text/html; charset=utf-8", include_str!("../page/index.html")))
}

async fn script(_: Arc<App>, _: Call) -> Result<Response, Refusal> {
    Ok(file("text/javascript; charset=utf-8", include_str!("../page/app.js")))
}

async fn style(_: Arc<App>, _: Call) -> Result<Response, Refusal> {
    Ok(file("text/css; charset=utf-8", include_str!("../page/style.css")))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
             form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
        ),
    ];
    (headers, text).into_response()
}
