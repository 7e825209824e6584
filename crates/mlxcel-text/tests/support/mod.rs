//! Reads the fixtures: small vocabularies, the texts, and what the oracles made of them.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::PathBuf;

use mlxcel_text::{EncodeOptions, GgufVocab, SpecialTokens, Tokenizer};
use serde_json::Value;

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn json(name: &str) -> Value {
    let bytes = std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
}

pub fn id_lists(value: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(value.clone()).expect("lists of ids")
}

pub fn parsed() -> EncodeOptions {
    EncodeOptions { special_tokens: SpecialTokens::Parse, add_special_tokens: false }
}

pub fn plain() -> EncodeOptions {
    EncodeOptions { special_tokens: SpecialTokens::AsText, add_special_tokens: false }
}

/// The vocabulary of a `tokenizer.json`, laid out as a GGUF file lays it out.
fn listed_vocab(tokenizer: &Value) -> (Vec<String>, Vec<i32>) {
    let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let added = tokenizer["added_tokens"].as_array().expect("added tokens");
    let ids = vocab.values().chain(added.iter().map(|token| &token["id"]));
    let size = ids.map(|id| id.as_u64().expect("an id") as usize + 1).max().unwrap_or(0);
    let (mut tokens, mut types) = (vec![String::new(); size], vec![1; size]);
    for (text, id) in vocab {
        tokens[id.as_u64().expect("an id") as usize] = text.clone();
    }
    for token in added {
        let id = token["id"].as_u64().expect("an id") as usize;
        tokens[id] = token["content"].as_str().expect("a text").to_owned();
        types[id] = if token["special"] == true { 3 } else { 4 };
    }
    (tokens, types)
}

pub fn bpe_vocab(pre: &str) -> GgufVocab {
    let tokenizer = json("bpe/tokenizer.json");
    let (tokens, token_types) = listed_vocab(&tokenizer);
    let pairs = tokenizer["model"]["merges"].as_array().expect("merges");
    let merges = pairs.iter().map(|pair| strings(pair).join(" ")).collect();
    GgufVocab {
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        tokens,
        token_types,
        merges,
        bos_id: Some(0),
        eos_id: Some(2),
        ..GgufVocab::default()
    }
}

pub fn spm_vocab() -> GgufVocab {
    let vocab = json("spm.json");
    GgufVocab {
        model: "llama".to_owned(),
        tokens: strings(&vocab["tokens"]),
        scores: serde_json::from_value(vocab["scores"].clone()).expect("scores"),
        token_types: serde_json::from_value(vocab["token_types"].clone()).expect("types"),
        bos_id: Some(1),
        eos_id: Some(2),
        unk_id: Some(0),
        ..GgufVocab::default()
    }
}

pub fn wordpiece_vocab() -> GgufVocab {
    let (tokens, token_types) = listed_vocab(&json("wordpiece/tokenizer.json"));
    let respell = |(text, kind): (String, &i32)| match (text.strip_prefix("##"), kind) {
        (_, 3) => text,
        (Some(rest), _) => rest.to_owned(),
        (None, _) => format!("▁{text}"),
    };
    let tokens = tokens.into_iter().zip(&token_types).map(respell).collect();
    GgufVocab { model: "bert".to_owned(), tokens, token_types, ..GgufVocab::default() }
}

pub fn gguf(vocab: GgufVocab) -> Tokenizer {
    Tokenizer::from_gguf(vocab).expect("a valid vocabulary")
}

pub fn folder(name: &str) -> Tokenizer {
    Tokenizer::from_folder(&path(name)).expect("a valid folder")
}
