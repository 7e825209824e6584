//! From a checkpoint to a graph. A family is one file: the configuration under the field names of `config.json`, the
//! graph, and the names of the weights. Nothing here knows a device or an engine.

pub mod blocks;
mod config;
mod error;
mod families;
mod gguf;
mod names;
mod net;
mod rope;

use std::collections::BTreeSet;

use mlxcel_ir::{Builder, DType, Graph};
use mlxcel_weights::Checkpoint;
use serde_json::Value;

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

/// Builds the graph of a checkpoint, with activations and cache in `dtype`. Fails on tensors that are missing, of
/// another shape, or left over.
pub fn load(checkpoint: &Checkpoint, dtype: DType) -> Result<Model, ModelError> {
    let (family, config, tables) = match checkpoint.metadata() {
        Some(metadata) => {
            let (family, gguf) = gguf::family(metadata)?;
            (family, gguf::config(checkpoint, metadata, &gguf)?, gguf::rules(&gguf))
        }
        None => {
            let config = checkpoint.config().ok_or(ModelError::NoConfig)?;
            let family = by_model_type(config)?;
            (family, config.clone(), family.names.to_vec())
        }
    };
    let names = names::Names::new(checkpoint.names(), &tables)?;
    let params = net::Params::new(checkpoint, names);
    let builder = Builder::new();
    let built = (family.build)(&net::Net::new(&builder, &params, dtype), &config)?;
    let tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(true);
    params.finish(|published| {
        // A shared output layer is sometimes stored twice.
        let doubled = tied && (published == "lm_head.weight" || published == "embed_out.weight");
        doubled || family.ignore.iter().any(|pattern| published.contains(pattern))
    })?;
    let graph = builder.finish()?;
    let eos_token_ids = eos_token_ids(checkpoint, &config)?;
    Ok(Model { family: family.name, graph, built, eos_token_ids })
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
