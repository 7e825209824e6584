//! The tokenizer of a checkpoint folder: the Hugging Face pipeline described by `tokenizer.json`, run by the
//! `tokenizers` crate, with the roles that `tokenizer_config.json` and `special_tokens_map.json` give to
//! tokens.
//!
//! The crate panics on some damaged files, so every call into it is fenced.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::{
    AddedVocabulary, DecoderWrapper, Encoding, Model, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, Tokenizer as HfTokenizer,
};

use super::spans::EncodedToken;
use super::{EncodeOptions, Protection, Roles, SpecialText, SpecialTokens, Style, TokenKind};
use crate::error::{Error, Result};
use crate::files;

/// The regular expressions of `tokenizer.json` give up silently on longer runs, and the tokens would be
/// wrong.
const BLANK_RUN_MAX: usize = 400_000;

#[derive(Debug)]
pub(super) struct FolderTokenizer {
    hf: HfTokenizer,
    /// The same added tokens, with the special ones not recognised.
    plain_text: AddedVocabulary,
    style: Style,
    roles: Roles,
    vocab_size: usize,
}

impl FolderTokenizer {
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let bytes = files::read_optional(&path, files::TOKENIZER_LIMIT)?
            .ok_or_else(|| Error::NoTokenizer { folder: folder.to_owned() })?;
        let hf = fenced("reading tokenizer.json", || {
            let mut hf = HfTokenizer::from_bytes(&bytes)?;
            // A file may carry the truncation and padding of its last use; a prompt must survive whole.
            hf.with_truncation(None)?.with_padding(None);
            Ok(hf)
        })
        .map_err(|error| match error {
            Fenced::Failed(reason) => Error::TokenizerJson { path: path.clone(), reason },
            Fenced::Panicked(operation) => Error::LibraryPanic { operation },
        })?;
        let mut plain_text = hf.get_added_vocabulary().clone();
        plain_text.set_encode_special_tokens(true);
        let style = hf.get_decoder().map_or(Style::Chain, decoder_style);
        let roles = read_roles(folder, &hf)?;
        let vocab_size = vocab_size(&hf);
        Ok(Self { hf, plain_text, style, roles, vocab_size })
    }

    pub(super) fn encode(
        &self,
        text: &str,
        options: EncodeOptions,
        protection: Option<&Protection>,
    ) -> Result<Vec<EncodedToken>> {
        check_blank_runs(text)?;
        let run = || self.run(text, options, protection);
        let encoding = fenced("encoding a text", run).map_err(|error| match error {
            Fenced::Failed(reason) => Error::Encode { reason },
            Fenced::Panicked(operation) => Error::LibraryPanic { operation },
        })?;
        let ids = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(ids.map(|(&id, &(start, end))| EncodedToken { id, start, end }).collect())
    }

    fn run(
        &self,
        text: &str,
        options: EncodeOptions,
        protection: Option<&Protection>,
    ) -> tokenizers::Result<Encoding> {
        let added = match options.special_tokens {
            SpecialTokens::Parse => self.hf.get_added_vocabulary(),
            SpecialTokens::AsText => &self.plain_text,
        };
        let mut split: PreTokenizedString = added.extract_and_normalize(self.hf.get_normalizer(), text);
        if let Some(protection) = protection {
            split.normalize(|part| {
                part.map(|c| protection.restore_char(c));
                Ok(())
            })?;
        }
        if let Some(pre_tokenizer) = self.hf.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut split)?;
        }
        split.tokenize(|part| self.hf.get_model().tokenize(part.get()))?;
        let encoding = split.into_encoding(None, 0, OffsetType::Byte)?;
        self.hf.post_process(encoding, None, options.add_special_tokens)
    }

    /// The words that the pre-tokenizer cuts a text into, without normalising it first.
    pub(super) fn words<'t>(&self, text: &'t str) -> Result<Vec<&'t str>> {
        let cut = || {
            let mut split = PreTokenizedString::from(text);
            if let Some(pre_tokenizer) = self.hf.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut split)?;
            }
            let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
            Ok(splits.into_iter().map(|(_, range, _)| range).collect::<Vec<_>>())
        };
        let ranges = fenced("cutting a text", cut).map_err(|error| match error {
            Fenced::Failed(reason) => Error::Encode { reason },
            Fenced::Panicked(operation) => Error::LibraryPanic { operation },
        })?;
        Ok(ranges.into_iter().filter_map(|(start, end)| text.get(start..end)).collect())
    }

    pub(super) fn decode_chain(&self, ids: &[u32], special: SpecialText) -> Result<String> {
        let hide = special == SpecialText::Hide;
        fenced("decoding token ids", || self.hf.decode(ids, hide)).map_err(|error| match error {
            Fenced::Failed(reason) => Error::Decode { reason },
            Fenced::Panicked(operation) => Error::LibraryPanic { operation },
        })
    }

    pub(super) fn token(&self, id: u32) -> Option<String> {
        let added = self.hf.get_added_vocabulary().get_added_tokens_decoder().get(&id);
        added.map(|token| token.content.clone()).or_else(|| self.hf.get_model().id_to_token(id))
    }

    pub(super) fn token_id(&self, text: &str) -> Option<u32> {
        self.hf.token_to_id(text)
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        match self.hf.get_added_vocabulary().get_added_tokens_decoder().get(&id) {
            Some(token) if token.special => Some(TokenKind::Control),
            Some(_) => Some(TokenKind::UserDefined),
            None => {
                let text = self.hf.get_model().id_to_token(id)?;
                let is_byte = self.style != Style::ByteLevel && super::pieces::byte_token(&text).is_some();
                Some(if is_byte { TokenKind::Byte } else { TokenKind::Normal })
            }
        }
    }

    pub(super) fn style(&self) -> Style {
        self.style
    }

    pub(super) fn roles(&self) -> &Roles {
        &self.roles
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub(super) fn control_texts(&self) -> Vec<String> {
        let added = self.hf.get_added_vocabulary().get_added_tokens_decoder();
        added.values().filter(|token| token.special).map(|token| token.content.clone()).collect()
    }
}

