//! More families against Hugging Face transformers on the reference engine: every variant, fed whole, token by token
//! and in chunks, alone and in company, and with the older dialect of the configuration.

use std::path::{Path, PathBuf};

use conformance::models::{F32_TOLERANCE, Fixture, check_batched, check_greedy, fixtures};
use mlxcel_engine::ReferenceEngine;

/// The folders of a family's fixtures, sorted.
fn variants(family: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixtures("golden").join(family)).expect("the family has fixtures");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("the folder is readable").path()).collect();
    folders.sort();
    folders
}

/// A copy of a fixture that has the older dialect of its configuration, where it has one.
fn in_the_old_dialect(folder: &Path) -> Option<PathBuf> {
    let old = folder.join("config-old.json");
    let names: Vec<_> = folder.iter().rev().take(2).map(|s| s.to_string_lossy().into_owned()).collect();
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("old-{}", names.join("-")));
    if !old.exists() {
        return None;
    }
    std::fs::create_dir_all(&copy).expect("the target folder is writable");
    for name in ["golden.json", "logits.safetensors", "model.safetensors"] {
        std::fs::copy(folder.join(name), copy.join(name)).expect("a fixture has all files");
    }
    std::fs::copy(old, copy.join("config.json")).expect("the target folder is writable");
    Some(copy)
}

fn check_family(family: &str) {
    for folder in variants(family) {
        let fixture = Fixture::open(&folder);
        for chunk in [1000, 1, 5] {
            check_greedy(&ReferenceEngine, &fixture, chunk, F32_TOLERANCE);
        }
        check_batched(&ReferenceEngine, &fixture, F32_TOLERANCE);
        if let Some(old) = in_the_old_dialect(&folder) {
            check_greedy(&ReferenceEngine, &Fixture::open(&old), 1000, F32_TOLERANCE);
        }
    }
}

#[test]
fn starcoder2_gives_the_tokens_of_transformers() {
    check_family("starcoder2");
}

#[test]
fn stablelm_gives_the_tokens_of_transformers() {
    check_family("stablelm");
}

#[test]
fn gpt2_gives_the_tokens_of_transformers() {
    check_family("gpt2");
}

#[test]
fn gpt_neox_gives_the_tokens_of_transformers() {
    check_family("gpt_neox");
}

#[test]
fn cohere_gives_the_tokens_of_transformers() {
    check_family("cohere");
}

#[test]
fn deepseek_v3_gives_the_tokens_of_transformers() {
    check_family("deepseek_v3");
}
