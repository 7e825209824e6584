//! A `tokenizer.json` as the vocabulary of a GGUF file. GGUF has three kinds of vocabulary and names pre-tokenizers
//! instead of describing them, so not every tokenizer has such a form: the result is built and compared with the
//! original on texts that tell the known ones apart, and what differs is refused.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::folder::FolderTokenizer;
use super::gguf::GgufTokenizer;
use super::pieces::byte_token;
use super::pre::{self, Words};
use super::spans::EncodedToken;
use super::{EncodeOptions, GgufVocab, SpecialTokens};
use crate::error::{Error, Result};
use crate::files;

/// Texts on which the pre-tokenizers that GGUF knows differ from each other.
pub(super) const PROBES: [&str; 6] = [
    "Hello, world's  I'LL don't WE'VE 12345 3.14e-10 1,000,000",
    "\n\n\t if (x >= 1) {\r\n    return \"a\";\r\n}   // end  \n ",
    "字字かなカナ 한국어 ไทย हिन्दी العربية Ünïcödé e\u{301}a\u{308} Ⅷ² ½",
    "😀👍🏽 ★·…—“quoted” ‘it’s’ $5.00 €3 <tag/> a_b-c#d@e",
    "ABCdef GHIjkl camelCase HTTPServer x\u{2028}y  z   ",
    "  leading and trailing   ",
];

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The score of a piece that nothing is merged to.
const NEVER_MERGED: f32 = -1e9;

impl GgufVocab {
    /// The vocabulary of a checkpoint folder, for a model with `rows` embeddings: ids without a token get one that no
    /// text contains, tokens beyond the embeddings are left out.
    pub fn from_folder(folder: &Path, rows: usize) -> Result<GgufVocab> {
        let path = folder.join("tokenizer.json");
        let original = FolderTokenizer::open(folder)?;
        let bytes = files::read_optional(&path, files::TOKENIZER_LIMIT)?.unwrap_or_default();
        let json: Value =
            serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.clone(), source })?;
        let file = File { path, json: &json, original: &original, rows };
        let vocab = file.vocabulary()?;
        file.check(&vocab)?;
        Ok(vocab)
    }
}

struct File<'a> {
    path: PathBuf,
    json: &'a Value,
    original: &'a FolderTokenizer,
    rows: usize,
}

