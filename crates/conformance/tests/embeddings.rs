//! Sentence embeddings against transformers, pooled and normalised as sentence-transformers does, on every engine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use conformance::models::{F32_TOLERANCE, fixtures, relative_error};
use conformance::sequence::Runner;
use mlxcel_cpu::{CpuEngine, CpuOptions};
use mlxcel_engine::weights::Checkpoint;
use mlxcel_engine::{Engine, ReferenceEngine};
use mlxcel_ir::DType;
use mlxcel_models::{EmbedOptions, ModelError, ModelKind, Pooling};
use serde_json::{Value, json};

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Every case of `golden`, its texts in one batch, against the vectors of that pooling.
fn check(weights: &Path, golden: &Path, pooling: &str) {
    let checkpoint = Checkpoint::open(weights).unwrap();
    let expected = Checkpoint::open(golden.join("logits.safetensors")).unwrap();
    let model = mlxcel_models::load(&checkpoint, DType::F32).unwrap();
    assert_eq!(model.built.kind, ModelKind::Embed);
    let cpu = CpuEngine::new(CpuOptions::default()).unwrap();
    for case in read(&golden.join("golden.json"))["cases"].as_array().unwrap() {
        let texts: Vec<Vec<u32>> = serde_json::from_value(case["prompt"].clone()).unwrap();
        let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let longest = texts.iter().map(|t| t.len()).max().unwrap();
        let name = format!("{}.{pooling}", case["name"].as_str().unwrap());
        let wanted = expected.tensor(&name).unwrap();
        for engine in [&ReferenceEngine as &dyn Engine, &cpu] {
            let mut runner = Runner::new(engine, (&model, &checkpoint), texts.len(), longest).unwrap();
            let got = runner.embed(&texts).unwrap();
            assert_eq!(got.len(), wanted.shape[0]);
            let error = relative_error(&got.concat(), &wanted.to_f32());
            assert!(error <= F32_TOLERANCE, "{name} of {}: off by {error:e}", weights.display());
        }
    }
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

/// Whole sequences through a decoder that is loaded for embeddings.
fn embed_with(engine: &dyn Engine, folder: &Path, options: EmbedOptions, texts: &[&[u32]]) -> Vec<Vec<f32>> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let model = mlxcel_models::load_embedder(&checkpoint, DType::F32, options).unwrap();
    assert_eq!(model.built.kind, ModelKind::Embed);
    let longest = texts.iter().map(|t| t.len()).max().unwrap();
    Runner::new(engine, (&model, &checkpoint), texts.len(), longest).unwrap().embed(texts).unwrap()
}

#[test]
fn decoders_give_the_pooled_hidden_states_of_transformers() {
    let golden = read(&fixtures("golden").join("decoder-embeddings.json"));
    let texts: Vec<Vec<u32>> = serde_json::from_value(golden["texts"].clone()).unwrap();
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let cpu = CpuEngine::new(CpuOptions::default()).unwrap();
    let families = golden["families"].as_object().unwrap();
    assert_eq!(families.len(), 6);
    for (family, expected) in families {
        let folder = fixtures("golden").join(family).join("f32");
        for (name, pooling) in [("mean", Pooling::Mean), ("last", Pooling::Last)] {
            let wanted: Vec<Vec<f32>> = serde_json::from_value(expected[name].clone()).unwrap();
            let options = EmbedOptions { pooling: Some(pooling), normalize: true };
            for engine in [&ReferenceEngine as &dyn Engine, &cpu] {
                let got = embed_with(engine, &folder, options, &texts);
                let error = relative_error(&got.concat(), &wanted.concat());
                assert!(error <= F32_TOLERANCE, "{name} of {family}: off by {error:e}");
            }
        }
    }
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
    let cpu = CpuEngine::new(CpuOptions::default()).unwrap();
    assert_eq!(embed_with(&cpu, copy.path(), options, &texts), embed_with(&cpu, &golden, options, &texts));
}

#[test]
fn bert_gives_the_embeddings_of_transformers() {
    for variant in ["f32", "bf16", "q4"] {
        let folder = fixtures("golden").join("bert").join(variant);
        check(&folder, &folder, "mean");
    }
    let golden = fixtures("golden").join("bert/f32");
    check(&fixtures("gguf").join("bert.gguf"), &golden, "mean");
    check(folder_with(&read(&golden.join("config-old.json")), None).path(), &golden, "mean");
}

#[test]
fn the_settings_of_sentence_transformers_choose_the_pooling() {
    let golden = fixtures("golden").join("bert/f32");
    let config = read(&golden.join("config.json"));
    let cls = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    check(folder_with(&config, Some(cls)).path(), &golden, "cls");
    let mean = json!({"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true});
    check(folder_with(&config, Some(mean)).path(), &golden, "mean");
    let max = folder_with(&config, Some(json!({"pooling_mode_max_tokens": true})));
    let checkpoint = Checkpoint::open(max.path()).unwrap();
    let refused = mlxcel_models::load(&checkpoint, DType::F32).unwrap_err();
    assert!(matches!(&refused, ModelError::Field { field, .. } if field == "pooling_mode"), "{refused}");
}