enum Fenced {
    Failed(String),
    Panicked(&'static str),
}

fn fenced<T>(
    operation: &'static str,
    call: impl FnOnce() -> tokenizers::Result<T>,
) -> std::result::Result<T, Fenced> {
    // Nothing of the tokenizer is written during a call besides its caches, which a panic leaves whole.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| Fenced::Failed(error.to_string())),
        Err(_) => Err(Fenced::Panicked(operation)),
    }
}

fn check_blank_runs(text: &str) -> Result<()> {
    let mut chars = 0;
    for c in text.chars() {
        chars = if c.is_whitespace() { chars + 1 } else { 0 };
        if chars > BLANK_RUN_MAX {
            return Err(Error::BlankRunTooLong { chars, limit: BLANK_RUN_MAX });
        }
    }
    Ok(())
}

/// The two decoders whose output is a concatenation of pieces are run here, so that bytes can be streamed.
fn decoder_style(decoder: &DecoderWrapper) -> Style {
    if matches!(decoder, DecoderWrapper::ByteLevel(_)) {
        return Style::ByteLevel;
    }
    let DecoderWrapper::Sequence(sequence) = decoder else { return Style::Chain };
    let steps: Vec<Value> =
        sequence.get_decoders().iter().filter_map(|step| serde_json::to_value(step).ok()).collect();
    let is = |step: &Value, name: &str| step["type"] == name;
    let blanks =
        |step: &Value| is(step, "Replace") && step["pattern"]["String"] == "▁" && step["content"] == " ";
    let strip =
        |step: &Value| is(step, "Strip") && step["content"] == " " && step["start"] == 1 && step["stop"] == 0;
    match steps.as_slice() {
        [a, b, c] if blanks(a) && is(b, "ByteFallback") && is(c, "Fuse") => Style::Sentence { strip: false },
        [a, b, c, d] if blanks(a) && is(b, "ByteFallback") && is(c, "Fuse") && strip(d) => {
            Style::Sentence { strip: true }
        }
        _ => Style::Chain,
    }
}

fn vocab_size(hf: &HfTokenizer) -> usize {
    let added = hf.get_added_vocabulary().get_added_tokens_decoder().keys().max();
    hf.get_vocab_size(true).max(added.map_or(0, |&id| id as usize + 1))
}

/// `special_tokens_map.json` first, since `tokenizer_config.json` overrides it.
fn read_roles(folder: &Path, hf: &HfTokenizer) -> Result<Roles> {
    let mut roles = Roles::default();
    for name in ["special_tokens_map.json", "tokenizer_config.json"] {
        let path = folder.join(name);
        if let Some(config) = files::read_optional_object(&path)? {
            collect_roles(&config, &path, &mut roles)?;
        }
    }
    let id = |name: &str| roles.texts.get(name).and_then(|text| hf.token_to_id(text));
    let ids = (id("bos_token"), id("eos_token"), id("unk_token"), id("pad_token"));
    (roles.bos, roles.eos, roles.unk, roles.pad) = ids;
    Ok(roles)
}

/// A role's token is given as its text or as an object with the text in `content`.
fn collect_roles(config: &Map<String, Value>, path: &Path, roles: &mut Roles) -> Result<()> {
    for name in ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"] {
        let text = match config.get(name) {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) => text,
            Some(Value::Object(token)) => match token.get("content") {
                Some(Value::String(text)) => text,
                _ => return Err(wrong_role(path, name)),
            },
            Some(_) => return Err(wrong_role(path, name)),
        };
        roles.texts.insert(name.to_owned(), text.clone());
    }
    Ok(())
}

fn wrong_role(path: &Path, field: &'static str) -> Error {
    Error::Field { path: path.to_owned(), field, expected: "a text, or an object whose `content` is one" }
}
