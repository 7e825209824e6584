//! What happens to every request before and after its route: a number, the key, the host, the origin, the body, the
//! log. No route is reached around it.

mod cors;
mod host;

use std::sync::Arc;
use std::time::Instant;

use axum::RequestExt as _;
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};

use crate::app::App;
use crate::lifecycle::Phase;
use crate::metrics::milliseconds;
use crate::refusal::{Dialect, Kind, Refusal};
use crate::routes::{self, Access, Call, Route};
use crate::trace::{self, Span};

const REQUEST_ID: &str = "x-request-id";

/// All routes, each behind the front.
pub fn router(app: &Arc<App>) -> Router {
    let mut router: Router<Arc<App>> = Router::new();
    for (path, routes) in routes::by_path() {
        let methods = routes.into_iter().fold(MethodRouter::new(), |methods, route| {
            let filter = MethodFilter::try_from(route.method.clone()).expect("routes use common methods");
            let handler = move |State(app): State<Arc<App>>, request: Request| reach(app, route, request);
            methods.merge(on(filter, handler))
        });
        router = router.route(path, methods);
    }
    router
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(Arc::clone(app), front))
        .with_state(Arc::clone(app))
}

async fn front(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = RequestId::of(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let route = route_name(request.extensions().get());
    let origin = request.headers().get(header::ORIGIN).cloned();
    request.extensions_mut().insert(id.clone());
    let exporter = app.exporter.as_ref();
    let span = exporter.and_then(|exporter| Span::begin(exporter, &method, route, request.headers()));
    let mut response = match check(&app, &request) {
        Ok(Checked::Preflight) => cors::preflight(),
        Ok(Checked::Admitted) => trace::within(span.clone(), next.run(request)).await,
        Err(refusal) => refusal.respond(Dialect::of(&path)),
    };
    cors::allow(&app.config.cors_origins, origin.as_ref(), response.headers_mut());
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status().as_u16();
    app.metrics.answered(route, status);
    if let Some(span) = span {
        span.answered(status, &id.0);
    }
    let ms = milliseconds(started.elapsed());
    tracing::info!(id = %id.0, %method, %path, status, ms, "answered");
    response
}

enum Checked {
    Admitted,
    Preflight,
}

fn check(app: &App, request: &Request) -> Result<Checked, Refusal> {
    let headers = request.headers();
    host::check(app, headers)?;
    // A preflight carries no key, by its nature, and is answered only where other origins are wanted.
    if request.method() == Method::OPTIONS && cors::is_preflight(&app.config.cors_origins, headers) {
        return Ok(Checked::Preflight);
    }
    let is_open = routes::access(request.method(), request.uri().path()) == Access::Open;
    if !is_open && !app.keys.admit(headers) {
        let message = "the API key is missing or wrong; send 'Authorization: Bearer KEY'";
        return Err(Refusal::new(Kind::Unauthorized, message).with_code("invalid_api_key"));
    }
    if app.lifecycle.phase() != Phase::Running && request.method() == Method::POST {
        return Err(Refusal::new(Kind::Unavailable, "the server is about to end; ask another one"));
    }
    Ok(Checked::Admitted)
}

/// Reads what a route wants and runs it.
async fn reach(app: Arc<App>, route: &'static Route, mut request: Request) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let id = request.extensions().get::<RequestId>().cloned().unwrap_or_else(RequestId::new);
    let params = request.extract_parts::<RawPathParams>().await.ok();
    let params = params.iter().flat_map(|p| p.iter()).map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let body = match read_body(&app, route, request).await {
        Ok(body) => body,
        Err(refusal) => return refusal.respond(dialect),
    };
    let call = Call { id: id.0, params, body };
    (route.handler)(app, call).await.unwrap_or_else(|refusal| {
        if refusal.kind == Kind::Internal {
            tracing::error!(error = %refusal.message, "a request failed");
        }
        refusal.respond(dialect)
    })
}

async fn read_body(app: &App, route: &Route, request: Request) -> Result<Bytes, Refusal> {
    let limit = app.config.limits.body_bytes;
    let too_large = || {
        let message = format!("the body is larger than the {limit} bytes that are taken; send less");
        Refusal::new(Kind::TooLarge, message)
    };
    let headers = request.headers();
    if let Some(length) =
        headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok())
        && length > limit as u64
    {
        return Err(too_large());
    }
    if route.method == Method::POST {
        check_media_type(headers)?;
    }
    let body = Limited::new(request.into_body(), limit).collect();
    match tokio::time::timeout(app.config.limits.body_time, body).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Refusal::new(Kind::Invalid, format!("the body cannot be read: {error}"))),
        Err(_) => Err(Refusal::new(Kind::Timeout, "the body took too long to arrive; send it faster")),
    }
}

/// Bodies are JSON as it is: another type would be another meaning, and compressed ones may be bombs.
fn check_media_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    if let Some(encoding) = text(header::CONTENT_ENCODING).filter(|e| !e.eq_ignore_ascii_case("identity")) {
        let message = format!("the content encoding '{encoding}' is not taken; send the body as it is");
        return Err(Refusal::new(Kind::MediaType, message));
    }
    let given = text(header::CONTENT_TYPE).unwrap_or("none");
    let mut parts = given.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    let is_utf8 = parts.all(|p| p.is_empty() || !p.to_ascii_lowercase().starts_with("charset") || utf8(p));
    if is_json && is_utf8 {
        return Ok(());
    }
    let message = format!("the content type is '{given}'; send 'application/json' in UTF-8");
    Err(Refusal::new(Kind::MediaType, message))
}

fn utf8(parameter: &str) -> bool {
    let value = parameter.split_once('=').map_or("", |(_, value)| value).trim().trim_matches('"');
    value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
}

async fn not_found(request: Request) -> Response {
    let path = request.uri().path();
    let shown: String = path.chars().take(200).collect();
    let message = format!("there is nothing at {shown}; /openapi.json lists what there is");
    Refusal::new(Kind::NotFound, message).with_code("unknown_url").respond(Dialect::of(path))
}

async fn method_not_allowed(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("{} cannot be asked with {}", path, request.method());
    Refusal::new(Kind::MethodNotAllowed, message).with_code("method_not_supported").respond(Dialect::of(path))
}

/// The path of the route as it was declared, never as it was asked for.
fn route_name(matched: Option<&MatchedPath>) -> &'static str {
    let matched = matched.map(MatchedPath::as_str);
    matched.and_then(|m| routes::paths().find(|path| *path == m)).unwrap_or("other")
}

/// The number of a request: the client's, where it sent a sane one.
#[derive(Clone)]
struct RequestId(String);

impl RequestId {
    fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
        let is_sane = |id: &&str| {
            (1..=128).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        given.filter(is_sane).map_or_else(Self::new, |id| RequestId(id.to_string()))
    }

    fn new() -> Self {
        RequestId(crate::ids::new("req_"))
    }
}

/// A response without a body.
fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
