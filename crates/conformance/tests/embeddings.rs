//! How embeddings are asked for, on the reference engine: settings of sentence-transformers, older configurations,
//! decoders without their output layer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use conformance::embeddings::{check_encoder, embed_with};
use conformance::models::fixtures;
use mlxcel_engine::ReferenceEngine;
use mlxcel_engine::weights::Checkpoint;
use mlxcel_ir::DType;
use mlxcel_models::{EmbedOptions, ModelError, ModelKind, Pooling};
use serde_json::{Value, json};

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A copy of the fixture's weights with another configuration, and pooling settings if given.
fn folder_with(config: &Value, pooling: Option<Value>) -> tempfile::TempDir {
    let fixture = fixtures("golden").join("bert/f32");
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(fixture.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    if let Some(settings) = pooling {
        std::fs::create_dir(copy.path().join("1_Pooling")).unwrap();
        std::fs::write(copy.path().join("1_Pooling/config.json"), settings.to_string()).unwrap();
    }
    copy
}

#[test]
fn a_decoder_is_asked_for_its_pooling_unless_its_folder_says_it() {
    let golden = fixtures("golden").join("qwen3/f32");
    let options = EmbedOptions { pooling: None, normalize: true };
    let checkpoint = Checkpoint::open(&golden).unwrap();
    let refused = mlxcel_models::load_embedder(&checkpoint, DType::F32, options).unwrap_err();
    assert!(matches!(refused, ModelError::NoPooling { family: "qwen3" }), "{refused}");
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(name), copy.path().join(name)).unwrap();
    }
    std::fs::create_dir(copy.path().join("1_Pooling")).unwrap();
    let settings = json!({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false});
    std::fs::write(copy.path().join("1_Pooling/config.json"), settings.to_string()).unwrap();
    std::fs::write(copy.path().join("sentence_bert_config.json"), r#"{"max_seq_length": 9}"#).unwrap();
    let checkpoint = Checkpoint::open(copy.path()).unwrap();
    let model = mlxcel_models::load_embedder(&checkpoint, DType::F32, options).unwrap();
    assert_eq!((model.built.kind, model.built.max_context), (ModelKind::Embed, 9));
    let dense = json!([{"type": "sentence_transformers.models.Transformer"},
                       {"type": "sentence_transformers.models.Dense"}]);
    std::fs::write(copy.path().join("modules.json"), dense.to_string()).unwrap();
    let refused = mlxcel_models::load_embedder(&checkpoint, DType::F32, options).unwrap_err().to_string();
    assert!(refused.contains("modules.json") && refused.contains("Dense"), "{refused}");
}

/// Published without the output layer, and so without `model.` before every name.
#[test]
fn a_decoder_without_its_output_layer_gives_the_same_embeddings() {
    let golden = fixtures("golden").join("qwen3/f32");
    let bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let renamed: serde_json::Map<String, Value> = header
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, entry)| (name.strip_prefix("model.").unwrap_or(name).to_string(), entry.clone()))
        .collect();
    assert!(renamed.contains_key("norm.weight") && renamed.contains_key("embed_tokens.weight"));
    let header = Value::from(renamed).to_string();
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(golden.join("config.json"), copy.path().join("config.json")).unwrap();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[8 + length..]].concat();
    std::fs::write(copy.path().join("model.safetensors"), file).unwrap();
    let options = EmbedOptions { pooling: Some(Pooling::Last), normalize: true };
    let texts: [&[u32]; 2] = [&[5, 17, 101], &[7]];
    let embed = |folder: &Path| embed_with(&ReferenceEngine, folder, options, &texts);
    assert_eq!(embed(copy.path()), embed(&golden));
}

#[test]
fn an_older_configuration_gives_the_same_embeddings() {
    let golden = fixtures("golden").join("bert/f32");
    let older = folder_with(&read(&golden.join("config-old.json")), None);
    check_encoder(&ReferenceEngine, older.path(), &golden, "mean");
}

#[test]
fn the_settings_of_sentence_transformers_choose_the_pooling() {
    let golden = fixtures("golden").join("bert/f32");
    let config = read(&golden.join("config.json"));
    let cls = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    check_encoder(&ReferenceEngine, folder_with(&config, Some(cls)).path(), &golden, "cls");
    let mean = json!({"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true});
    check_encoder(&ReferenceEngine, folder_with(&config, Some(mean)).path(), &golden, "mean");
    let max = folder_with(&config, Some(json!({"pooling_mode_max_tokens": true})));
    let checkpoint = Checkpoint::open(max.path()).unwrap();
    let refused = mlxcel_models::load(&checkpoint, DType::F32).unwrap_err();
    assert!(matches!(&refused, ModelError::Field { field, .. } if field == "pooling_mode"), "{refused}");
}

conformance::embeddings_suite!(reference, ReferenceEngine);
