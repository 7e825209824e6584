//! From a checkpoint to a graph. A family is one file: the configuration under the field names of `config.json`, the
//! graph, and the names of the weights. Nothing here knows a device or an engine.

pub mod blocks;
mod config;
mod error;
pub mod export;
mod families;
mod gguf;
mod names;
mod net;
mod rope;

use std::collections::{BTreeMap, BTreeSet};

use mlxcel_ir::{Builder, DType, Graph};
use mlxcel_weights::Checkpoint;
use serde_json::Value;

pub use blocks::{EmbedOptions, Pooling};
pub use error::ModelError;
pub use families::{Built, FAMILIES, Family, ModelKind};

/// A model ready for any engine.
#[derive(Debug)]
pub struct Model {
    pub family: &'static str,
    pub graph: Graph,
    pub built: Built,
    /// Tokens that end a text.
    pub eos_token_ids: BTreeSet<u32>,
}

/// The element types of what a model computes and keeps. Weights stay as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    pub activations: DType,
    /// Keys and values of earlier tokens.
    pub cache: DType,
}

/// One type for both.
impl From<DType> for Types {
    fn from(dtype: DType) -> Self {
        Types { activations: dtype, cache: dtype }
    }
}

/// Builds the graph of a checkpoint. Fails on tensors that are missing, of another shape, or left over.
pub fn load(checkpoint: &Checkpoint, types: impl Into<Types>) -> Result<Model, ModelError> {
    read(checkpoint, types.into(), None).map(|read| read.model)
}

/// The same for embeddings, from models that were made for them and from decoders.
pub fn load_embedder(
    checkpoint: &Checkpoint,
    dtype: DType,
    options: EmbedOptions,
) -> Result<Model, ModelError> {
    read(checkpoint, dtype.into(), Some(options)).map(|read| read.model)
}

/// What else a family needs to be read: the configuration, and other spellings of names.
type Source = (&'static Family, Value, Vec<names::Rule>);

fn source(checkpoint: &Checkpoint) -> Result<Source, ModelError> {
    if let Some(metadata) = checkpoint.metadata() {
        let (family, gguf) = gguf::family(metadata)?;
        return Ok((family, gguf::config(checkpoint, metadata, &gguf)?, gguf::rules(&gguf)));
    }
    let config = checkpoint.config().ok_or(ModelError::NoConfig)?;
    let family = by_model_type(config)?;
    Ok((family, config.clone(), family.names.to_vec()))
}

/// A model with what it was read from.
struct Read {
    model: Model,
    config: Value,
    /// By published name.
    used: BTreeMap<String, net::Used>,
}

fn read(checkpoint: &Checkpoint, types: Types, embed: Option<EmbedOptions>) -> Result<Read, ModelError> {
    let (family, config, mut tables) = source(checkpoint)?;
    if embed.is_some() {
        tables.extend(WITHOUT_HEAD);
    }
    let names = names::Names::new(checkpoint.names(), &tables)?;
    let params = net::Params::new(Some(checkpoint), names);
    let builder = Builder::new();
    let mut net = net::Net::new(&builder, &params, types);
    if let Some(asked) = embed {
        let said = || Pooling::read(&net, config.get("pooling_type").and_then(Value::as_u64));
        let pooling = asked.pooling.map_or_else(said, |pooling| Ok(Some(pooling)))?;
        net.embed = Some(EmbedOptions { pooling, ..asked });
    }
    let mut built = (family.build)(&net, &config)?;
    if net.embed.is_some_and(|options| options.pooling.is_none()) && built.kind == ModelKind::Generate {
        return Err(ModelError::NoPooling { family: family.name });
    }
    if embed.is_some() {
        built.kind = ModelKind::Embed;
    }
    if built.kind == ModelKind::Embed {
        built.max_context = built.max_context.min(longest_text(&net)?.unwrap_or(usize::MAX));
    }
    let tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(true);
    let used = params.finish(|published| {
        // A shared output layer is sometimes stored twice, and an embedding needs none.
        let is_head = published.starts_with("lm_head.") || published.starts_with("embed_out.");
        let unneeded = is_head && (embed.is_some() || (tied && published.ends_with(".weight")));
        unneeded || family.ignore.iter().any(|pattern| published.contains(pattern))
    })?;
    let graph = builder.finish()?;
    let eos_token_ids = eos_token_ids(checkpoint, &config)?;
    let model = Model { family: family.name, graph, built, eos_token_ids };
    Ok(Read { model, config, used })
}

/// Embedding models that were decoders are published without the output layer, and their names without `model.`.
const WITHOUT_HEAD: [names::Rule; 3] =
    [("layers.", "model.layers."), ("embed_tokens.", "model.embed_tokens."), ("norm.", "model.norm.")];

/// The tokens that sentence-transformers cuts texts to, where its settings lie beside the model.
fn longest_text(net: &net::Net<'_>) -> Result<Option<usize>, ModelError> {
    let settings = net.json_beside("sentence_bert_config.json")?;
    let longest = settings.as_ref().and_then(|s| s.get("max_seq_length")).and_then(Value::as_u64);
    Ok(longest.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0))
}

fn by_model_type(config: &Value) -> Result<&'static Family, ModelError> {
    let found = config.get("model_type").and_then(Value::as_str).ok_or(ModelError::NoModelType)?;
    let family = FAMILIES.iter().find(|f| f.name == found || f.aliases.contains(&found));
    family.ok_or_else(|| ModelError::UnknownFamily {
        found: found.to_string(),
        supported: FAMILIES
            .iter()
            .flat_map(|f| std::iter::once(f.name).chain(f.aliases.iter().copied()))
            .collect(),
    })
}

/// From the configuration, `generation_config.json` beside it, and GGUF metadata.
fn eos_token_ids(checkpoint: &Checkpoint, config: &Value) -> Result<BTreeSet<u32>, ModelError> {
    let mut ids = BTreeSet::new();
    let mut add = |v: Option<&Value>| {
        let list = v.map(|v| v.as_array().cloned().unwrap_or_else(|| vec![v.clone()])).unwrap_or_default();
        ids.extend(list.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()));
    };
    add(config.get("eos_token_id"));
    let generation = net::json_beside(checkpoint, "generation_config.json")?;
    add(generation.as_ref().and_then(|g| g.get("eos_token_id")));
    if let Some(metadata) = checkpoint.metadata() {
        for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
            ids.extend(metadata.u32(key).ok());
        }
    }
    Ok(ids)
}
