//! A vocabulary for a GGUF file of a model that has none: llama.cpp refuses files without one. Every token is a word of
//! its own that no text contains, besides the bytes, so that any text can be encoded and any id is valid.

use mlxcel_weights::{GgufArray, GgufValue};

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;
const NORMAL: i32 = 1;

/// The keys of a vocabulary of `size` tokens.
pub fn vocabulary(architecture: &str, size: usize) -> Vec<(String, GgufValue)> {
    if architecture == "bert" { word_pieces(size) } else { sentence_pieces(size) }
}

fn sentence_pieces(size: usize) -> Vec<(String, GgufValue)> {
    let mut tokens: Vec<(String, i32)> =
        vec![("<unk>".into(), UNKNOWN), ("<s>".into(), CONTROL), ("</s>".into(), CONTROL)];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.push(("\u{2581}".into(), NORMAL));
    tokens.extend((tokens.len()..size).map(|id| (format!("\u{2581}w{id}"), NORMAL)));
    tokens.truncate(size);
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    let mut pairs = lists("llama", tokens);
    pairs.push(("scores", GgufValue::Array(GgufArray::F32(scores))));
    for (key, id) in [("bos_token_id", 1), ("eos_token_id", 2), ("unknown_token_id", 0)] {
        pairs.push((key, GgufValue::U32(id)));
    }
    pairs.push(("add_bos_token", GgufValue::Bool(false)));
    prefixed(pairs)
}

fn word_pieces(size: usize) -> Vec<(String, GgufValue)> {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let mut tokens: Vec<(String, i32)> = special.iter().map(|s| (s.to_string(), CONTROL)).collect();
    tokens.extend((tokens.len()..size).map(|id| (format!("\u{2581}w{id}"), NORMAL)));
    tokens.truncate(size);
    let mut pairs = lists("bert", tokens);
    let ids = [
        ("padding_token_id", 0),
        ("unknown_token_id", 1),
        ("bos_token_id", 2),
        ("cls_token_id", 2),
        // Spelled so in the format.
        ("seperator_token_id", 3),
        ("mask_token_id", 4),
    ];
    pairs.extend(ids.map(|(key, id)| (key, GgufValue::U32(id))));
    pairs.push(("token_type_count", GgufValue::U32(2)));
    prefixed(pairs)
}

fn lists(model: &str, tokens: Vec<(String, i32)>) -> Vec<(&'static str, GgufValue)> {
    let (texts, kinds) = tokens.into_iter().unzip();
    vec![
        ("model", GgufValue::String(model.to_string())),
        ("pre", GgufValue::String("default".to_string())),
        ("tokens", GgufValue::Array(GgufArray::String(texts))),
        ("token_type", GgufValue::Array(GgufArray::I32(kinds))),
    ]
}

fn prefixed(pairs: Vec<(&str, GgufValue)>) -> Vec<(String, GgufValue)> {
    pairs.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect()
}
