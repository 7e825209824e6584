//! The vocabulary and chat templates of a model's folder as GGUF metadata: the inverse of what `crate::vocabulary`
//! reads.

use std::path::Path;

use anyhow::Result;
use mlxcel_text::{ChatTemplates, Error, GgufVocab, TemplateChoice};
use mlxcel_weights::{Checkpoint, GgufArray, GgufValue};

use super::placeholder;

/// Metadata in the order of the file.
type Pairs = Vec<(String, GgufValue)>;

const TEMPLATE: &str = "tokenizer.chat_template";

/// The keys of a vocabulary for a model with `rows` embeddings, and what is to be told of it.
pub fn keys(text: Option<&Checkpoint>, architecture: &str, rows: usize) -> Result<(Pairs, Option<String>)> {
    let from = text.map(|checkpoint| match checkpoint.metadata() {
        Some(metadata) => {
            let own = metadata.iter().filter(|(key, _)| key.starts_with("tokenizer."));
            Ok(Some(own.map(|(key, value)| (key.to_string(), value.clone())).collect()))
        }
        None => from_folder(checkpoint.folder(), rows),
    });
    if let Some(pairs) = from.transpose()?.flatten() {
        return Ok((pairs, None));
    }
    let note = "there is no tokenizer, so the file has placeholder tokens: prompt it with token ids";
    Ok((placeholder::vocabulary(architecture, rows), Some(note.to_string())))
}

/// `None` for a folder without a tokenizer.
fn from_folder(folder: &Path, rows: usize) -> Result<Option<Pairs>> {
    let vocab = match GgufVocab::from_folder(folder, rows) {
        Ok(vocab) => vocab,
        Err(Error::NoTokenizer { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut pairs = pairs(vocab);
    let templates = ChatTemplates::from_folder(folder)?;
    for name in templates.names() {
        let source = templates.source(TemplateChoice::Named(name))?;
        let key = if name == "default" { TEMPLATE.to_string() } else { format!("{TEMPLATE}.{name}") };
        pairs.push((key, GgufValue::String(source.to_string())));
    }
    Ok(Some(pairs))
}

fn pairs(vocab: GgufVocab) -> Pairs {
    let is_bert = vocab.model == "bert";
    let mut out = Vec::new();
    let mut put = |name: &str, value: GgufValue| out.push((format!("tokenizer.ggml.{name}"), value));
    put("model", GgufValue::String(vocab.model));
    put("pre", GgufValue::String(vocab.pre));
    put("tokens", GgufValue::Array(GgufArray::String(vocab.tokens)));
    put("token_type", GgufValue::Array(GgufArray::I32(vocab.token_types)));
    if !vocab.scores.is_empty() {
        put("scores", GgufValue::Array(GgufArray::F32(vocab.scores)));
    }
    if !vocab.merges.is_empty() {
        put("merges", GgufValue::Array(GgufArray::String(vocab.merges)));
    }
    let ids = [
        ("bos_token_id", vocab.bos_id),
        ("eos_token_id", vocab.eos_id),
        ("eot_token_id", vocab.eot_id),
        ("unknown_token_id", vocab.unk_id),
        ("padding_token_id", vocab.pad_id),
        // Spelled so in the format.
        ("seperator_token_id", vocab.sep_id),
        ("cls_token_id", vocab.cls_id),
    ];
    for (name, id) in ids {
        if let Some(id) = id {
            put(name, GgufValue::U32(id));
        }
    }
    let flags = [
        ("add_bos_token", vocab.add_bos),
        ("add_eos_token", vocab.add_eos),
        ("add_space_prefix", vocab.add_space_prefix),
        ("normalizer.lowercase", vocab.lowercase),
    ];
    for (name, flag) in flags {
        if let Some(flag) = flag {
            put(name, GgufValue::Bool(flag));
        }
    }
    if is_bert {
        put("token_type_count", GgufValue::U32(2));
    }
    out
}
