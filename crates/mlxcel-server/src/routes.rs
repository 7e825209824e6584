//! Every route in one table, from which both the router and the OpenAPI document are made. A route reads its own
//! request and shapes its own answer; what comes before and after is `front`'s business.

mod anthropic;
mod chat;
mod completions;
mod embeddings;
mod health;
mod llama;
mod metrics;
mod models;
mod openapi;
mod page;
mod responses;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::Method;
use axum::response::Response;
use bytes::Bytes;

pub use responses::Store;

use crate::app::App;
use crate::openapi::Described;
use crate::refusal::Refusal;

/// What a client asks at one path.
pub struct Route {
    pub method: Method,
    /// The first is the documented one.
    pub paths: &'static [&'static str],
    pub summary: &'static str,
    pub access: Access,
    pub described: Described,
    pub handler: Handler,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Who has a key, where there are keys.
    Keyed,
    /// Everyone: only the chat page's own files, which a browser asks for before it can be given a key.
    Open,
}

pub type Handler = fn(Arc<App>, Call) -> Answer;

pub type Answer = Pin<Box<dyn Future<Output = Result<Response, Refusal>> + Send>>;

/// A request as a route sees it.
pub struct Call {
    pub id: String,
    /// By the names in the path.
    pub params: BTreeMap<String, String>,
    pub body: Bytes,
}

static ROUTES: &[&Route] = &[
    &page::PAGE,
    &page::STYLE,
    &page::ICON,
    &page::APP,
    &page::API,
    &page::VIEW,
    &page::STORE,
    &page::MARKDOWN,
    &page::HIGHLIGHT,
    &health::HEALTH,
    &health::READY,
    &metrics::METRICS,
    &openapi::OPENAPI,
    &models::MODELS,
    &models::MODEL,
    &chat::CHAT,
    &completions::COMPLETIONS,
    &embeddings::EMBEDDINGS,
    &responses::CREATE,
    &responses::READ,
    &responses::DELETE,
    &anthropic::MESSAGES,
    &anthropic::COUNT_TOKENS,
    &llama::COMPLETION,
    &llama::INFILL,
    &llama::TOKENIZE,
    &llama::DETOKENIZE,
    &llama::APPLY_TEMPLATE,
    &llama::EMBEDDING,
    &llama::PROPS,
    &llama::SLOTS,
];

/// All routes by path.
pub fn by_path() -> BTreeMap<&'static str, Vec<&'static Route>> {
    let mut found: BTreeMap<&'static str, Vec<&'static Route>> = BTreeMap::new();
    for route in ROUTES {
        route.paths.iter().for_each(|path| found.entry(path).or_default().push(route));
    }
    found
}

pub fn paths() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().flat_map(|route| route.paths).copied()
}

/// Who may ask for a path. What is not known is keyed.
pub fn access(method: &Method, path: &str) -> Access {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let found = ROUTES.iter().find(|route| route.method == *method && route.paths.contains(&path));
    found.map_or(Access::Keyed, |route| route.access)
}

/// The same for a path as it was declared; who may ask does not depend on the method.
pub fn access_of_path(path: &str) -> Access {
    let found = ROUTES.iter().find(|route| route.paths.contains(&path));
    found.map_or(Access::Keyed, |route| route.access)
}
