//! The public tokenizer: one type over the two places a vocabulary can come from.
//!
//! It decides nothing about text itself; `folder` runs the Hugging Face pipeline of a `tokenizer.json`,
//! `gguf` runs the vocabulary of a GGUF file.

mod bpe;
mod byte_alphabet;
mod export;
mod folder;
mod gguf;
mod guard;
mod partition;
mod pieces;
mod pre;
mod protect;
mod spans;
mod spm;
mod to_json;
mod wordpiece;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

pub use gguf::GgufVocab;
pub(crate) use guard::Guard;
pub(crate) use pieces::{Style, Utf8Stream, append_piece};
pub(crate) use protect::Protection;
pub use spans::EncodedToken;
pub use to_json::TokenizerFiles;

use crate::error::Result;

/// Whether control tokens written out in a text, such as `<|im_end|>`, are recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Recognised: right for the output of a trusted template, wrong for anything a user wrote.
    Parse,
    /// Ordinary characters.
    #[default]
    AsText,
}

/// Whether control tokens appear in decoded text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialText {
    #[default]
    Hide,
    Show,
}

/// How [`Tokenizer::encode`] treats a text. The default is right for a raw prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    pub special_tokens: SpecialTokens,
    /// Add the tokens the model expects around every text (beginning of sequence, classifier, separator …).
    pub add_special_tokens: bool,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { special_tokens: SpecialTokens::AsText, add_special_tokens: true }
    }
}

/// What a token is for; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    /// Control and unknown tokens are never made from a user's text.
    pub(crate) fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// The ids and texts of the tokens that have a role.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) pad: Option<u32>,
    /// `bos_token`, `eos_token` … as chat templates see them.
    pub(crate) texts: BTreeMap<String, String>,
}

#[derive(Debug)]
enum Source {
    Folder(Box<folder::FolderTokenizer>),
    Gguf(Box<gguf::GgufTokenizer>),
}

