//! Pages of other origins: refused by browsers unless an origin was asked for. A refusal here is the absence of
//! headers; nothing depends on what a client claims.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

pub fn is_preflight(origins: &[String], headers: &HeaderMap) -> bool {
    !origins.is_empty() && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

pub fn preflight() -> Response {
    let mut response = super::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    let values = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, x-api-key, anthropic-version, x-request-id",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    headers.extend(values.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

/// Lets the page of an allowed origin read the answer.
pub fn allow(origins: &[String], origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let Some(origin) = origin else { return };
    let allowed = origins.iter().any(|o| o == "*" || o.as_bytes() == origin.as_bytes());
    if allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id"));
    }
}
