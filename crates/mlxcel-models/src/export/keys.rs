//! A `config.json` as GGUF metadata: the inverse of what `gguf.rs` reads. The usual keys are written here once; each
//! family adds its own. What GGUF has no key for is refused where it changes every result, and noted where it only
//! changes those of long texts.

use mlxcel_weights::{GgufArray, GgufValue};
use serde_json::Value;

use super::table::{Granted, Norm, Row};
use crate::error::ModelError;
use crate::rope::{RopeContext, Settings, llama3_divisors, settings};

/// The configuration, asked for fields by name.
pub(super) struct Fields<'a> {
    pub(super) config: &'a Value,
    pub(super) row: &'a Row,
}

/// Metadata under construction, keys without the architecture.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) pairs: Vec<(String, GgufValue)>,
    pub(super) tensors: Vec<(&'static str, Vec<f32>)>,
    pub(super) notes: Vec<String>,
}

impl Keys {
    fn put(&mut self, key: &str, value: GgufValue) {
        self.pairs.retain(|(known, _)| known != key);
        self.pairs.push((key.to_string(), value));
    }

    fn count(&mut self, key: &str, value: usize) {
        self.put(key, GgufValue::U32(u32::try_from(value).unwrap_or(u32::MAX)));
    }

    fn float(&mut self, key: &str, value: f64) {
        self.put(key, GgufValue::F32(value as f32));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.put(key, GgufValue::String(value.to_string()));
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.put(key, GgufValue::Bool(value));
    }
}

impl<'a> Fields<'a> {
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.config.get(field).filter(|v| !v.is_null())
    }

    fn find_count(&self, field: &str) -> Option<usize> {
        self.get(field).and_then(Value::as_u64).and_then(|v| usize::try_from(v).ok())
    }

    fn count(&self, field: &str) -> Result<usize, ModelError> {
        self.find_count(field).ok_or_else(|| ModelError::field(field, "a whole number is needed"))
    }

    fn float(&self, field: &str, by_default: f64) -> f64 {
        self.get(field).and_then(Value::as_f64).unwrap_or(by_default)
    }

    fn flag(&self, field: &str, by_default: bool) -> bool {
        self.get(field).and_then(Value::as_bool).unwrap_or(by_default)
    }

    fn list(&self, field: &str) -> Option<&'a Vec<Value>> {
        self.get(field).and_then(Value::as_array)
    }

    pub(super) fn heads(&self) -> usize {
        self.find_count("num_attention_heads").unwrap_or(0)
    }

    pub(super) fn kv_heads(&self) -> usize {
        let by_default = self.row.kv_heads.unwrap_or(self.heads());
        self.find_count("num_key_value_heads").unwrap_or(by_default)
    }

    fn given_head_dim(&self) -> Option<usize> {
        self.find_count("head_dim").or(self.row.head_dim)
    }

    fn head_dim(&self) -> usize {
        let even = self.find_count("hidden_size").unwrap_or(0).checked_div(self.heads()).unwrap_or(0);
        self.given_head_dim().unwrap_or(even)
    }

    fn layers(&self) -> usize {
        self.find_count("num_hidden_layers").unwrap_or(0)
    }

    fn context(&self) -> usize {
        self.find_count("max_position_embeddings").unwrap_or(2048)
    }

    fn refuse<T>(&self, field: &str, found: impl std::fmt::Display) -> Result<T, ModelError> {
        Err(ModelError::NotInGguf {
            family: self.row.family,
            field: field.to_string(),
            found: found.to_string(),
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        for (field, granted) in self.row.granted {
            let fits = match (self.get(field), granted) {
                (None, _) => true,
                (Some(v), Granted::Bool(wanted)) => v.as_bool() == Some(*wanted),
                (Some(v), Granted::Nothing) => v.as_array().is_some_and(Vec::is_empty),
            };
            if !fits {
                return self.refuse(field, &self.config[field]);
            }
        }
        for field in ["hidden_act", "hidden_activation"] {
            let name = self.get(field).and_then(Value::as_str);
            // Gemma's older files say `gelu` in one field and mean the other.
            let overridden = field == "hidden_act" && self.row.family.starts_with("gemma");
            if let Some(name) = name.filter(|n| !overridden && !self.row.activation.contains(n)) {
                return self.refuse(field, name);
            }
        }
        Ok(())
    }
}

/// All metadata of the architecture.
pub(super) fn keys(fields: &Fields<'_>) -> Result<Keys, ModelError> {
    fields.check()?;
    let mut keys = Keys::default();
    keys.count("block_count", fields.count("num_hidden_layers")?);
    keys.count("context_length", fields.context());
    keys.count("embedding_length", fields.count("hidden_size")?);
    let inner = fields.find_count("intermediate_size");
    keys.count("feed_forward_length", inner.unwrap_or(4 * fields.count("hidden_size")?));
    if fields.get("num_attention_heads").is_some() {
        keys.count("attention.head_count", fields.heads());
        keys.count("attention.head_count_kv", fields.kv_heads());
    }
    if let Some(width) = fields.given_head_dim() {
        keys.count("attention.key_length", width);
        keys.count("attention.value_length", width);
    }
    match fields.row.norm {
        Norm::Rms(eps) => {
            keys.float("attention.layer_norm_rms_epsilon", fields.float("rms_norm_eps", eps));
        }
        Norm::Layer(eps) => {
            let names = ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];
            let given = names.iter().find_map(|name| fields.get(name).and_then(Value::as_f64));
            keys.float("attention.layer_norm_epsilon", given.unwrap_or(eps));
        }
    }
    rotation(fields, &mut keys)?;
    (fields.row.own)(fields, &mut keys)?;
    Ok(keys)
}

