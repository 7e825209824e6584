//! The model of a GGUF file as a folder: the configuration that `gguf.rs` reads out of the metadata, made whole where
//! GGUF takes something for granted, and the tensors under their published names, with what llama.cpp's converter did to
//! them undone. Experts stay stacked, as MLX keeps them.

use mlxcel_weights::Checkpoint;
use serde_json::{Map, Value, json};

use super::arrange::Step;
use super::recipe::{Map as Change, Recipe, View};
use super::table::{ROWS, Row};
use super::{Inventory, family};
use crate::error::ModelError;
use crate::names::rename;
use crate::rope::{RopeContext, Settings, llama3_divisors};

/// A folder's configuration and tensors.
#[derive(Clone, Debug)]
pub struct FolderExport {
    pub config: Value,
    pub tensors: Vec<Recipe>,
    /// The settings of `1_Pooling/config.json`, for a model of embeddings.
    pub pooling: Option<Value>,
}

/// Fails where the file says something that a configuration has no field for.
pub fn to_folder(checkpoint: &Checkpoint, model: &Inventory) -> Result<FolderExport, ModelError> {
    let row = ROWS.iter().find(|row| row.family == model.family);
    let row = row.ok_or_else(|| ModelError::NoGguf {
        family: model.family,
        supported: ROWS.iter().map(|row| row.family).collect(),
    })?;
    let mut config = model.config.as_object().cloned().unwrap_or_default();
    let pooling = complete(&mut config, row);
    for (field, key) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
        let id = checkpoint.metadata().and_then(|m| m.u32(&format!("tokenizer.ggml.{key}")).ok());
        if let Some(id) = id {
            config.insert(field.to_string(), json!(id));
        }
    }
    let mut tensors = Vec::new();
    for (name, tensor) in &model.tensors {
        if name == "rope_freqs.weight" {
            let divisors = checkpoint.tensor(&tensor.file)?.to_f32();
            let settings = llama3_settings(&config, &divisors)?;
            config.insert("rope_scaling".to_string(), settings);
            continue;
        }
        let recipe = Recipe::keep(name, &tensor.file, &tensor.shape);
        tensors.push(published(undo(recipe, row, &config), row));
    }
    Ok(FolderExport { config: Value::Object(config), tensors, pooling })
}

/// Mixtral's experts were published under another name than those of later models.
fn published(recipe: Recipe, row: &Row) -> Recipe {
    let older = family(row.family).names.iter().find(|(name, _)| name.ends_with("block_sparse_moe"));
    match older.and_then(|(name, usual)| rename(&(usual, name), &recipe.name)) {
        Some(name) => Recipe { name, ..recipe },
        None => recipe,
    }
}

/// Fields that GGUF leaves out or spells otherwise. Gives the pooling, which is not a field.
fn complete(config: &mut Map<String, Value>, row: &Row) -> Option<Value> {
    config.insert("model_type".to_string(), json!(row.family));
    config.remove("rope_interleaved");
    for field in ["use_qk_norm", "qk_layernorm"] {
        if config.get(field) == Some(&json!(false)) {
            config.remove(field);
        }
    }
    if config.get("partial_rotary_factor") == Some(&json!(1.0)) {
        config.remove("partial_rotary_factor");
    }
    let mut spell = |from: &str, to: &str| {
        if let Some(value) = config.remove(from) {
            config.insert(to.to_string(), value);
        }
    };
    match row.family {
        "mixtral" | "gpt_oss" => spell("num_experts", "num_local_experts"),
        "deepseek_v3" => spell("num_experts", "n_routed_experts"),
        "granite" => spell("logit_scale", "logits_scaling"),
        "starcoder2" => spell("layer_norm_eps", "norm_epsilon"),
        "gpt2" => {
            spell("intermediate_size", "n_inner");
            spell("layer_norm_eps", "layer_norm_epsilon");
        }
        "mamba" => spell("rms_norm_eps", "layer_norm_epsilon"),
        "stablelm" => spell("attention_bias", "use_qkv_bias"),
        _ => {}
    }
    let granted = |config: &mut Map<String, Value>, field: &str, value: Value| {
        config.entry(field.to_string()).or_insert(value);
    };
    match row.family {
        "gemma2" | "gemma3_text" => {
            let width = config.get("head_dim").cloned().unwrap_or(json!(256));
            granted(config, "query_pre_attn_scalar", width);
        }
        "qwen3_moe" => granted(config, "norm_topk_prob", json!(true)),
        "deepseek_v3" => {
            granted(config, "n_group", json!(1));
            granted(config, "topk_group", json!(1));
            granted(config, "routed_scaling_factor", json!(1.0));
            granted(config, "norm_topk_prob", json!(false));
        }
        // Where nothing is said these models slide or bend; here it was said.
        "gpt_oss" if !config.contains_key("rope_scaling") => {
            granted(config, "rope_scaling", json!({ "rope_type": "default" }));
        }
        _ => {}
    }
    let number = config.remove("pooling_type")?;
    let mode = match number.as_u64() {
        Some(2) => "pooling_mode_cls_token",
        Some(3) => "pooling_mode_lasttoken",
        _ => "pooling_mode_mean_tokens",
    };
    Some(json!({ "word_embedding_dimension": config.get("hidden_size"), mode: true }))
}

