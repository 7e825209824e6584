//! Embeddings against transformers: of an encoder, and of decoders that are loaded for their hidden states.

use std::path::Path;

use mlxcel_engine::Engine;
use mlxcel_engine::weights::Checkpoint;
use mlxcel_ir::DType;
use mlxcel_models::{EmbedOptions, ModelKind, Pooling};
use serde_json::Value;

use crate::models::{F32_TOLERANCE, fixtures, relative_error};
use crate::sequence::Runner;

fn read(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).expect("a fixture's description is JSON")
}

fn ids(value: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(value.clone()).expect("texts are lists of token ids")
}

/// Every case of `golden`, its texts in one batch, against the vectors of that pooling.
pub fn check_encoder(engine: &dyn Engine, weights: &Path, golden: &Path, pooling: &str) {
    let checkpoint = Checkpoint::open(weights).expect("a readable checkpoint");
    let expected = Checkpoint::open(golden.join("logits.safetensors")).expect("readable vectors");
    let model = mlxcel_models::load(&checkpoint, DType::F32).expect("a known family");
    assert_eq!(model.built.kind, ModelKind::Embed);
    for case in read(&golden.join("golden.json"))["cases"].as_array().expect("a list of cases") {
        let texts = ids(&case["prompt"]);
        let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let longest = texts.iter().map(|t| t.len()).max().expect("a case has texts");
        let name = format!("{}.{pooling}", case["name"].as_str().expect("a case has a name"));
        let wanted = expected.tensor(&name).expect("the vectors of this pooling");
        let mut runner = Runner::new(engine, (&model, &checkpoint), texts.len(), longest).expect("compiles");
        let got = runner.embed(&texts).expect("runs");
        assert_eq!(got.len(), wanted.shape[0]);
        let error = relative_error(&got.concat(), &wanted.to_f32());
        assert!(error <= F32_TOLERANCE, "{name} of {}: off by {error:e}", weights.display());
    }
}

/// The encoder fixture in every type, and as a GGUF file.
pub fn check_bert(engine: &dyn Engine) {
    for variant in ["f32", "bf16", "q4"] {
        let folder = fixtures("golden").join("bert").join(variant);
        check_encoder(engine, &folder, &folder, "mean");
    }
    let golden = fixtures("golden").join("bert/f32");
    check_encoder(engine, &fixtures("gguf").join("bert.gguf"), &golden, "mean");
}

/// Whole sequences through a decoder that is loaded for embeddings.
pub fn embed_with(
    engine: &dyn Engine,
    folder: &Path,
    options: EmbedOptions,
    texts: &[&[u32]],
) -> Vec<Vec<f32>> {
    let checkpoint = Checkpoint::open(folder).expect("a readable checkpoint");
    let model = mlxcel_models::load_embedder(&checkpoint, DType::F32, options).expect("a known family");
    assert_eq!(model.built.kind, ModelKind::Embed);
    let longest = texts.iter().map(|t| t.len()).max().expect("there are texts");
    let mut runner = Runner::new(engine, (&model, &checkpoint), texts.len(), longest).expect("compiles");
    runner.embed(texts).expect("runs")
}

/// Decoders of several families, pooled in two ways.
pub fn check_decoders(engine: &dyn Engine) {
    let golden = read(&fixtures("golden").join("decoder-embeddings.json"));
    let texts = ids(&golden["texts"]);
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let families = golden["families"].as_object().expect("vectors by family");
    assert_eq!(families.len(), 6);
    for (family, expected) in families {
        let folder = fixtures("golden").join(family).join("f32");
        for (name, pooling) in [("mean", Pooling::Mean), ("last", Pooling::Last)] {
            let wanted: Vec<Vec<f32>> =
                serde_json::from_value(expected[name].clone()).expect("vectors of numbers");
            let options = EmbedOptions { pooling: Some(pooling), normalize: true };
            let got = embed_with(engine, &folder, options, &texts);
            let error = relative_error(&got.concat(), &wanted.concat());
            assert!(error <= F32_TOLERANCE, "{name} of {family}: off by {error:e}");
        }
    }
}
