//! WordPiece over a GGUF vocabulary, run by the `tokenizers` crate's BERT normaliser, word splitter and
//! model.
//!
//! GGUF files write a word's first piece with a leading `▁` and its other pieces bare, where BERT's own
//! vocabulary writes the first bare and the others with `##`.

use ahash::AHashMap;
use tokenizers::models::wordpiece::WordPiece as Model;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{Model as _, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer};

use super::TokenKind;
use super::spans::Spans;
use crate::error::{Error, Result};

/// BERT gives up on longer words.
const WORD_CHARS_MAX: usize = 100;

#[derive(Debug)]
pub(super) struct WordPiece {
    model: Model,
    normalizer: BertNormalizer,
}

impl WordPiece {
    pub(super) fn new(tokens: &[String], kinds: &[TokenKind], unk: u32, lowercase: bool) -> Result<Self> {
        let mut vocab = AHashMap::with_capacity(tokens.len());
        for (id, (text, kind)) in (0..).zip(tokens.iter().zip(kinds)) {
            if id == unk {
                vocab.insert(text.clone(), id);
            } else if !kind.is_control() {
                vocab.insert(bert_spelling(text), id);
            }
        }
        let model = Model::builder()
            .vocab(vocab)
            .unk_token(tokens[unk as usize].clone())
            .continuing_subword_prefix("##".to_owned())
            .max_input_chars_per_word(WORD_CHARS_MAX)
            .build()
            .map_err(|error| Error::Build { reason: error.to_string() })?;
        // Accents go when case goes, as in BERT.
        Ok(Self { model, normalizer: BertNormalizer::new(true, true, None, lowercase) })
    }

    pub(super) fn encode(&self, text: &str, out: &mut Spans) -> Result<()> {
        let failed = |error: tokenizers::Error| Error::Encode { reason: error.to_string() };
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized).map_err(failed)?;
        let mut words = PreTokenizedString::from(normalized);
        BertPreTokenizer.pre_tokenize(&mut words).map_err(failed)?;
        words.tokenize(|word| self.model.tokenize(word.get())).map_err(failed)?;
        let encoding = words.into_encoding(None, 0, OffsetType::Byte).map_err(failed)?;
        for (&id, &(start, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            out.push(id, start..end);
        }
        Ok(())
    }
}

fn bert_spelling(text: &str) -> String {
    match text.strip_prefix('▁') {
        Some(first) => first.to_owned(),
        None => format!("##{text}"),
    }
}
