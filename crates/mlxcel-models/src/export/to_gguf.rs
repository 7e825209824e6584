//! A model as the tensors and metadata of a GGUF file, in the names and layout of llama.cpp's converter.

use mlxcel_weights::GgufValue;

use super::arrange::{Sizes, Step, stack};
use super::keys::{Fields, keys};
use super::recipe::Recipe;
use super::table::{ROWS, Row};
use super::{Inventory, family};
use crate::config::renamed;
use crate::error::ModelError;
use crate::gguf::rules;
use crate::names::{Rule, rename};

/// What a GGUF file of a model has. The vocabulary and the type of the file are not in it.
#[derive(Clone, Debug)]
pub struct GgufExport {
    pub architecture: &'static str,
    /// Keys with the architecture, values; in the order of the converter's.
    pub metadata: Vec<(String, GgufValue)>,
    /// In the order of the file.
    pub tensors: Vec<Recipe>,
    /// What the file cannot say, in sentences.
    pub notes: Vec<String>,
}

/// Fails where GGUF has no architecture for the family or no way to say what the configuration says.
pub fn to_gguf(model: &Inventory) -> Result<GgufExport, ModelError> {
    let no_form = || ModelError::NoGguf {
        family: model.family,
        supported: ROWS.iter().map(|row| row.family).collect(),
    };
    let row = ROWS.iter().find(|row| row.family == model.family).ok_or_else(no_form)?;
    let gguf = family(row.writes).gguf.ok_or_else(no_form)?;
    let config = renamed(&model.config, row.spellings);
    let fields = Fields { config: &config, row };
    let keys = keys(&fields)?;
    let mut tensors = arranged(model, row, sizes(&fields))?;
    let tables: Vec<Rule> = [row.names, &rules(&gguf)[..]].concat();
    for recipe in &mut tensors {
        recipe.name = gguf_name(&tables, &recipe.name)?;
    }
    tensors.extend(keys.tensors.into_iter().map(|(name, values)| Recipe::numbers(name, values)));
    tensors.sort_by_cached_key(|recipe| place(&recipe.name));
    let with_architecture = |(key, value)| (format!("{}.{key}", gguf.architecture), value);
    let metadata = keys.pairs.into_iter().map(with_architecture).collect();
    Ok(GgufExport { architecture: gguf.architecture, metadata, tensors, notes: keys.notes })
}

fn arranged(model: &Inventory, row: &Row, sizes: Sizes) -> Result<Vec<Recipe>, ModelError> {
    let mut recipes: Vec<Recipe> =
        model.tensors.iter().map(|(name, t)| Recipe::keep(name, &t.file, &t.shape)).collect();
    for &step in row.steps.iter().filter(|step| is_needed(**step, model)) {
        recipes = step.apply(recipes, sizes)?;
    }
    stack(recipes)
}

fn sizes(fields: &Fields<'_>) -> Sizes {
    let count = |field: &str| fields.config.get(field).and_then(|v| v.as_u64()).unwrap_or(0) as usize;
    Sizes {
        heads: fields.heads(),
        kv_heads: fields.kv_heads(),
        nope: count("qk_nope_head_dim"),
        value: count("v_head_dim"),
    }
}

/// Some checkpoints already have the layout that a step makes.
pub(super) fn is_needed(step: Step, model: &Inventory) -> bool {
    match step {
        Step::TurnDense => {
            let joined = model.tensors.get("transformer.h.0.attn.c_attn.weight");
            joined.is_none_or(|t| t.shape.last() > t.shape.first())
        }
        Step::SplitOssExperts => !has_packed_experts(model),
        Step::SplitPackedOssExperts => has_packed_experts(model),
        _ => true,
    }
}

fn has_packed_experts(model: &Inventory) -> bool {
    let joined = model.tensors.iter().find(|(name, _)| name.ends_with(".experts.gate_up_proj"));
    joined.is_some_and(|(_, t)| t.dtype.is_some_and(|d| d.is_quant()))
}

/// The name that the reader's tables bring to this one.
fn gguf_name(tables: &[Rule], published: &str) -> Result<String, ModelError> {
    // Mamba's state has no ending, and neither side of its rules has one.
    let found = tables.iter().find_map(|(gguf, name)| rename(&(name, gguf), published));
    found.ok_or_else(|| ModelError::NoGgufName { name: published.to_string() })
}

/// Embeddings first, then layers in order, then the rest; within a layer by name.
fn place(name: &str) -> (usize, String) {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    let group = match layer {
        Some(layer) => layer + 1,
        None if name.starts_with("output") => usize::MAX,
        None => 0,
    };
    (group, name.to_string())
}