fn rotation(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    let Some(row) = fields.row.rope else { return Ok(()) };
    let rope = settings(fields.config, Some("full_attention"))?;
    keys.float("rope.freq_base", rope.rope_theta.unwrap_or(row.theta));
    let share = rope.partial_rotary_factor.unwrap_or(row.partial);
    let rotated = (fields.head_dim() as f64 * share) as usize;
    keys.count("rope.dimension_count", rotated);
    match rope.rope_type.as_deref().unwrap_or("default") {
        "default" => Ok(()),
        "linear" => {
            keys.text("rope.scaling.type", "linear");
            keys.float("rope.scaling.factor", rope.factor.unwrap_or(1.0));
            Ok(())
        }
        "yarn" if fields.row.family != "phi3" => yarn(fields, &rope, keys),
        "llama3" => {
            let cx = RopeContext {
                head_dim: rotated,
                partial: 1.0,
                theta: rope.rope_theta.unwrap_or(row.theta),
                max_position_embeddings: fields.context(),
                original_max_position_embeddings: None,
            };
            keys.tensors.push(("rope_freqs.weight", llama3_divisors(&rope, cx)?));
            Ok(())
        }
        "longrope" | "su" | "yarn" => longrope(fields, &rope, keys),
        other => fields.refuse("rope_type", other),
    }
}

fn yarn(fields: &Fields<'_>, rope: &Settings, keys: &mut Keys) -> Result<(), ModelError> {
    keys.text("rope.scaling.type", "yarn");
    keys.float("rope.scaling.factor", rope.factor.unwrap_or(1.0));
    let original = rope.original_max_position_embeddings.unwrap_or(fields.context());
    keys.count("rope.scaling.original_context_length", original);
    let betas = [("yarn_beta_fast", rope.beta_fast), ("yarn_beta_slow", rope.beta_slow)];
    for (name, beta) in betas {
        if let Some(beta) = beta {
            keys.float(&format!("rope.scaling.{name}"), beta);
        }
    }
    if let Some(factor) = rope.attention_factor {
        keys.float("rope.scaling.attn_factor", factor);
    }
    if rope.truncate == Some(false) {
        keys.notes.push(
            "GGUF has no key for \"truncate\": false; llama.cpp rounds the bounds of the yarn ramp to whole \
             dimensions"
                .to_string(),
        );
    }
    let scales = (rope.mscale, rope.mscale_all_dim);
    if scales != (None, None) && (scales.0 != scales.1 || fields.row.family != "deepseek_v3") {
        return fields.refuse("mscale", format!("{:?} and mscale_all_dim {:?}", scales.0, scales.1));
    }
    Ok(())
}

