//! More families against Hugging Face transformers on the reference engine: every variant, fed whole, token by token
//! and in chunks, alone and in company, with the older dialect of the configuration, and as GGUF.

use std::path::{Path, PathBuf};

use conformance::models::{F32_TOLERANCE, Fixture, check_batched, check_greedy, fixtures, relative_error};
use conformance::sequence::Runner;
use mlxcel_engine::ReferenceEngine;
use mlxcel_engine::weights::Checkpoint;
use mlxcel_ir::DType;
use mlxcel_models::{ModelError, ModelKind};
use serde_json::{Value, json};

/// The folders of a family's fixtures, sorted.
fn variants(family: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixtures("golden").join(family)).expect("the family has fixtures");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("the folder is readable").path()).collect();
    folders.sort();
    folders
}

fn check_family(family: &str) {
    for folder in variants(family) {
        let fixture = Fixture::open(&folder);
        for chunk in [1000, 1, 5] {
            check_greedy(&ReferenceEngine, &fixture, chunk, F32_TOLERANCE);
        }
        check_batched(&ReferenceEngine, &fixture, F32_TOLERANCE);
        if let Some(older) = Fixture::older(&folder) {
            check_greedy(&ReferenceEngine, &older, 1000, F32_TOLERANCE);
        }
    }
}

macro_rules! families {
    ($($test:ident => $family:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            check_family($family);
        }
    )*};
}

families!(
    cohere_gives_the_tokens_of_transformers => "cohere",
    deepseek_v3_gives_the_tokens_of_transformers => "deepseek_v3",
    gpt2_gives_the_tokens_of_transformers => "gpt2",
    gpt_neox_gives_the_tokens_of_transformers => "gpt_neox",
    gpt_oss_gives_the_tokens_of_transformers => "gpt_oss",
    mamba_gives_the_tokens_of_transformers => "mamba",
    stablelm_gives_the_tokens_of_transformers => "stablelm",
    starcoder2_gives_the_tokens_of_transformers => "starcoder2",
);

macro_rules! architectures {
    ($($test:ident => $file:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            let fixture = Fixture::open_gguf(&fixtures("gguf"), $file);
            check_greedy(&ReferenceEngine, &fixture, 1000, F32_TOLERANCE);
            check_batched(&ReferenceEngine, &fixture, F32_TOLERANCE);
        }
    )*};
}

architectures!(
    command_r_as_gguf_equals_its_safetensors => "command-r",
    deepseek2_as_gguf_equals_its_safetensors => "deepseek2",
    gpt2_as_gguf_equals_its_safetensors => "gpt2",
    gptneox_as_gguf_equals_its_safetensors => "gptneox",
    gpt_oss_as_gguf_equals_its_safetensors => "gpt-oss",
    mamba_as_gguf_equals_its_safetensors => "mamba",
    stablelm_as_gguf_equals_its_safetensors => "stablelm",
    starcoder2_as_gguf_equals_its_safetensors => "starcoder2",
);

/// Every case of `golden`, its texts in one batch, against the vectors of that pooling.
fn check_embeddings(weights: &Path, golden: &Path, pooling: &str) {
    let checkpoint = Checkpoint::open(weights).unwrap();
    let expected = Checkpoint::open(golden.join("logits.safetensors")).unwrap();
    let cases: Value = serde_json::from_slice(&std::fs::read(golden.join("golden.json")).unwrap()).unwrap();
    let model = mlxcel_models::load(&checkpoint, DType::F32).unwrap();
    assert_eq!(model.built.kind, ModelKind::Embed);
    for case in cases["cases"].as_array().unwrap() {
        let texts: Vec<Vec<u32>> = serde_json::from_value(case["prompt"].clone()).unwrap();
        let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let longest = texts.iter().map(|t| t.len()).max().unwrap();
        let mut runner = Runner::new(&ReferenceEngine, (&model, &checkpoint), texts.len(), longest).unwrap();
        let got = runner.embed(&texts).unwrap();
        let name = format!("{}.{pooling}", case["name"].as_str().unwrap());
        let wanted = expected.tensor(&name).unwrap();
        assert_eq!(got.len(), wanted.shape[0]);
        let error = relative_error(&got.concat(), &wanted.to_f32());
        assert!(error <= F32_TOLERANCE, "{name} of {}: off by {error:e}", weights.display());
    }
}

/// A copy of a fixture's weights with another configuration, and pooling settings if given.
fn folder_with(folder: &Path, config: &Value, pooling: Option<Value>) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    if let Some(settings) = pooling {
        std::fs::create_dir(copy.path().join("1_Pooling")).unwrap();
        std::fs::write(copy.path().join("1_Pooling/config.json"), settings.to_string()).unwrap();
    }
    copy
}

fn config_of(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

#[test]
fn bert_gives_the_embeddings_of_transformers() {
    for folder in variants("bert") {
        check_embeddings(&folder, &folder, "mean");
    }
    let golden = fixtures("golden").join("bert/f32");
    check_embeddings(&fixtures("gguf").join("bert.gguf"), &golden, "mean");
    let old = serde_json::from_slice(&std::fs::read(golden.join("config-old.json")).unwrap()).unwrap();
    check_embeddings(folder_with(&golden, &old, None).path(), &golden, "mean");
}

#[test]
fn the_settings_of_sentence_transformers_choose_the_pooling() {
    let golden = fixtures("golden").join("bert/f32");
    let config = config_of(&golden);
    let with = |settings: Value| folder_with(&golden, &config, Some(settings));
    let cls = json!({"word_embedding_dimension": 64, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    check_embeddings(with(cls).path(), &golden, "cls");
    let mean = json!({"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true});
    check_embeddings(with(mean).path(), &golden, "mean");
    let max = with(json!({"pooling_mode_max_tokens": true}));
    assert_eq!(refused_field(max.path()), "pooling_mode");
}

/// The field that loading names when it refuses a configuration.
fn refused_field(folder: &Path) -> String {
    match mlxcel_models::load(&Checkpoint::open(folder).unwrap(), DType::F32) {
        Err(ModelError::Field { field, .. }) => field,
        other => panic!("{} gave {:?}", folder.display(), other.map(|m| m.family)),
    }
}

#[test]
fn settings_that_are_not_understood_are_refused_by_name() {
    let cases = [
        ("bert", "position_embedding_type", json!("relative_key")),
        ("bert", "hidden_act", json!("mish")),
        ("cohere", "hidden_act", json!("mish")),
        ("deepseek_v3", "scoring_func", json!("softmax")),
        ("deepseek_v3", "topk_method", json!("greedy")),
        ("deepseek_v3", "moe_layer_freq", json!(2)),
        ("gpt2", "activation_function", json!("mish")),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt_oss", "num_local_experts", json!(0)),
        ("mamba", "time_step_rank", json!("sometimes")),
        ("mamba", "num_hidden_layers", json!(1000000000)),
        ("starcoder2", "hidden_act", json!("mish")),
    ];
    for (family, field, value) in cases {
        let fixture = fixtures("golden").join(family).join("f32");
        let mut config = config_of(&fixture);
        config[field] = value;
        let folder = folder_with(&fixture, &config, None);
        assert_eq!(refused_field(folder.path()), field, "{family}");
    }
}