/// Text to token ids and back. Cloning is cheap and shares the vocabulary.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    source: Source,
    /// Made when a chat first needs it.
    guard: OnceLock<Guard>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` of a checkpoint folder.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let tokenizer = folder::FolderTokenizer::open(folder)?;
        Ok(Self::new(Source::Folder(Box::new(tokenizer))))
    }

    /// Builds the tokenizer a GGUF file's metadata describes.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self> {
        let tokenizer = gguf::GgufTokenizer::build(vocab)?;
        Ok(Self::new(Source::Gguf(Box::new(tokenizer))))
    }

    fn new(source: Source) -> Self {
        Self { shared: Arc::new(Shared { source, guard: OnceLock::new() }) }
    }

    /// The token ids of a text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        Ok(ids_of(&self.run(text, options, None)?))
    }

    /// The tokens of a text, each with the bytes it was made from.
    pub fn encode_with_offsets(&self, text: &str, options: EncodeOptions) -> Result<Vec<EncodedToken>> {
        let mut tokens = self.run(text, options, None)?;
        if matches!(self.shared.source, Source::Folder(_)) {
            spans::refine(text, &mut tokens, |id| self.token_bytes(id));
        }
        Ok(tokens)
    }

    fn run(
        &self,
        text: &str,
        options: EncodeOptions,
        protection: Option<&Protection>,
    ) -> Result<Vec<EncodedToken>> {
        match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.encode(text, options, protection),
            Source::Gguf(tokenizer) => tokenizer.encode(text, options, protection),
        }
    }

    /// Encodes a rendered template: control tokens are recognised, except where `protection` marked the text.
    pub(crate) fn encode_protected(&self, text: &str, protection: &Protection) -> Result<Vec<u32>> {
        let options = EncodeOptions { special_tokens: SpecialTokens::Parse, add_special_tokens: false };
        Ok(ids_of(&self.run(text, options, Some(protection))?))
    }

    /// The text of a whole sequence. Ids the vocabulary does not have decode to nothing; bytes that are no
    /// UTF-8 decode to U+FFFD.
    pub fn decode(&self, ids: &[u32], special: SpecialText) -> Result<String> {
        let style = self.style();
        if style == Style::Chain {
            return self.decode_chain(ids, special);
        }
        let mut bytes = Vec::new();
        for &id in ids {
            self.append_bytes(id, special, &mut bytes);
        }
        let strip = usize::from(style.strips_leading_space() && bytes.first() == Some(&b' '));
        Ok(String::from_utf8_lossy(&bytes[strip..]).into_owned())
    }

    /// The bytes a token adds to a text, control tokens spelled out; `None` for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.kind(id)?;
        if self.style() == Style::Chain {
            return self.decode_chain(&[id], SpecialText::Show).ok().map(String::into_bytes);
        }
        let mut bytes = Vec::new();
        self.append_bytes(id, SpecialText::Show, &mut bytes);
        Some(bytes)
    }

    /// [`token_bytes`](Self::token_bytes) for showing to a person: what is no UTF-8 becomes U+FFFD.
    pub fn token_text(&self, id: u32) -> Option<String> {
        Some(String::from_utf8_lossy(&self.token_bytes(id)?).into_owned())
    }

    /// The id of a token by its exact spelling in the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.token_id(text),
            Source::Gguf(tokenizer) => tokenizer.token_id(text),
        }
    }

    pub fn bos_id(&self) -> Option<u32> {
        self.roles().bos
    }

    pub fn eos_id(&self) -> Option<u32> {
        self.roles().eos
    }

    pub fn unk_id(&self) -> Option<u32> {
        self.roles().unk
    }

    pub fn pad_id(&self) -> Option<u32> {
        self.roles().pad
    }

    /// Every token after which generation should end: the end of sequence, and for a GGUF vocabulary (whose
    /// metadata often names only one) the control tokens known to end a turn. Sorted, without repetition.
    pub fn end_ids(&self) -> Vec<u32> {
        match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.roles().eos.into_iter().collect(),
            Source::Gguf(tokenizer) => tokenizer.end_ids(),
        }
    }

    /// Whether the token is a control token, hidden from text by default.
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id).is_some_and(TokenKind::is_control)
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.vocab_size(),
            Source::Gguf(tokenizer) => tokenizer.vocab_size(),
        }
    }

    /// The texts of tokens with a role (`bos_token`, `eos_token` …), as chat templates use them.
    pub fn template_tokens(&self) -> &BTreeMap<String, String> {
        &self.roles().texts
    }

    /// Knows the spelling of every control token.
    pub(crate) fn guard(&self) -> Result<&Guard> {
        if let Some(guard) = self.shared.guard.get() {
            return Ok(guard);
        }
        let control_texts = match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.control_texts(),
            Source::Gguf(tokenizer) => tokenizer.control_texts(),
        };
        let guard = Guard::new(control_texts)?;
        Ok(self.shared.guard.get_or_init(|| guard))
    }

    /// How token texts become bytes.
    pub(crate) fn style(&self) -> Style {
        match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.style(),
            Source::Gguf(tokenizer) => tokenizer.style(),
        }
    }

    /// Appends the token's bytes; nothing for a hidden or unknown token. Not for [`Style::Chain`].
    pub(crate) fn append_bytes(&self, id: u32, special: SpecialText, out: &mut Vec<u8>) {
        let Some(kind) = self.kind(id) else { return };
        if kind.is_control() && special == SpecialText::Hide {
            return;
        }
        match &self.shared.source {
            Source::Folder(tokenizer) => {
                if let Some(text) = tokenizer.token(id) {
                    append_piece(self.style(), &text, kind, out);
                }
            }
            Source::Gguf(tokenizer) => {
                if let Some(text) = tokenizer.token(id) {
                    append_piece(self.style(), text, kind, out);
                }
            }
        }
    }

    /// Decodes through the decoder of `tokenizer.json`, for styles that are no concatenation of pieces.
    pub(crate) fn decode_chain(&self, ids: &[u32], special: SpecialText) -> Result<String> {
        match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.decode_chain(ids, special),
            Source::Gguf(_) => unreachable!("a GGUF vocabulary always decodes by pieces"),
        }
    }

    fn kind(&self, id: u32) -> Option<TokenKind> {
        match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.kind(id),
            Source::Gguf(tokenizer) => tokenizer.kind(id),
        }
    }

    fn roles(&self) -> &Roles {
        match &self.shared.source {
            Source::Folder(tokenizer) => tokenizer.roles(),
            Source::Gguf(tokenizer) => tokenizer.roles(),
        }
    }
}

fn ids_of(tokens: &[EncodedToken]) -> Vec<u32> {
    tokens.iter().map(|token| token.id).collect()
}
