//! `/tokenize`, `/detokenize`, `/apply-template` and `/embedding`: text to tokens and vectors, and back.

use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use mlxcel_text::{EncodeOptions, SpecialText, SpecialTokens};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::conversation::{Conversation, DeveloperRole, Turn};
use crate::openai::{Tool, Tools};
use crate::openapi::{Described, Reply, schema};
use crate::reading::Calls;
use crate::refusal::Refusal;
use crate::routes::chat::{Message, for_template};
use crate::routes::completions::token_ids;
use crate::routes::embeddings::{sequences, vectors};
use crate::routes::{Access, Call, Route};
use crate::strict;
use crate::wire::TextOr;

pub static TOKENIZE: Route = Route {
    method: Method::POST,
    paths: &["/tokenize"],
    summary: "Turns text into token ids.",
    access: Access::Keyed,
    described: Described { request: Some(schema::<TokenizeBody>), response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(tokenize(app, call)),
};

pub static DETOKENIZE: Route = Route {
    method: Method::POST,
    paths: &["/detokenize"],
    summary: "Turns token ids into text.",
    access: Access::Keyed,
    described: Described { request: Some(schema::<DetokenizeBody>), response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(detokenize(app, call)),
};

pub static APPLY_TEMPLATE: Route = Route {
    method: Method::POST,
    paths: &["/apply-template"],
    summary: "Shows the prompt that a chat becomes.",
    access: Access::Keyed,
    described: Described { request: Some(schema::<TemplateBody>), response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(apply_template(app, call)),
};

pub static EMBEDDING: Route = Route {
    method: Method::POST,
    paths: &["/embedding", "/embeddings"],
    summary: "Turns texts into vectors.",
    access: Access::Keyed,
    described: Described { request: Some(schema::<EmbeddingBody>), response: Reply::Json(schema::<Value>) },
    handler: |app, call| Box::pin(embedding(app, call)),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeBody {
    pub content: String,
    pub model: Option<String>,
    /// Whether the tokens that begin and end a text are added.
    pub add_special: Option<bool>,
    /// Whether control tokens that are written out are recognised; they are unless this is false.
    pub parse_special: Option<bool>,
    /// Whether each token is told with its text, or its bytes where it is no text.
    pub with_pieces: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeBody {
    pub tokens: Vec<Value>,
    pub model: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateBody {
    pub messages: Vec<Message>,
    pub model: Option<String>,
    pub tools: Option<Vec<Tool>>,
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingBody {
    /// A text, token ids, or a list of either.
    pub content: Option<TextOr<Value>>,
    /// The same by another name.
    pub input: Option<TextOr<Value>>,
    pub model: Option<String>,
}

async fn tokenize(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let body: TokenizeBody = strict::parse(&call.body)?;
    let model = app.model(body.model.as_deref()).await?;
    let parses = body.parse_special.unwrap_or(true);
    let options = EncodeOptions {
        special_tokens: if parses { SpecialTokens::Parse } else { SpecialTokens::AsText },
        add_special_tokens: body.add_special.unwrap_or(false),
    };
    let ids = model.text.encode(body.content, options).await?;
    if !body.with_pieces.unwrap_or(false) {
        return Ok(Json(json!({"tokens": ids})).into_response());
    }
    let piece = |id: u32| {
        let bytes = model.text.tokenizer.token_bytes(id).unwrap_or_default();
        let piece = String::from_utf8(bytes).map_or_else(|error| json!(error.into_bytes()), Value::String);
        json!({"id": id, "piece": piece})
    };
    let tokens: Vec<Value> = ids.into_iter().map(piece).collect();
    Ok(Json(json!({"tokens": tokens})).into_response())
}

async fn detokenize(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let body: DetokenizeBody = strict::parse(&call.body)?;
    let model = app.model(body.model.as_deref()).await?;
    let ids = token_ids(&model, body.tokens, "tokens")?;
    let content = model.text.tokenizer.decode(&ids, SpecialText::Show);
    let content = content.map_err(|error| Refusal::field("tokens", error.to_string()))?;
    Ok(Json(json!({"content": content})).into_response())
}

async fn apply_template(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let body: TemplateBody = strict::parse(&call.body)?;
    let model = app.model(body.model.as_deref()).await?;
    let messages = for_template(body.messages, DeveloperRole::of(&model))?;
    let conversation = Conversation {
        turn: Turn::after(&messages),
        messages,
        tools: Tools::new(body.tools, None)?,
        calls: Calls::Several,
        variables: body.chat_template_kwargs.unwrap_or_default(),
        format: None,
        thinking: None,
    };
    let prompt = conversation.render(&model).await?;
    Ok(Json(json!({"prompt": prompt.text})).into_response())
}

async fn embedding(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let body: EmbeddingBody = strict::parse(&call.body)?;
    let input = match (body.content, body.input) {
        (Some(_), Some(_)) => {
            return Err(Refusal::field("input", "'input' and 'content' are one thing; give one of them"));
        }
        (given, None) | (None, given) => given,
    };
    let input = input.ok_or_else(|| Refusal::field("content", "the field 'content' is missing"))?;
    let model = app.model(body.model.as_deref()).await?;
    let sequences = sequences(&model, input, app.config.limits.inputs).await?;
    let vectors = vectors(&model, sequences, None).await?;
    let row = |(index, vector)| json!({"index": index, "embedding": [vector]});
    let rows: Vec<Value> = vectors.into_iter().enumerate().map(row).collect();
    Ok(Json(rows).into_response())
}
