//! `/infill`: what stands between two texts, for models that were trained to fill a gap.

use std::sync::Arc;

use axum::http::Method;
use axum::response::Response;
use mlxcel_text::EncodeOptions;

use super::completion::{Completed, CompletionBody, answer};
use crate::app::App;
use crate::model::Model;
use crate::openapi::{Described, Reply, schema, schema_with_sampling};
use crate::refusal::{Kind, Refusal};
use crate::routes::{Access, Call, Route};
use crate::wire::{self, TextOr};

pub static INFILL: Route = Route {
    method: Method::POST,
    paths: &["/infill"],
    summary: "Fills the gap between two texts.",
    access: Access::Keyed,
    described: Described {
        request: Some(schema_with_sampling::<CompletionBody>),
        response: Reply::JsonOrEvents(schema::<Completed>),
    },
    handler: |app, call| Box::pin(infill(app, call)),
};

/// What marks prefix, suffix and gap, by family.
const MARKS: &[[&str; 3]] = &[
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

async fn infill(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let (mut body, sampling) = wire::parse_with_sampling::<CompletionBody>(&call.body)?;
    let needed = |field: &str, given: Option<String>| {
        given.ok_or_else(|| Refusal::field(field, format!("the field '{field}' is missing")))
    };
    let before = needed("input_prefix", body.input_prefix.take())?;
    let after = needed("input_suffix", body.input_suffix.take())?;
    let begun = match body.prompt.take() {
        None => String::new(),
        Some(TextOr::Text(text)) => text,
        Some(TextOr::Items(_)) => return Err(Refusal::field("prompt", "'prompt' must be a text here")),
    };
    let model = app.model(body.model.as_deref()).await?;
    let [prefix, suffix, middle] = marks(&model)?;
    let plain = EncodeOptions { add_special_tokens: false, ..EncodeOptions::default() };
    let mut prompt = vec![prefix];
    prompt.extend(model.text.encode(before, plain).await?);
    prompt.push(suffix);
    prompt.extend(model.text.encode(after, plain).await?);
    prompt.push(middle);
    prompt.extend(model.text.encode(begun, plain).await?);
    answer(&app, model, vec![prompt], &sampling, body).await
}

fn marks(model: &Model) -> Result<[u32; 3], Refusal> {
    let id = |mark: &str| model.text.tokenizer.token_id(mark);
    let found =
        MARKS.iter().find_map(|[prefix, suffix, middle]| Some([id(prefix)?, id(suffix)?, id(middle)?]));
    found.ok_or_else(|| {
        let message =
            format!("the model '{}' has no tokens that mark a gap; ask one made for code", model.id);
        Refusal::new(Kind::Invalid, message)
    })
}
