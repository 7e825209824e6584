//! `/v1/embeddings`: vectors of texts. A text that is too long is refused, never cut.

use std::sync::Arc;

use axum::Json;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlxcel_text::EncodeOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::completions::token_ids;
use super::{Access, Call, Route};
use crate::app::App;
use crate::model::Model;
use crate::openapi::{Described, Reply, schema};
use crate::refusal::Refusal;
use crate::strict;
use crate::wire::TextOr;

pub static EMBEDDINGS: Route = Route {
    method: Method::POST,
    paths: &["/v1/embeddings"],
    summary: "Turns texts into vectors.",
    access: Access::Keyed,
    described: Described {
        request: Some(schema::<EmbeddingBody>),
        response: Reply::Json(schema::<EmbeddingList>),
    },
    handler: |app, call| Box::pin(embeddings(app, call)),
};

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingBody {
    /// The default model where it is missing.
    pub model: Option<String>,
    /// A text, token ids, or a list of either.
    pub input: TextOr<Value>,
    pub encoding_format: Option<Encoding>,
    /// Keep the first numbers of each vector, for models that were trained for it.
    #[schemars(range(min = 1))]
    pub dimensions: Option<u64>,
    /// Written to the log.
    pub user: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    #[default]
    Float,
    /// The bytes of the numbers as f32, little end first.
    Base64,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct EmbeddingList {
    pub object: &'static str,
    pub data: Vec<EmbeddingObject>,
    pub model: String,
    pub usage: EmbeddingUsage,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct EmbeddingObject {
    pub object: &'static str,
    pub index: usize,
    pub embedding: Vector,
}

#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct EmbeddingUsage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
}

async fn embeddings(app: Arc<App>, call: Call) -> Result<Response, Refusal> {
    let body: EmbeddingBody = strict::parse(&call.body)?;
    let model = app.model(body.model.as_deref()).await?;
    tracing::debug!(id = %call.id, model = %model.id, user = body.user, "embeddings");
    let sequences = sequences(&model, body.input, app.config.limits.inputs).await?;
    let prompt_tokens = sequences.iter().map(Vec::len).sum();
    let vectors = vectors(&model, sequences, body.dimensions).await?;
    let encoding = body.encoding_format.unwrap_or_default();
    let object = |(index, vector)| EmbeddingObject {
        object: "embedding",
        index,
        embedding: match encoding {
            Encoding::Float => Vector::Numbers(vector),
            Encoding::Base64 => Vector::Base64(base64(&vector)),
        },
    };
    let data = vectors.into_iter().enumerate().map(object).collect();
    let usage = EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens };
    Ok(Json(EmbeddingList { object: "list", data, model: model.id.clone(), usage }).into_response())
}

fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

/// The vectors of sequences, cut to `dimensions` and brought to length 1 again where that is asked.
pub async fn vectors(
    model: &Model,
    sequences: Vec<Vec<u32>>,
    dimensions: Option<u64>,
) -> Result<Vec<Vec<f32>>, Refusal> {
    let mut vectors = model.embedding()?.embed(sequences).await?;
    let Some(wanted) = dimensions else { return Ok(vectors) };
    let width = vectors.first().map_or(0, Vec::len);
    let wanted = usize::try_from(wanted).ok().filter(|wanted| (1..=width).contains(wanted));
    let wanted = wanted.ok_or_else(|| {
        Refusal::field(
            "dimensions",
            format!("the model makes vectors of {width} numbers; ask for 1 to {width}"),
        )
    })?;
    for vector in &mut vectors {
        vector.truncate(wanted);
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        vector.iter_mut().for_each(|x| *x /= length.max(f32::MIN_POSITIVE));
    }
    Ok(vectors)
}

/// The input in tokens: a text, token ids, or a list of either.
pub async fn sequences(model: &Model, input: TextOr<Value>, limit: usize) -> Result<Vec<Vec<u32>>, Refusal> {
    let items = match input {
        TextOr::Text(text) => vec![Value::String(text)],
        TextOr::Items(ids) if ids.first().is_some_and(Value::is_number) => vec![Value::Array(ids)],
        TextOr::Items(items) => items,
    };
    if items.is_empty() || items.len() > limit {
        return Err(Refusal::field("input", format!("there are {} texts; send 1 to {limit}", items.len())));
    }
    let mut sequences = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let place = format!("input[{index}]");
        let ids = match item {
            Value::String(text) => model.text.encode(text, EncodeOptions::default()).await?,
            Value::Array(ids) => token_ids(model, ids, &place)?,
            other => {
                let message = format!("'{place}' is {}; send text or token ids", strict::kind_of(&other));
                return Err(Refusal::field(place, message));
            }
        };
        check_length(model, ids.len(), &place)?;
        sequences.push(ids);
    }
    Ok(sequences)
}

fn check_length(model: &Model, tokens: usize, place: &str) -> Result<(), Refusal> {
    let context = model.info.context;
    match tokens {
        0 => Err(Refusal::field(place, format!("'{place}' has no tokens; send some text"))),
        tokens if tokens > context => {
            let message = format!("'{place}' has {tokens} tokens, but the context has {context}; shorten it");
            Err(Refusal::field(place, message).with_code("context_length_exceeded"))
        }
        _ => Ok(()),
    }
}