/// The tensor as it was before the converter's steps.
fn undo(recipe: Recipe, row: &Row, config: &Map<String, Value>) -> Recipe {
    let count = |field: &str| config.get(field).and_then(Value::as_u64).unwrap_or(0) as usize;
    let heads = count("num_attention_heads");
    let kv_heads = config.get("num_key_value_heads").map_or(heads, |_| count("num_key_value_heads"));
    let module = recipe.name.rsplit('.').nth(1).unwrap_or_default().to_string();
    let (name, shape) = (recipe.name.clone(), recipe.shape.clone());
    let cols = (shape.len() == 2).then(|| shape[1]);
    let of_each = |parts: usize| shape.first().and_then(|rows| rows.checked_div(parts)).unwrap_or(0);
    let has = |step: Step| row.steps.contains(&step);
    match module.as_str() {
        "q_proj" | "k_proj" if has(Step::TurnHeads) => {
            let heads = if module == "q_proj" { heads } else { kv_heads };
            let width = of_each(heads);
            let view = View::of_rows(&[heads, 2, width / 2], &[width, 1, 2], cols);
            recipe.viewed(name, shape, view)
        }
        "query_key_value" if has(Step::RegroupQkv) => {
            let width = of_each(3 * heads);
            let view = View::of_rows(&[heads, 3, width], &[width, heads * width, 1], cols);
            recipe.viewed(name, shape, view)
        }
        "conv1d" if has(Step::MambaState) && shape.len() == 2 => {
            let longer = vec![shape[0], 1, shape[1]];
            let view = View::whole(&longer);
            recipe.viewed(name, longer, view)
        }
        _ if has(Step::NormsPlusOne) && name.ends_with("norm.weight") => {
            Recipe { map: Change::MinusOne, ..recipe }
        }
        _ if has(Step::MambaState) && name.ends_with(".mixer.A") => {
            Recipe { name: format!("{name}_log"), map: Change::LnNeg, ..recipe }
        }
        _ => recipe,
    }
}

/// Llama 3's settings, of which the file has only what follows from them. The published ones differ in the factor.
fn llama3_settings(config: &Map<String, Value>, divisors: &[f32]) -> Result<Value, ModelError> {
    let factor = divisors.iter().fold(1f32, |m, &d| m.max(d));
    let context = config.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(8192) as usize;
    let theta = config.get("rope_theta").and_then(Value::as_f64).unwrap_or(10000.0);
    for original in [8192, 4096, 2048, context] {
        let settings = Settings {
            factor: Some(f64::from(factor.round())),
            low_freq_factor: Some(1.0),
            high_freq_factor: Some(4.0),
            original_max_position_embeddings: Some(original),
            ..Settings::default()
        };
        let cx = RopeContext {
            head_dim: 2 * divisors.len(),
            partial: 1.0,
            theta,
            max_position_embeddings: context,
            original_max_position_embeddings: None,
        };
        let made = llama3_divisors(&settings, cx)?;
        if made.iter().zip(divisors).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs()) {
            return Ok(json!({
                "rope_type": "llama3",
                "factor": settings.factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }));
        }
    }
    Err(ModelError::field(
        "rope_freqs.weight",
        "these divisors do not follow from llama3 settings that are known, so config.json cannot say them",
    ))
}
