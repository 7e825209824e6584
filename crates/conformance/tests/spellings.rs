//! Checkpoints of other releases: the same numbers under other tensor names, beside tensors that nothing needs.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use conformance::models::{F32_TOLERANCE, Fixture, check_greedy, fixtures, relative_error};
use conformance::sequence::Runner;
use mlxcel_engine::ReferenceEngine;
use mlxcel_engine::weights::Checkpoint;
use mlxcel_ir::DType;
use serde_json::{Map, Value, json};

/// A copy of a fixture whose tensors have other names, with further tensors of one number each.
fn with_names(fixture: &str, rename: impl Fn(&str) -> String, extras: &[&str]) -> tempfile::TempDir {
    let folder = fixtures("golden").join(fixture);
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "golden.json", "logits.safetensors"] {
        std::fs::copy(folder.join(name), copy.path().join(name)).unwrap();
    }
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..start]).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let mut renamed: Map<String, Value> = tensors.map(|(name, t)| (rename(&name), t)).collect();
    let mut data = bytes[start..].to_vec();
    for name in extras {
        let place = [data.len(), data.len() + 4];
        renamed.insert(name.to_string(), json!({"dtype": "F32", "shape": [1], "data_offsets": place}));
        data.extend([0; 4]);
    }
    let header = Value::Object(renamed).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(copy.path().join("model.safetensors"), file).unwrap();
    copy
}

fn check(fixture: &str, rename: impl Fn(&str) -> String, extras: &[&str]) {
    let copy = with_names(fixture, rename, extras);
    check_greedy(&ReferenceEngine, &Fixture::open(copy.path()), usize::MAX, F32_TOLERANCE);
}

#[test]
fn gpt2_as_first_released_has_bare_names_and_stored_masks() {
    let bare = |name: &str| name.replace("transformer.", "");
    check("gpt2/f32", bare, &["h.0.attn.bias", "h.1.attn.masked_bias", "lm_head.weight"]);
}

#[test]
fn gpt_neox_may_call_its_output_layer_lm_head_and_store_masks() {
    let names = ["bias", "masked_bias", "rotary_emb.inv_freq"];
    let extras = names.map(|name| format!("gpt_neox.layers.0.attention.{name}"));
    check("gpt_neox/f32", |n| n.replace("embed_out", "lm_head"), &extras.each_ref().map(String::as_str));
}

#[test]
fn mamba_as_first_released_has_one_embedding() {
    check("mamba/f32", |n| n.replace("backbone.embeddings", "backbone.embedding"), &[]);
}

#[test]
fn deepseek_v3_leaves_out_the_layer_that_predicts_a_second_token() {
    check(
        "deepseek_v3/f32",
        str::to_string,
        &["model.layers.2.enorm.weight", "model.layers.2.eh_proj.weight"],
    );
}

#[test]
fn bert_as_first_released_has_a_prefix_and_other_names_for_norms() {
    let early = |n: &str| {
        let n = n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        format!("bert.{n}")
    };
    let copy = with_names("bert/f32", early, &["bert.embeddings.position_ids", "cls.predictions.bias"]);
    assert_eq!(embed(copy.path()), embed(&fixtures("golden").join("bert/f32")));
}

/// Embeddings of two texts, which the fixture's own test proves right for the fixture.
fn embed(folder: &Path) -> Vec<Vec<f32>> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let model = mlxcel_models::load(&checkpoint, DType::F32).unwrap();
    let mut runner = Runner::new(&ReferenceEngine, (&model, &checkpoint), 2, 8).unwrap();
    let vectors = runner.embed(&[&[5, 9, 200], &[31]]).unwrap();
    assert!(relative_error(&vectors[0], &vectors[1]) > 0.01, "two texts have two vectors");
    vectors
}