impl File<'_> {
    fn refuse<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(Error::NoGgufForm { path: self.path.clone(), reason: reason.into() })
    }

    fn vocabulary(&self) -> Result<GgufVocab> {
        let model = &self.json["model"];
        let kind = model["type"].as_str().unwrap_or("BPE");
        match kind {
            "BPE" if model["byte_fallback"] == true => self.sentence_pieces(),
            "BPE" => self.byte_level(),
            "WordPiece" => self.word_pieces(),
            other => self.refuse(format!("GGUF has no form that is known here for {other} models")),
        }
    }

    /// Tokens by id; holes and ids beyond the tokens are filled.
    fn tokens(&self) -> Result<Vec<String>> {
        let mut by_id = BTreeMap::new();
        if let Some(vocab) = self.json["model"]["vocab"].as_object() {
            by_id.extend(vocab.iter().filter_map(|(text, id)| Some((id.as_u64()?, text.clone()))));
        }
        for token in self.json["added_tokens"].as_array().into_iter().flatten() {
            if let (Some(id), Some(text)) = (token["id"].as_u64(), token["content"].as_str()) {
                by_id.insert(id, text.to_string());
            }
        }
        if by_id.is_empty() {
            return Err(Error::EmptyVocabulary);
        }
        let text = |id: u64| by_id.remove(&id).unwrap_or_else(|| format!("[PAD{id}]"));
        Ok((0..self.rows as u64).map(text).collect())
    }

    fn kinds(&self, tokens: &[String], unknown: Option<u32>) -> Vec<i32> {
        let is_sentence = self.json["model"]["byte_fallback"] == true;
        let mut known: Vec<i32> = tokens
            .iter()
            .map(|text| if is_sentence && byte_token(text).is_some() { BYTE } else { NORMAL })
            .collect();
        let vocab = self.json["model"]["vocab"].as_object();
        let added: HashMap<u64, bool> = (self.json["added_tokens"].as_array().into_iter().flatten())
            .filter_map(|token| Some((token["id"].as_u64()?, token["special"] == true)))
            .collect();
        for (id, (kind, text)) in known.iter_mut().zip(tokens).enumerate() {
            *kind = match added.get(&(id as u64)) {
                Some(true) if is_sentence && unknown == Some(id as u32) => UNKNOWN,
                Some(true) => CONTROL,
                Some(false) => USER_DEFINED,
                None if vocab.is_none_or(|v| !v.contains_key(text)) => UNUSED,
                None if is_sentence && unknown == Some(id as u32) => UNKNOWN,
                None => *kind,
            };
        }
        known
    }

    /// The lists and ids that all kinds have.
    fn common(&self, model: &str) -> Result<GgufVocab> {
        let roles = self.original.roles();
        let role = |name: &str| {
            let id = roles.texts.get(name).and_then(|text| self.original.token_id(text));
            id.filter(|&id| (id as usize) < self.rows)
        };
        let tokens = self.tokens()?;
        let unk_id = role("unk_token").or_else(|| {
            self.json["model"]["unk_token"].as_str().and_then(|text| self.original.token_id(text))
        });
        let token_types = self.kinds(&tokens, unk_id);
        let (bos_id, eos_id) = (role("bos_token"), role("eos_token"));
        let (add_bos, add_eos) = self.affixes(bos_id, eos_id)?;
        Ok(GgufVocab {
            model: model.to_string(),
            tokens,
            token_types,
            bos_id,
            eos_id,
            unk_id,
            pad_id: role("pad_token"),
            sep_id: role("sep_token"),
            cls_id: role("cls_token"),
            add_bos: Some(add_bos),
            add_eos: Some(add_eos),
            ..GgufVocab::default()
        })
    }

    /// Whether texts begin and end with a token of their own, found by encoding one.
    fn affixes(&self, bos: Option<u32>, eos: Option<u32>) -> Result<(bool, bool)> {
        let encode = |add_special_tokens| {
            let options = EncodeOptions { special_tokens: SpecialTokens::AsText, add_special_tokens };
            Ok(self.original.encode("a", options, None)?.iter().map(|token| token.id).collect::<Vec<u32>>())
        };
        let (with, without) = (encode(true)?, encode(false)?);
        let longer = with.len() > without.len();
        Ok((
            longer && bos.is_some() && with.first() == bos.as_ref(),
            longer && eos.is_some() && with.last() == eos.as_ref(),
        ))
    }

    fn merges(&self) -> Result<Vec<(String, String)>> {
        let mut pairs = Vec::new();
        for merge in self.json["model"]["merges"].as_array().into_iter().flatten() {
            let pair = match merge {
                Value::String(text) => text.split_once(' '),
                Value::Array(pair) => match &pair[..] {
                    [Value::String(a), Value::String(b)] => Some((a.as_str(), b.as_str())),
                    _ => None,
                },
                _ => None,
            };
            let Some((a, b)) = pair else { return self.refuse("a merge is not a pair of texts") };
            pairs.push((a.to_string(), b.to_string()));
        }
        Ok(pairs)
    }

    fn byte_level(&self) -> Result<GgufVocab> {
        let mut vocab = self.common("gpt2")?;
        vocab.merges = self.merges()?.iter().map(|(a, b)| format!("{a} {b}")).collect();
        let words = if self.json["model"]["ignore_merges"] == true { Words::Whole } else { Words::Merged };
        let mut cut = Vec::new();
        for probe in PROBES {
            cut.push(self.original.words(probe)?);
        }
        let same = |name: &&'static str| {
            let rule = pre::rule(name)?;
            let splitter = pre::PreTokenizer::new(rule)?;
            let all = PROBES.iter().zip(&cut).map(|(probe, cut)| Ok(splitter.split(probe)? == *cut));
            Ok(all.collect::<Result<Vec<bool>>>()?.into_iter().all(|same| same))
        };
        for name in pre::byte_level_names(words) {
            if same(&name)? {
                vocab.pre = name.to_string();
                return Ok(vocab);
            }
        }
        self.refuse("no pre-tokenizer that GGUF files can name cuts texts as this one does")
    }

    fn sentence_pieces(&self) -> Result<GgufVocab> {
        let mut vocab = self.common("llama")?;
        vocab.pre = "default".to_string();
        let mut ranks = HashMap::new();
        for (rank, (a, b)) in self.merges()?.into_iter().enumerate() {
            ranks.entry(a + &b).or_insert(rank);
        }
        let score = |text: &String| ranks.get(text).map_or(NEVER_MERGED, |&rank| -(rank as f32));
        vocab.scores = vocab.tokens.iter().map(score).collect();
        let prepends = self.json["normalizer"].to_string().contains("\"Prepend\"");
        let metaspace = &self.json["pre_tokenizer"];
        let scheme = metaspace["prepend_scheme"].as_str();
        let prefixes = metaspace["type"] == "Metaspace" && matches!(scheme, Some("first" | "always"));
        vocab.add_space_prefix = Some(prepends || prefixes);
        Ok(vocab)
    }

    /// llama.cpp marks the beginning of a word instead of its continuation.
    fn word_pieces(&self) -> Result<GgufVocab> {
        let mut vocab = self.common("bert")?;
        for (text, kind) in vocab.tokens.iter_mut().zip(&vocab.token_types) {
            *text = match text.strip_prefix("##") {
                _ if *kind != NORMAL => continue,
                _ if text.starts_with('[') && text.ends_with(']') => continue,
                Some(inner) => inner.to_string(),
                None => format!("\u{2581}{text}"),
            };
        }
        vocab.pre = "default".to_string();
        vocab.lowercase = self.json["normalizer"]["lowercase"].as_bool();
        (vocab.bos_id, vocab.eos_id) = (vocab.cls_id, vocab.sep_id);
        (vocab.add_bos, vocab.add_eos) = (None, None);
        Ok(vocab)
    }

    /// Both give the same ids for every probe.
    fn check(&self, vocab: &GgufVocab) -> Result<()> {
        let copy = GgufTokenizer::build(vocab.clone())?;
        for probe in PROBES {
            let options = EncodeOptions::default();
            let ids = |tokens: Vec<EncodedToken>| tokens.into_iter().map(|t| t.id).collect::<Vec<u32>>();
            let theirs = ids(self.original.encode(probe, options, None)?);
            let ours = ids(copy.encode(probe, options, None)?);
            if theirs != ours {
                let differs = theirs.iter().zip(&ours).take_while(|(a, b)| a == b).count();
                return self.refuse(format!(
                    "the text {probe:?} would have other tokens from number {differs} on in llama.cpp's {} vocabulary",
                    vocab.model
                ));
            }
        }
        Ok(())
    }
}
