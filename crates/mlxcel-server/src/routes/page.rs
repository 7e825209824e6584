//! The chat page at `/`: files within the program, which ask nothing of anyone else.

use std::sync::Arc;

use axum::http::{Method, header};
use axum::response::{IntoResponse as _, Response};

use super::{Access, Call, Route};
use crate::app::App;
use crate::openapi::{Described, Reply};

/// Routes of files that are part of the program.
macro_rules! files {
    ($($name:ident: $path:literal, $kind:literal, $file:literal, $summary:literal;)*) => {
        $(pub static $name: Route = Route {
            method: Method::GET,
            paths: &[$path],
            summary: $summary,
            access: Access::Open,
            described: Described { request: None, response: Reply::Text($kind) },
            handler: |_: Arc<App>, _: Call| Box::pin(async { Ok(file($kind, include_str!($file))) }),
        };)*
    };
}

files! {
    PAGE: "/", "text/html; charset=utf-8", "../page/index.html", "The chat page.";
    STYLE: "/page/style.css", "text/css; charset=utf-8", "../page/style.css", "Its style.";
    ICON: "/page/icon.svg", "image/svg+xml", "../page/icon.svg", "Its icon.";
    APP: "/page/app.js", "text/javascript; charset=utf-8", "../page/app.js", "Its script.";
    API: "/page/api.js", "text/javascript; charset=utf-8", "../page/api.js", "How it asks the server.";
    VIEW: "/page/view.js", "text/javascript; charset=utf-8", "../page/view.js", "What it shows.";
    STORE: "/page/store.js", "text/javascript; charset=utf-8", "../page/store.js", "What it keeps.";
    MARKDOWN: "/page/markdown.js", "text/javascript; charset=utf-8", "../page/markdown.js", "How answers are set.";
    HIGHLIGHT: "/page/highlight.js", "text/javascript; charset=utf-8", "../page/highlight.js", "How code is coloured.";
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
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
             form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
        ),
    ];
    (headers, text).into_response()
}
