//! Sentence embeddings against transformers, pooled and normalised as sentence-transformers does, on every engine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use conformance::models::{F32_TOLERANCE, fixtures, relative_error};
use conformance::sequence::Runner;
use mlxcel_cpu::{CpuEngine, CpuOptions};
use mlxcel_engine::weights::Checkpoint;
use mlxcel_engine::{Engine, ReferenceEngine};
use mlxcel_ir::DType;
use mlxcel_models::{ModelError, ModelKind};
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