fn longrope(fields: &Fields<'_>, rope: &Settings, keys: &mut Keys) -> Result<(), ModelError> {
    let numbers = |list: &Option<Vec<f64>>| list.as_ref().map(|l| l.iter().map(|&v| v as f32).collect());
    let (Some(long), Some(short)) = (numbers(&rope.long_factor), numbers(&rope.short_factor)) else {
        return Err(ModelError::field("rope_scaling", "longrope needs long_factor and short_factor"));
    };
    keys.tensors.push(("rope_factors_long.weight", long));
    keys.tensors.push(("rope_factors_short.weight", short));
    keys.text("rope.scaling.type", "longrope");
    let original = fields.find_count("original_max_position_embeddings");
    let original = original.or(rope.original_max_position_embeddings).unwrap_or(fields.context());
    keys.count("rope.scaling.original_context_length", original);
    let (reached, original) = (fields.context() as f64, original as f64);
    let growth =
        if reached <= original { 1.0 } else { (1.0 + (reached / original).ln() / original.ln()).sqrt() };
    keys.float("rope.scaling.attn_factor", rope.attention_factor.unwrap_or(growth));
    Ok(())
}

pub(super) fn nothing(_: &Fields<'_>, _: &mut Keys) -> Result<(), ModelError> {
    Ok(())
}

pub(super) fn vocabulary_size(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    keys.count("vocab_size", fields.count("vocab_size")?);
    Ok(())
}

/// A window that the architecture cannot express: results are equal up to its length.
fn note_window(fields: &Fields<'_>, by_default: Option<usize>, keys: &mut Keys) {
    let absent = fields.config.get("sliding_window").is_none();
    let window = fields.find_count("sliding_window").or(by_default.filter(|_| absent));
    if let Some(window) = window.filter(|&w| w < fields.context()) {
        keys.notes.push(format!(
            "GGUF has no key for this model's sliding window of {window} tokens; longer texts will be attended in full"
        ));
    }
}

pub(super) fn mistral(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    note_window(fields, Some(4096), keys);
    vocabulary_size(fields, keys)
}

pub(super) fn mixtral(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    note_window(fields, None, keys);
    vocabulary_size(fields, keys)?;
    experts(fields, "num_local_experts", keys)
}

fn experts(fields: &Fields<'_>, field: &str, keys: &mut Keys) -> Result<(), ModelError> {
    let count = fields.find_count(field).or(fields.find_count("num_experts"));
    keys.count("expert_count", count.map_or_else(|| fields.count(field), Ok)?);
    keys.count("expert_used_count", fields.count("num_experts_per_tok")?);
    Ok(())
}

pub(super) fn granite(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    vocabulary_size(fields, keys)?;
    keys.float("attention.scale", fields.float("attention_multiplier", 1.0));
    keys.float("embedding_scale", fields.float("embedding_multiplier", 1.0));
    keys.float("residual_scale", fields.float("residual_multiplier", 1.0));
    keys.float("logit_scale", fields.float("logits_scaling", 1.0));
    Ok(())
}

