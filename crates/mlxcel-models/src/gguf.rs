//! GGUF metadata as a `config.json`: the same fields under the names Hugging Face uses, so that a family reads one
//! configuration. Keys are `<architecture>.<name>`; the specification is
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use mlxcel_weights::{Checkpoint, GgufArray, GgufMetadata, GgufValue};
use serde_json::{Map, Value, json};

use crate::error::ModelError;
use crate::families::{FAMILIES, Family, Gguf};
use crate::names::Rule;

/// Metadata key (without the architecture) and configuration field.
const FIELDS: &[(&str, &str)] = &[
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.scale", "attention_multiplier"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("logit_scale", "logit_scale"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("use_parallel_residual", "use_parallel_residual"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("ssm.conv_kernel", "conv_kernel"),
    ("ssm.inner_size", "intermediate_size"),
    ("ssm.state_size", "state_size"),
    ("ssm.time_step_rank", "time_step_rank"),
    ("ssm.dt_b_c_rms", "use_dt_b_c_norm"),
    ("pooling_type", "pooling_type"),
];

/// Names of the common layout.
const NAMES: &[Rule] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    ("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    ("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
    ("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    ("blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj"),
    ("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
    ("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
    ("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
    ("blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks"),
    ("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
    ("blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"),
    ("blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"),
    ("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
    ("blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate"),
    ("blk.{}.ffn_gate_exps", "model.layers.{}.mlp.switch_mlp.gate_proj"),
    ("blk.{}.ffn_up_exps", "model.layers.{}.mlp.switch_mlp.up_proj"),
    ("blk.{}.ffn_down_exps", "model.layers.{}.mlp.switch_mlp.down_proj"),
    ("blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_experts.gate_proj"),
    ("blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_experts.up_proj"),
    ("blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_experts.down_proj"),
    ("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
    ("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
];

/// The family of a GGUF file, with its view of GGUF.
pub(crate) fn family(metadata: &GgufMetadata) -> Result<(&'static Family, Gguf), ModelError> {
    let architecture = metadata.str("general.architecture")?;
    let experts = integer(metadata, &format!("{architecture}.expert_count")).unwrap_or(0);
    // Mixtral files call themselves llama; only the experts tell.
    let wanted = if architecture == "llama" && experts > 0 { Some("mixtral") } else { None };
    let views = FAMILIES.iter().filter_map(|f| f.gguf.map(|g| (f, g)));
    let found =
        views.clone().find(|(f, g)| g.architecture == architecture && wanted.is_none_or(|w| f.name == w));
    found.ok_or_else(|| ModelError::UnknownArchitecture {
        found: architecture.to_string(),
        supported: views.map(|(_, g)| g.architecture).collect(),
    })
}

/// The tables that bring a GGUF file's names to the published ones: the family's own first.
pub(crate) fn rules(gguf: &Gguf) -> Vec<Rule> {
    [gguf.names, NAMES].concat()
}

fn integer(metadata: &GgufMetadata, key: &str) -> Option<i64> {
    metadata.get(key).and_then(GgufValue::as_i64)
}

/// The configuration a family reads.
pub(crate) fn config(
    checkpoint: &Checkpoint,
    metadata: &GgufMetadata,
    gguf: &Gguf,
) -> Result<Value, ModelError> {
    let key = |name: &str| format!("{}.{name}", gguf.architecture);
    let mut out = Map::new();
    for (name, field) in FIELDS {
        if let Some(v) = scalar(metadata, &key(name))? {
            out.insert(field.to_string(), v);
        }
    }
    let vocabulary = checkpoint.info("token_embd.weight").and_then(|(_, s)| s.first().copied());
    if let Some(n) = vocabulary {
        out.insert("vocab_size".into(), json!(n));
    }
    let has = |name: &str| checkpoint.info(name).is_some();
    out.insert("tie_word_embeddings".into(), json!(!has("output.weight")));
    let attention_bias = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
    out.insert("attention_bias".into(), json!(attention_bias));
    for field in ["use_qk_norm", "qk_layernorm"] {
        out.insert(field.into(), json!(has("blk.0.attn_q_norm.weight")));
    }
    out.insert("mlp_bias".into(), json!(has("blk.0.ffn_down.bias")));
    out.insert("rope_interleaved".into(), json!(gguf.interleaved));
    if out.get("sliding_window") == Some(&json!(0)) {
        out.remove("sliding_window");
    }
    let pattern = metadata.get(&key("attention.sliding_window_pattern")).and_then(GgufValue::as_array);
    if let Some(GgufArray::Bool(slides)) = pattern {
        let name = |s: &bool| if *s { "sliding_attention" } else { "full_attention" };
        out.insert("layer_types".into(), json!(slides.iter().map(name).collect::<Vec<_>>()));
    }
    if let Some(number) = integer(metadata, &key("expert_gating_func")) {
        let name = ["none", "softmax", "sigmoid"].get(number as usize).copied().unwrap_or("unknown");
        out.insert("scoring_func".into(), json!(name));
    }
    partial_rotation(metadata, &key, &mut out);
    latent(metadata, &key, &mut out);
    if let Some(rope) = scaling(checkpoint, metadata, &key)? {
        if let Some(original) = rope.get("original_max_position_embeddings") {
            out.insert("original_max_position_embeddings".into(), original.clone());
        }
        out.insert("rope_scaling".into(), Value::Object(rope));
    }
    Ok(Value::Object(out))
}

/// The number under a key. JSON has no other floats than finite ones, and would take NaN for a field that is not there.
fn scalar(metadata: &GgufMetadata, key: &str) -> Result<Option<Value>, ModelError> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    if let Some(float) = value.as_f64().filter(|float| !float.is_finite()) {
        return Err(ModelError::field(key, format!("{float} is no number to compute with")));
    }
    Ok(match value {
        GgufValue::Bool(b) => Some(json!(b)),
        GgufValue::F32(f) => Some(json!(f)),
        GgufValue::F64(f) => Some(json!(f)),
        other => other.as_i64().map(|i| json!(i)),
    })
}

fn partial_rotation(metadata: &GgufMetadata, key: &dyn Fn(&str) -> String, out: &mut Map<String, Value>) {
    let number = |field: &str| out.get(field).and_then(Value::as_u64);
    let head_dim = number("head_dim").or_else(|| {
        let (hidden, heads) = (number("hidden_size")?, number("num_attention_heads")?);
        hidden.checked_div(heads)
    });
    if let (Some(rotary), Some(head_dim)) = (integer(metadata, &key("rope.dimension_count")), head_dim)
        && head_dim > 0
    {
        out.insert("partial_rotary_factor".into(), json!(rotary as f64 / head_dim as f64));
    }
}

/// The parts of a latent-attention head, of which GGUF has the sums. Only the rotated part counts as the head of a
/// configuration.
fn latent(metadata: &GgufMetadata, key: &dyn Fn(&str) -> String, out: &mut Map<String, Value>) {
    let read = |name: &str| integer(metadata, &key(name));
    let keys = read("attention.key_length_mla").or_else(|| read("attention.key_length"));
    let values = read("attention.value_length_mla").or_else(|| read("attention.value_length"));
    let parts = (keys, values, read("rope.dimension_count"));
    if let (true, (Some(keys), Some(values), Some(rotary))) = (out.contains_key("kv_lora_rank"), parts) {
        out.remove("partial_rotary_factor");
        out.insert("head_dim".into(), json!(rotary));
        out.insert("qk_rope_head_dim".into(), json!(rotary));
        out.insert("qk_nope_head_dim".into(), json!(keys.saturating_sub(rotary)));
        out.insert("v_head_dim".into(), json!(values));
    }
}

/// The rope settings; longrope keeps its factors in tensors.
fn scaling(
    checkpoint: &Checkpoint,
    metadata: &GgufMetadata,
    key: &dyn Fn(&str) -> String,
) -> Result<Option<Map<String, Value>>, ModelError> {
    let mut rope = Map::new();
    for (tensor, field) in [("rope_factors_long", "long_factor"), ("rope_factors_short", "short_factor")] {
        let name = format!("{tensor}.weight");
        if checkpoint.info(&name).is_some() {
            rope.insert(field.to_string(), json!(checkpoint.tensor(&name)?.to_f32()));
        }
    }
    let kind = metadata.find::<&str>(&key("rope.scaling.type"))?;
    let kind = kind.or((!rope.is_empty()).then_some("longrope")).filter(|kind| *kind != "none");
    let Some(kind) = kind else { return Ok(None) };
    rope.insert("rope_type".to_string(), json!(kind));
    let settings = [
        ("rope.scaling.factor", "factor"),
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ("rope.scaling.attn_factor", "attention_factor"),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ];
    for (name, field) in settings {
        if let Some(v) = scalar(metadata, &key(name))? {
            rope.insert(field.to_string(), v);
        }
    }
    // Files that have it are of models whose two scales are equal.
    if let Some(tenth) = metadata.get(&key("rope.scaling.yarn_log_multiplier")).and_then(GgufValue::as_f64) {
        for field in ["mscale", "mscale_all_dim"] {
            rope.insert(field.to_string(), json!(tenth * 10.0));
        }
    }
    Ok(Some(rope))
}
