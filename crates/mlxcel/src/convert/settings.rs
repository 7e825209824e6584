//! The files beside the weights of a folder: the configuration, changed where the types changed, and copies of the
//! tokenizer's files and others that do not depend on types.

use std::fs;
use std::io;
use std::path::Path;

use mlxcel_ir::DType;
use serde_json::{Value, json};

use super::kind::FolderType;

/// Files that belong to a model and not to its weights.
const COPIED: [&str; 18] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "LICENSE",
    "NOTICE",
    "README.md",
];
const TEMPLATES: &str = "additional_chat_templates";

/// The configuration of the new weights.
pub fn config(old: &Value, wanted: FolderType) -> Value {
    let mut config = old.clone();
    let Some(fields) = config.as_object_mut() else { return config };
    if matches!(wanted, FolderType::Keep) {
        return config;
    }
    fields.shift_remove("quantization");
    fields.shift_remove("quantization_config");
    match wanted {
        FolderType::Keep => {}
        FolderType::Plain(dtype) => {
            let name = match dtype {
                DType::F16 => "float16",
                DType::BF16 => "bfloat16",
                _ => "float32",
            };
            let given: Vec<&str> =
                ["dtype", "torch_dtype"].into_iter().filter(|f| fields.contains_key(*f)).collect();
            for field in if given.is_empty() { vec!["torch_dtype"] } else { given } {
                fields.insert(field.to_string(), json!(name));
            }
        }
        FolderType::Affine { bits, group } => {
            // Both, since readers of either exist.
            for field in ["quantization", "quantization_config"] {
                let settings = json!({ "group_size": group, "bits": bits, "mode": "affine" });
                fields.insert(field.to_string(), settings);
            }
        }
    }
    config
}

/// Copies what the source has of the files that belong to a model.
pub fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for name in COPIED {
        copy(&from.join(name), &to.join(name))?;
    }
    let Ok(entries) = fs::read_dir(from.join(TEMPLATES)) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|e| e == "jinja")) {
            copy(&path, &to.join(TEMPLATES).join(name))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_file() {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    // Not the permissions of a file in a cache, which may be read-only.
    fs::write(to, fs::read(from)?)
}