pub(super) fn smollm3(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    let rotates = |i: usize| !(i + 1).is_multiple_of(4);
    let listed = fields.list("no_rope_layers");
    let usual = match listed {
        Some(list) => list.iter().enumerate().all(|(i, v)| (v.as_u64() != Some(0)) == rotates(i)),
        None => fields.find_count("no_rope_layer_interval").unwrap_or(4) == 4,
    };
    if !usual {
        let found = listed.map_or_else(|| "another interval than 4".to_string(), |l| format!("{l:?}"));
        return fields.refuse("no_rope_layers", found);
    }
    vocabulary_size(fields, keys)
}

pub(super) fn qwen3_moe(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    if fields.find_count("decoder_sparse_step").unwrap_or(1) != 1 {
        return fields.refuse("decoder_sparse_step", &fields.config["decoder_sparse_step"]);
    }
    if !fields.flag("norm_topk_prob", false) {
        return fields.refuse("norm_topk_prob", false);
    }
    experts(fields, "num_experts", keys)?;
    keys.count("expert_feed_forward_length", fields.count("moe_intermediate_size")?);
    Ok(())
}

pub(super) fn phi3(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    keys.count("attention.sliding_window", fields.find_count("sliding_window").unwrap_or(0));
    let original = fields.find_count("original_max_position_embeddings").unwrap_or(4096);
    keys.count("rope.scaling.original_context_length", original);
    Ok(())
}

fn gemma_scale(fields: &Fields<'_>) -> Result<(), ModelError> {
    let scalar = fields.float("query_pre_attn_scalar", 256.0);
    if scalar != fields.head_dim() as f64 {
        return fields
            .refuse("query_pre_attn_scalar", format!("{scalar} for heads of {}", fields.head_dim()));
    }
    Ok(())
}

pub(super) fn gemma2(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    gemma_scale(fields)?;
    let slides = |i: usize| i.is_multiple_of(2);
    if let Some(types) = fields.list("layer_types")
        && !types.iter().enumerate().all(|(i, t)| (t == "sliding_attention") == slides(i))
    {
        return fields.refuse("layer_types", &fields.config["layer_types"]);
    }
    keys.count("attention.sliding_window", fields.find_count("sliding_window").unwrap_or(4096));
    for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        match fields.get(cap).and_then(Value::as_f64) {
            Some(value) => keys.float(cap, value),
            None => return fields.refuse(cap, "null"),
        }
    }
    Ok(())
}

pub(super) fn gemma3(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    gemma_scale(fields)?;
    keys.count("attention.sliding_window", fields.find_count("sliding_window").unwrap_or(4096));
    let every = fields.find_count("sliding_window_pattern").filter(|&p| p > 0).unwrap_or(6);
    let slides: Vec<bool> = match fields.list("layer_types") {
        Some(types) => types.iter().map(|t| t == "sliding_attention").collect(),
        None => (0..fields.layers()).map(|i| !(i + 1).is_multiple_of(every)).collect(),
    };
    keys.put("attention.sliding_window_pattern", GgufValue::Array(GgufArray::Bool(slides)));
    let nested = fields.get("rope_parameters").and_then(|r| r.get("sliding_attention"));
    let local = nested.and_then(|r| r.get("rope_theta")).and_then(Value::as_f64);
    keys.float("rope.freq_base_swa", local.unwrap_or(fields.float("rope_local_base_freq", 1e4)));
    if let Some(cap) = fields.get("final_logit_softcapping").and_then(Value::as_f64) {
        return fields.refuse("final_logit_softcapping", cap);
    }
    Ok(())
}

pub(super) fn cohere(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    keys.float("logit_scale", fields.float("logit_scale", 0.0625));
    keys.text("rope.scaling.type", "none");
    Ok(())
}

pub(super) fn stablelm(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    keys.flag("use_parallel_residual", fields.flag("use_parallel_residual", false));
    Ok(())
}

pub(super) fn starcoder2(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    note_window(fields, None, keys);
    Ok(())
}

pub(super) fn gpt_neox(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    keys.flag("use_parallel_residual", fields.flag("use_parallel_residual", true));
    Ok(())
}

