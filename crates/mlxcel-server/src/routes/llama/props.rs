//! `/props` and `/slots`: what the server is, and what it is doing.

use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use mlxcel_text::TemplateChoice;
use serde_json::{Value, json};

use crate::app::App;
use crate::openapi::{Described, Reply, schema};
use crate::refusal::Refusal;
use crate::routes::{Access, Call, Route};

pub static PROPS: Route = Route {
    method: Method::GET,
    paths: &["/props"],
    summary: "What the default model is, and how tokens are drawn by default.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(props(app, call)),
};

pub static SLOTS: Route = Route {
    method: Method::GET,
    paths: &["/slots"],
    summary: "How many requests are computed side by side, and how many of these places are taken.",
    access: Access::Keyed,
    described: Described { request: None, response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(slots(app, call)),
};

async fn props(app: Arc<App>, _: Call) -> Result<Response, Refusal> {
    let model = app.model(None).await?;
    let defaults = &app.config.sampling;
    let tokens = model.text.tokenizer.template_tokens();
    let props = json!({
        "default_generation_settings": {
            "n_ctx": model.info.context,
            "params": {
                "temperature": defaults.temperature,
                "top_k": defaults.top_k,
                "top_p": defaults.top_p,
                "min_p": defaults.min_p,
                "repeat_penalty": defaults.repetition_penalty,
            },
        },
        "total_slots": model.info.parallel,
        "model_alias": model.id,
        "model_path": model.info.path,
        "chat_template": model.text.template_source(TemplateChoice::Default),
        "bos_token": tokens.get("bos_token"),
        "eos_token": tokens.get("eos_token"),
        "modalities": {"vision": false, "audio": false},
        "build_info": format!("mlxcel {} ({} on {})", env!("CARGO_PKG_VERSION"), model.info.engine, model.info.device),
    });
    Ok(Json(props).into_response())
}

async fn slots(app: Arc<App>, _: Call) -> Result<Response, Refusal> {
    let model = app.model(None).await?;
    let running = app.metrics.model(&model.id).running.get() as usize;
    let slot = |id: usize| json!({"id": id, "n_ctx": model.info.context, "is_processing": id < running});
    let slots: Vec<Value> = (0..model.info.parallel).map(slot).collect();
    Ok(Json(slots).into_response())
}
