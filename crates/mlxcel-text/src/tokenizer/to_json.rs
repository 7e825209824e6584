//! The vocabulary of a GGUF file as a `tokenizer.json`: the pipeline that the Hugging Face library needs to give the
//! same ids. What was made is run against the original on the probes of `export`, and refused where it differs.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tokenizers::Tokenizer as HfTokenizer;

use super::export::PROBES;
use super::gguf::GgufTokenizer;
use super::pre::{self, Words};
use super::{EncodeOptions, GgufVocab};
use crate::error::{Error, Result};

const CONTROL: i32 = 3;
const UNKNOWN: i32 = 2;
const USER_DEFINED: i32 = 4;

/// The two files that describe a tokenizer.
#[derive(Clone, Debug)]
pub struct TokenizerFiles {
    /// `tokenizer.json`
    pub tokenizer: Value,
    /// `tokenizer_config.json`, without chat templates.
    pub config: Value,
}

impl GgufVocab {
    /// The files of a folder with this vocabulary.
    pub fn to_files(&self) -> Result<TokenizerFiles> {
        let tokenizer = match self.model.as_str() {
            "gpt2" => self.byte_level()?,
            "llama" => self.sentence_pieces(),
            model => return refuse(format!("its kind, {model}, has no such form that is known here")),
        };
        self.check(&tokenizer)?;
        Ok(TokenizerFiles { tokenizer, config: self.config() })
    }

    fn text(&self, id: Option<u32>) -> Option<&String> {
        self.tokens.get(id? as usize)
    }

    fn config(&self) -> Value {
        let mut config = Map::new();
        config.insert("tokenizer_class".to_string(), json!("PreTrainedTokenizerFast"));
        let roles = [
            ("bos_token", self.bos_id),
            ("eos_token", self.eos_id),
            ("unk_token", self.unk_id),
            ("pad_token", self.pad_id),
        ];
        for (role, id) in roles {
            if let Some(text) = self.text(id) {
                config.insert(role.to_string(), json!(text));
            }
        }
        Value::Object(config)
    }

    fn added(&self) -> Vec<Value> {
        let kinds = (0u32..).zip(self.tokens.iter().zip(&self.token_types));
        let whole = kinds.filter(|(_, (_, kind))| [CONTROL, UNKNOWN, USER_DEFINED].contains(kind));
        let entry = |(id, (text, kind)): (u32, (&String, &i32))| {
            json!({ "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": *kind != USER_DEFINED })
        };
        whole.map(entry).collect()
    }

    fn vocabulary(&self) -> Map<String, Value> {
        (0u32..).zip(&self.tokens).map(|(id, text)| (text.clone(), id.into())).collect()
    }

    /// What is put around every text.
    fn post_processor(&self, add_bos: bool) -> Value {
        let before = self.bos_id.filter(|_| self.add_bos.unwrap_or(add_bos));
        let after = self.eos_id.filter(|_| self.add_eos == Some(true));
        if before.is_none() && after.is_none() {
            return Value::Null;
        }
        let special = |id: Option<u32>, sequence: u8| {
            self.text(id).map(|text| json!({ "SpecialToken": { "id": text, "type_id": sequence } }))
        };
        let text = |name: &str, sequence: u8| json!({ "Sequence": { "id": name, "type_id": sequence } });
        let list = |name: &str, sequence: u8| {
            let parts = [special(before, sequence), Some(text(name, sequence)), special(after, sequence)];
            parts.into_iter().flatten().collect::<Vec<Value>>()
        };
        let tokens: Map<String, Value> = [before, after]
            .into_iter()
            .filter_map(|id| Some((self.text(id)?.clone(), id?)))
            .map(|(text, id)| (text.clone(), json!({ "id": text, "ids": [id], "tokens": [text] })))
            .collect();
        let pair = [list("A", 0), list("B", 1)].concat();
        json!({ "type": "TemplateProcessing", "single": list("A", 0), "pair": pair, "special_tokens": tokens })
    }

    fn file(&self, parts: [(&str, Value); 4], add_bos: bool) -> Value {
        let mut file = Map::new();
        file.insert("version".to_string(), json!("1.0"));
        file.insert("truncation".to_string(), Value::Null);
        file.insert("padding".to_string(), Value::Null);
        file.insert("added_tokens".to_string(), self.added().into());
        file.insert("post_processor".to_string(), self.post_processor(add_bos));
        file.extend(parts.map(|(name, part)| (name.to_string(), part)));
        Value::Object(file)
    }

    fn byte_level(&self) -> Result<Value> {
        let rule = pre::rule(&self.pre)?;
        let split = |pattern: &&str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        let mut steps: Vec<Value> = rule.patterns().iter().map(split).collect();
        let level = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
        steps.push(level(false));
        let merges: Vec<Value> = self.merges.iter().map(|merge| json!(merge)).collect();
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": rule.words == Words::Whole, "vocab": self.vocabulary(), "merges": merges,
        });
        let parts = [
            ("normalizer", Value::Null),
            ("pre_tokenizer", json!({ "type": "Sequence", "pretokenizers": steps })),
            ("decoder", level(true)),
            ("model", model),
        ];
        Ok(self.file(parts, rule.add_bos))
    }

    /// SentencePiece joins the pair that makes the piece of the highest score; a list of merges in that order does so
    /// too.
    fn sentence_pieces(&self) -> Value {
        let ids: HashMap<&str, usize> =
            (0..).zip(&self.tokens).map(|(id, text)| (text.as_str(), id)).collect();
        let score = |id: usize| self.scores.get(id).copied().unwrap_or(0.0);
        let mut merges = Vec::new();
        for (id, text) in self.tokens.iter().enumerate() {
            if self.token_types.get(id).is_some_and(|kind| *kind != 1) {
                continue;
            }
            for (at, _) in text.char_indices().skip(1) {
                let (a, b) = text.split_at(at);
                if let (Some(&first), Some(&second)) = (ids.get(a), ids.get(b)) {
                    merges.push((score(id), first, second, format!("{a} {b}")));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let merges: Vec<String> = merges.into_iter().map(|merge| merge.3).collect();
        let prefix = self.add_space_prefix.unwrap_or(true);
        let blanks = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
        let normalizers = match prefix {
            true => vec![json!({ "type": "Prepend", "prepend": "\u{2581}" }), blanks],
            false => vec![blanks],
        };
        let mut decoders = vec![
            json!({ "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        if prefix {
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": self.text(self.unk_id), "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": self.vocabulary(), "merges": merges,
        });
        let parts = [
            ("normalizer", json!({ "type": "Sequence", "normalizers": normalizers })),
            ("pre_tokenizer", Value::Null),
            ("decoder", json!({ "type": "Sequence", "decoders": decoders })),
            ("model", model),
        ];
        self.file(parts, true)
    }

    fn check(&self, tokenizer: &Value) -> Result<()> {
        let failed = |error: tokenizers::Error| Error::Build { reason: error.to_string() };
        let copy = HfTokenizer::from_bytes(tokenizer.to_string().as_bytes()).map_err(failed)?;
        let original = GgufTokenizer::build(self.clone())?;
        for probe in PROBES {
            let theirs = original.encode(probe, EncodeOptions::default(), None)?;
            let theirs: Vec<u32> = theirs.into_iter().map(|token| token.id).collect();
            let ours = copy.encode(probe, true).map_err(failed)?;
            if ours.get_ids() != theirs {
                return refuse(format!("the text {probe:?} would have other tokens"));
            }
        }
        Ok(())
    }
}

fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::NoTokenizerJson { reason })
}
