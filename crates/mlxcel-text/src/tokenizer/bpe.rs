//! Byte-pair encoding over a GGUF vocabulary: words are cut by the rule of `tokenizer.ggml.pre`, spelled in
//! the vocabulary's alphabet and merged by the `tokenizers` crate.
//!
//! Some published vocabularies lack tokens for a few control bytes (SmolLM2's has none for 0x14); like the
//! models' own tokenizers, this leaves such bytes out.

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::{Model, Token};

use super::pieces::byte_token;
use super::pre::{PreTokenizer, Rule, Spelling, Words};
use super::spans::{Marked, Spans, WordCursor};
use super::{TokenKind, byte_alphabet};
use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct Bpe {
    model: BPE,
    pre: PreTokenizer,
    spelling: Spelling,
}

impl Bpe {
    /// Control tokens are kept out of the model, so that no text can become one.
    pub(super) fn new(
        rule: &Rule,
        tokens: &[String],
        kinds: &[TokenKind],
        merges: &[String],
    ) -> Result<Self> {
        let vocab = vocabulary(tokens, kinds)?;
        check_merges(tokens, kinds, merges)?;
        let merges = merges
            .iter()
            .enumerate()
            .map(|(i, merge)| parse_merge(i, merge, &vocab))
            .collect::<Result<_>>()?;
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(rule.words == Words::Whole)
            .byte_fallback(rule.spelling == Spelling::Sentence)
            .build()
            .map_err(|error| Error::Build { reason: error.to_string() })?;
        Ok(Self { model, pre: PreTokenizer::new(rule)?, spelling: rule.spelling })
    }

    pub(super) fn encode(&self, text: &str, out: &mut Spans) -> Result<()> {
        match self.spelling {
            Spelling::ByteLevel => self.encode_byte_level(text, out),
            Spelling::Sentence => self.encode_sentence(&Marked::new(text), out),
        }
    }

    fn encode_byte_level(&self, text: &str, out: &mut Spans) -> Result<()> {
        let mut spelled = String::new();
        let mut start = 0;
        for word in self.pre.split(text)? {
            spelled.clear();
            byte_alphabet::spell(word.as_bytes(), &mut spelled);
            let mut cursor = WordCursor::new(word);
            for token in self.tokenize(&spelled)? {
                let bytes: Vec<u8> = token.value.chars().filter_map(byte_alphabet::byte_of).collect();
                let range = cursor.take(&bytes);
                out.push(token.id, start + range.start..start + range.end);
            }
            start += word.len();
        }
        Ok(())
    }

    fn encode_sentence(&self, text: &Marked, out: &mut Spans) -> Result<()> {
        let mut start = 0;
        for word in self.pre.split(&text.text)? {
            let end = start + word.len();
            // A run of line ends is one token where the vocabulary has it; its merges do not lead there.
            let whole =
                word.bytes().all(|byte| byte == b'\n').then(|| self.model.token_to_id(word)).flatten();
            match whole {
                Some(id) => out.push(id, text.origin(start..end)),
                None => {
                    let mut cursor = WordCursor::new(word);
                    for token in self.tokenize(word)? {
                        let range = match byte_token(&token.value) {
                            Some(byte) => cursor.take(&[byte]),
                            None => cursor.take(token.value.as_bytes()),
                        };
                        out.push(token.id, text.origin(start + range.start..start + range.end));
                    }
                }
            }
            start = end;
        }
        Ok(())
    }

    fn tokenize(&self, word: &str) -> Result<Vec<Token>> {
        self.model.tokenize(word).map_err(|error| Error::Encode { reason: error.to_string() })
    }
}

fn vocabulary(tokens: &[String], kinds: &[TokenKind]) -> Result<AHashMap<String, u32>> {
    let mut vocab = AHashMap::with_capacity(tokens.len());
    for (id, (text, kind)) in (0..).zip(tokens.iter().zip(kinds)) {
        if kind.is_control() || text.is_empty() {
            continue;
        }
        if let Some(first) = vocab.insert(text.clone(), id) {
            return Err(Error::DuplicateToken { text: text.clone(), first, second: id });
        }
    }
    Ok(vocab)
}

/// Files of models whose own tokenizer ranks tokens instead of merging them may come without merges. Every word would
/// then fall into single characters, which is not how such a model reads.
fn check_merges(tokens: &[String], kinds: &[TokenKind], merges: &[String]) -> Result<()> {
    let is_merged =
        |(text, kind): &(&String, &TokenKind)| **kind == TokenKind::Normal && text.chars().nth(1).is_some();
    match tokens.iter().zip(kinds).find(is_merged) {
        Some((token, _)) if merges.is_empty() => Err(Error::NoMerges { token: token.clone() }),
        _ => Ok(()),
    }
}

/// `left right`, where both and their concatenation are tokens. A token may itself start with a blank.
fn parse_merge(index: usize, merge: &str, vocab: &AHashMap<String, u32>) -> Result<(String, String)> {
    let bad = |problem| Error::BadMerge { index, merge: merge.to_owned(), problem };
    let second_char = merge.chars().next().map_or(0, char::len_utf8);
    let blank =
        merge[second_char..].find(' ').ok_or_else(|| bad("is not two tokens with a blank between them"))?;
    let (left, right) = merge.split_at(second_char + blank);
    let right = &right[1..];
    let known = [left, right].iter().all(|part| vocab.contains_key(*part));
    if !known || !vocab.contains_key(&[left, right].concat()) {
        return Err(bad("joins or makes a token that the vocabulary does not have"));
    }
    Ok((left.to_owned(), right.to_owned()))
}