pub(super) fn gpt_oss(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    experts(fields, "num_local_experts", keys)?;
    keys.count("expert_feed_forward_length", fields.count("intermediate_size")?);
    keys.count("attention.sliding_window", fields.find_count("sliding_window").unwrap_or(128));
    if fields.get("rope_scaling").or(fields.get("rope_parameters")).is_none() {
        let published = Settings {
            factor: Some(32.0),
            original_max_position_embeddings: Some(4096),
            beta_fast: Some(32.0),
            beta_slow: Some(1.0),
            truncate: Some(false),
            ..Settings::default()
        };
        yarn(fields, &published, keys)?;
    }
    for (field, usual) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
        if fields.float(field, usual) != usual {
            return fields.refuse(field, &fields.config[field]);
        }
    }
    Ok(())
}

pub(super) fn deepseek(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    experts(fields, "n_routed_experts", keys)?;
    vocabulary_size(fields, keys)?;
    let (rank, rotated) = (fields.count("kv_lora_rank")?, fields.count("qk_rope_head_dim")?);
    let rope = settings(fields.config, None)?;
    if let Some(scale) = rope.mscale_all_dim {
        keys.float("rope.scaling.yarn_log_multiplier", 0.1 * scale);
    }
    keys.count("rope.dimension_count", rotated);
    keys.count("leading_dense_block_count", fields.count("first_k_dense_replace")?);
    if let Some(rank) = fields.find_count("q_lora_rank") {
        keys.count("attention.q_lora_rank", rank);
    }
    keys.count("attention.kv_lora_rank", rank);
    keys.count("attention.head_count_kv", 1);
    keys.count("attention.key_length", rank + rotated);
    keys.count("attention.value_length", rank);
    keys.count("attention.key_length_mla", fields.count("qk_nope_head_dim")? + rotated);
    keys.count("attention.value_length_mla", fields.count("v_head_dim")?);
    keys.count("expert_feed_forward_length", fields.count("moe_intermediate_size")?);
    keys.count("expert_shared_count", fields.count("n_shared_experts")?);
    keys.float("expert_weights_scale", fields.float("routed_scaling_factor", 2.5));
    keys.flag("expert_weights_norm", fields.flag("norm_topk_prob", true));
    keys.count("expert_gating_func", 2);
    keys.count("expert_group_count", fields.find_count("n_group").unwrap_or(8));
    keys.count("expert_group_used_count", fields.find_count("topk_group").unwrap_or(4));
    Ok(())
}

pub(super) fn mamba(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    let hidden = fields.count("hidden_size")?;
    let eps = fields.float("layer_norm_epsilon", 1e-5);
    let expanded = fields.find_count("expand").map(|e| e * hidden);
    let inner = expanded.or(fields.find_count("intermediate_size")).unwrap_or(2 * hidden);
    keys.count("context_length", 1 << 20);
    keys.count("feed_forward_length", 0);
    keys.count("attention.head_count", 0);
    keys.float("attention.layer_norm_rms_epsilon", eps);
    keys.count("ssm.conv_kernel", fields.find_count("conv_kernel").unwrap_or(4));
    keys.count("ssm.inner_size", inner);
    keys.count("ssm.state_size", fields.find_count("state_size").unwrap_or(16));
    keys.count("ssm.time_step_rank", fields.find_count("time_step_rank").unwrap_or(hidden.div_ceil(16)));
    keys.flag("ssm.dt_b_c_rms", false);
    Ok(())
}

pub(super) fn bert(fields: &Fields<'_>, keys: &mut Keys) -> Result<(), ModelError> {
    keys.pairs.retain(|(key, _)| key != "attention.head_count_kv");
    keys.flag("attention.causal", false);
    keys.count("pooling_type", fields.find_count("pooling_type").unwrap_or(1));
    Ok(())
}
