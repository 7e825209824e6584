//! The text side of a checkpoint, where it has one: its tokenizer and chat templates, from the files beside
//! safetensors or from GGUF metadata. Encoding and decoding are `mlxcel-text`'s business.

#[cfg(test)]
mod corpus;

use std::path::Path;

use mlxcel_text::{ChatTemplates, Error, GgufVocab, Tokenizer};
use mlxcel_weights::{Checkpoint, GgufArray, GgufMetadata, GgufValue};

pub struct Vocabulary {
    pub tokenizer: Tokenizer,
    pub templates: ChatTemplates,
}

/// `None` for a checkpoint without a tokenizer.
pub fn open(checkpoint: &Checkpoint) -> mlxcel_text::Result<Option<Vocabulary>> {
    match checkpoint.metadata() {
        Some(metadata) => from_gguf(metadata),
        None => match Tokenizer::from_folder(checkpoint.folder()) {
            Ok(tokenizer) => {
                let templates = ChatTemplates::from_folder(checkpoint.folder())?;
                Ok(Some(Vocabulary { tokenizer, templates }))
            }
            Err(Error::NoTokenizer { .. }) => Ok(None),
            Err(error) => Err(error),
        },
    }
}

/// The tokenizer of a folder or a .gguf file, whether there are weights or not; `None` where there is none.
pub fn open_tokenizer(path: &Path) -> anyhow::Result<Option<Tokenizer>> {
    if path.is_dir() {
        match Tokenizer::from_folder(path) {
            Ok(tokenizer) => return Ok(Some(tokenizer)),
            Err(Error::NoTokenizer { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(open(&Checkpoint::open(path)?)?.map(|vocabulary| vocabulary.tokenizer))
}

/// The vocabulary that a GGUF file describes; `None` for a file without one.
pub fn gguf_vocab(metadata: &GgufMetadata) -> Option<GgufVocab> {
    let text = |key: &str| metadata.find::<&str>(key).ok().flatten().map(str::to_string);
    // Files without a vocabulary say so, or leave it out.
    let model = text("tokenizer.ggml.model").filter(|model| model != "none" && model != "no_vocab")?;
    let pre = text("tokenizer.ggml.pre").unwrap_or_default();
    let model_name = text("general.name").unwrap_or_default();
    Some(GgufVocab { model, pre, model_name, ..lists_and_ids(metadata) })
}

fn from_gguf(metadata: &GgufMetadata) -> mlxcel_text::Result<Option<Vocabulary>> {
    let text = |key: &str| metadata.find::<&str>(key).ok().flatten().map(str::to_string);
    let Some(vocab) = gguf_vocab(metadata) else { return Ok(None) };
    let tokenizer = Tokenizer::from_gguf(vocab)?;
    const TEMPLATE: &str = "tokenizer.chat_template";
    let named = metadata.iter().filter_map(|(key, value)| match value {
        GgufValue::String(source) => {
            Some((key.strip_prefix(TEMPLATE)?.strip_prefix('.')?.to_string(), source.clone()))
        }
        _ => None,
    });
    let templates = ChatTemplates::from_gguf(text(TEMPLATE), named);
    Ok(Some(Vocabulary { tokenizer, templates }))
}

/// A list or number of an unexpected type counts as absent, and the tokenizer says what it misses.
fn lists_and_ids(metadata: &GgufMetadata) -> GgufVocab {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let strings = |name: &str| metadata.strings(&key(name)).map(<[String]>::to_vec).unwrap_or_default();
    let id = |name: &str| metadata.find::<u32>(&key(name)).ok().flatten();
    let flag = |name: &str| metadata.find::<bool>(&key(name)).ok().flatten();
    let token_types = metadata.get(&key("token_type")).and_then(GgufValue::as_array);
    let token_types = token_types.and_then(GgufArray::to_i64s).unwrap_or_default();
    GgufVocab {
        tokens: strings("tokens"),
        scores: metadata.f32s(&key("scores")).unwrap_or_default(),
        token_types: token_types.into_iter().map(|t| i32::try_from(t).unwrap_or(i32::MAX)).collect(),
        merges: strings("merges"),
        bos_id: id("bos_token_id"),
        eos_id: id("eos_token_id"),
        eot_id: id("eot_token_id"),
        unk_id: id("unknown_token_id"),
        pad_id: id("padding_token_id"),
        // Spelled so in the format.
        sep_id: id("seperator_token_id"),
        cls_id: id("cls_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        lowercase: flag("normalizer.lowercase"),
        ..GgufVocab::default()
    }
}
