//! What a checkpoint must not do: every case names the field or tensor that is at fault, and nothing panics.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::{Path, PathBuf};

use mlxcel_ir::DType;
use mlxcel_models::{ModelError, load};
use mlxcel_weights::Checkpoint;
use serde_json::{Value, json};

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden").join(family).join("f32")
}

fn config(family: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(family).join("config.json")).unwrap()).unwrap()
}

/// The error of loading a fixture's weights with another configuration.
fn refusal(family: &str, config: &Value) -> ModelError {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture(family).join("model.safetensors"), folder.path().join("model.safetensors"))
        .unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    load(&checkpoint, DType::F32).expect_err("this configuration must be refused")
}

/// The field named by the error of changing one field of a family's configuration.
fn field(family: &str, name: &str, value: Value) -> String {
    let mut c = config(family);
    c[name] = value;
    match refusal(family, &c) {
        ModelError::Field { field, .. } => field,
        other => panic!("{name} gave {other}"),
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_by_field() {
    for (name, value) in [
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(0)),
        ("num_key_value_heads", json!(3)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(1_000_000_000)),
        ("vocab_size", json!(0)),
        ("hidden_size", json!(u64::MAX)),
        ("head_dim", json!(0)),
        ("intermediate_size", json!(-1)),
        ("hidden_size", json!("64")),
        ("hidden_size", json!(6.5)),
        ("max_position_embeddings", json!(0)),
        ("attention_bias", json!("yes")),
        ("layer_types", json!(["sliding_attention"])),
        ("hidden_act", json!("sine")),
    ] {
        assert_eq!(field("llama", name, value.clone()), name, "{name} = {value}");
    }
}

#[test]
fn rotations_that_are_not_understood_are_refused_by_field() {
    let rope = |settings: Value| field("llama", "rope_parameters", settings);
    assert_eq!(rope(json!({"rope_type": "helix"})), "rope_type");
    assert_eq!(rope(json!({"rope_type": "default", "rope_theta": -1.0})), "rope_theta");
    assert_eq!(rope(json!({"rope_type": "default", "rope_theta": "NaN"})), "rope_theta");
    assert_eq!(rope(json!({"rope_type": "yarn", "factor": 0.0})), "factor");
    assert_eq!(rope(json!({"rope_type": "llama3", "factor": 8.0})), "low_freq_factor");
}

#[test]
fn settings_that_are_not_understood_are_refused_by_name() {
    for (family, name, value) in [
        ("bert", "position_embedding_type", json!("relative_key")),
        ("bert", "hidden_act", json!("mish")),
        ("cohere", "hidden_act", json!("mish")),
        ("deepseek_v3", "scoring_func", json!("softmax")),
        ("deepseek_v3", "topk_method", json!("greedy")),
        ("deepseek_v3", "moe_layer_freq", json!(2)),
        ("gemma2", "hidden_activation", json!("mish")),
        ("gpt2", "activation_function", json!("mish")),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt_oss", "num_local_experts", json!(0)),
        ("granite", "logits_scaling", json!(0.0)),
        ("olmo", "clip_qkv", json!(-1.0)),
        ("mamba", "time_step_rank", json!("sometimes")),
        ("mamba", "num_hidden_layers", json!(1_000_000_000)),
        ("smollm3", "no_rope_layers", json!([1])),
        ("starcoder2", "hidden_act", json!("mish")),
    ] {
        assert_eq!(field(family, name, value), name, "{family}");
    }
}

#[test]
fn a_missing_field_is_named() {
    let mut c = config("llama");
    c.as_object_mut().unwrap().remove("hidden_size");
    assert!(refusal("llama", &c).to_string().contains("'hidden_size'"));
}

#[test]
fn missing_tensors_are_named() {
    let mut c = config("qwen3");
    c["num_hidden_layers"] = json!(c["num_hidden_layers"].as_u64().unwrap() + 1);
    c.as_object_mut().unwrap().remove("layer_types");
    let error = refusal("qwen3", &c);
    assert!(matches!(&error, ModelError::MissingTensor { name } if name.contains("layers.")), "{error}");
}

#[test]
fn unused_tensors_are_an_error() {
    let mut c = config("llama");
    c["num_hidden_layers"] = json!(1);
    let error = refusal("llama", &c);
    assert!(
        matches!(&error, ModelError::UnusedTensors { examples, .. } if examples[0].contains("layers.1.")),
        "{error}"
    );
    let mut c = config("llama");
    c["attention_bias"] = json!(false);
    assert!(matches!(refusal("llama", &c), ModelError::UnusedTensors { .. }));
}

#[test]
fn tensors_of_another_shape_are_named_with_both_shapes() {
    let mut c = config("llama");
    c["vocab_size"] = json!(300);
    match refusal("llama", &c) {
        ModelError::TensorShape { name, found, expected } => {
            assert_eq!(name, "model.embed_tokens.weight");
            assert_eq!((found[0], expected[0]), (263, 300));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_family_nobody_knows_is_refused_with_those_that_are() {
    let mut c = config("llama");
    c["model_type"] = json!("llamaverse");
    let message = refusal("llama", &c).to_string();
    assert!(message.contains("'llamaverse'") && message.contains("qwen3"), "{message}");
    c.as_object_mut().unwrap().remove("model_type");
    assert!(matches!(refusal("llama", &c), ModelError::NoModelType));
}

#[test]
fn end_tokens_come_from_the_generation_config_and_a_broken_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "config.json"] {
        std::fs::copy(fixture("llama").join(name), folder.path().join(name)).unwrap();
    }
    let beside = folder.path().join("generation_config.json");
    let ends = || load(&Checkpoint::open(folder.path()).unwrap(), DType::F32).map(|m| m.eos_token_ids);
    std::fs::write(&beside, r#"{"eos_token_id": [2, 7]}"#).unwrap();
    assert_eq!(ends().unwrap(), [2, 7].into());
    std::fs::write(&beside, r#"{"eos_token_id": [2, "#).unwrap();
    let refused = ends().unwrap_err().to_string();
    assert!(refused.contains("generation_config.json"), "{refused}");
}

#[test]
fn a_gguf_file_takes_no_end_tokens_from_a_neighbouring_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/gguf/llama.gguf");
    std::fs::copy(stored, &file).unwrap();
    let ends = || load(&Checkpoint::open(&file).unwrap(), DType::F32).unwrap().eos_token_ids;
    let alone = ends();
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": 99}"#).unwrap();
    assert_eq!(ends(), alone);
}

/// JSON cannot hold them, but GGUF can.
#[test]
fn numbers_of_a_gguf_file_that_are_none_are_refused_by_key() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/gguf/llama.gguf");
    let bytes = std::fs::read(stored).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    for key in ["llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"] {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut bytes = bytes.clone();
            let at = bytes.windows(key.len()).position(|w| w == key.as_bytes()).unwrap() + key.len();
            assert_eq!(bytes[at..at + 4], [6, 0, 0, 0], "an f32 follows");
            bytes[at + 4..at + 8].copy_from_slice(&wrong.to_le_bytes());
            std::fs::write(&file, bytes).unwrap();
            match load(&Checkpoint::open(&file).unwrap(), DType::F32) {
                Err(ModelError::Field { field, .. }) => assert_eq!(field, key),
                other => panic!("{key} = {wrong}: {:?}", other.map(|_| "loaded")),
            }
        }
    }
}
