//! The tokenizer of a GGUF file, built from its metadata given as plain data. Reading the file is the
//! caller's work.

use super::bpe::Bpe;
use super::partition::{Partition, WholeToken};
use super::pieces::byte_token;
use super::pre::{self, Spelling};
use super::spans::{EncodedToken, Marked, Spans};
use super::spm::Spm;
use super::wordpiece::WordPiece;
use super::{EncodeOptions, Protection, Roles, Style, TokenKind};
use crate::error::{Error, Result};

/// The `tokenizer.ggml.*` metadata of a GGUF file. An absent array is an empty one.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2`, `gemma4`, `llama` or `bert`.
    pub model: String,
    /// `tokenizer.ggml.pre`; empty when absent.
    pub pre: String,
    /// `general.name`: a few models' blank handling is known only by name.
    pub model_name: String,
    pub tokens: Vec<String>,
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`.
    pub token_types: Vec<i32>,
    pub merges: Vec<String>,
    pub bos_id: Option<u32>,
    pub eos_id: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot_id: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk_id: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad_id: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id` (spelled so).
    pub sep_id: Option<u32>,
    /// `tokenizer.ggml.cls_token_id`.
    pub cls_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.normalizer.lowercase`.
    pub lowercase: Option<bool>,
}

#[derive(Debug)]
enum Algorithm {
    Bpe(Box<Bpe>),
    Spm { spm: Spm, add_space_prefix: bool },
    WordPiece(Box<WordPiece>),
}

#[derive(Debug)]
pub(super) struct GgufTokenizer {
    algorithm: Algorithm,
    partition: Partition,
    tokens: Vec<String>,
    kinds: Vec<TokenKind>,
    style: Style,
    roles: Roles,
    end_ids: Vec<u32>,
    /// What is added around a text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

impl GgufTokenizer {
    pub(super) fn build(mut vocab: GgufVocab) -> Result<Self> {
        check_shape(&vocab)?;
        set_default_ids(&mut vocab);
        let kinds = token_kinds(&vocab);
        let (algorithm, style, add_bos) = build_algorithm(&vocab, &kinds)?;
        let (prefix, suffix) = affixes(&vocab, add_bos)?;
        Ok(Self {
            algorithm,
            partition: Partition::new(whole_tokens(&vocab, &kinds))?,
            style,
            roles: roles(&vocab),
            end_ids: end_ids(&vocab, &kinds),
            tokens: vocab.tokens,
            kinds,
            prefix,
            suffix,
        })
    }

    pub(super) fn encode(
        &self,
        text: &str,
        options: EncodeOptions,
        protection: Option<&Protection>,
    ) -> Result<Vec<EncodedToken>> {
        let mut out = Spans::default();
        if options.add_special_tokens {
            self.prefix.iter().for_each(|&id| out.push(id, 0..0));
        }
        let mut after_token = true;
        for fragment in self.partition.split(text, options.special_tokens) {
            out.base = fragment.start;
            match fragment.token {
                Some(id) => out.push(id, 0..fragment.text.len()),
                None => {
                    // What is protected has stand-ins of other lengths; nobody asks for its offsets.
                    let restored = protection.map(|protection| protection.restore(fragment.text));
                    let text = restored.as_deref().unwrap_or(fragment.text);
                    self.encode_fragment(text, after_token, &mut out)?;
                }
            }
            after_token = fragment.token.is_some();
        }
        out.base = text.len();
        if options.add_special_tokens {
            self.suffix.iter().for_each(|&id| out.push(id, 0..0));
        }
        Ok(out.tokens)
    }

    /// Encodes text between whole tokens; SentencePiece puts a blank before text that starts anew.
    fn encode_fragment(&self, text: &str, after_token: bool, out: &mut Spans) -> Result<()> {
        match &self.algorithm {
            Algorithm::Bpe(bpe) => bpe.encode(text, out),
            Algorithm::WordPiece(wordpiece) => wordpiece.encode(text, out),
            Algorithm::Spm { spm, add_space_prefix } => {
                let marked = Marked::new(text);
                let starts_anew = *add_space_prefix && after_token;
                spm.encode(&if starts_anew { marked.with_leading_blank() } else { marked }, out)
            }
        }
    }

    pub(super) fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    pub(super) fn token_id(&self, text: &str) -> Option<u32> {
        (0..).zip(&self.tokens).find(|(_, token)| *token == text).map(|(id, _)| id)
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn style(&self) -> Style {
        self.style
    }

    pub(super) fn roles(&self) -> &Roles {
        &self.roles
    }

    pub(super) fn end_ids(&self) -> Vec<u32> {
        self.end_ids.clone()
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn control_texts(&self) -> Vec<String> {
        let control =
            self.tokens.iter().zip(&self.kinds).filter(|(text, kind)| kind.is_control() && !text.is_empty());
        control.map(|(text, _)| text.clone()).collect()
    }
}

fn check_shape(vocab: &GgufVocab) -> Result<()> {
    let tokens = vocab.tokens.len();
    if tokens == 0 {
        return Err(Error::EmptyVocabulary);
    }
    for (field, found) in [("scores", vocab.scores.len()), ("token_type", vocab.token_types.len())] {
        if found != 0 && found != tokens {
            return Err(Error::VocabularyLength { field, tokens, found });
        }
    }
    let ids = [
        ("bos", vocab.bos_id),
        ("eos", vocab.eos_id),
        ("eot", vocab.eot_id),
        ("unknown", vocab.unk_id),
        ("padding", vocab.pad_id),
        ("separator", vocab.sep_id),
        ("cls", vocab.cls_id),
    ];
    for (role, id) in ids {
        if let Some(id) = id.filter(|&id| id as usize >= tokens) {
            return Err(Error::SpecialIdOutOfRange { role, id, tokens });
        }
    }
    Ok(())
}

/// What files of each kind mean when they do not name a token.
fn set_default_ids(vocab: &mut GgufVocab) {
    let find = |text: &str| (0..).zip(&vocab.tokens).find(|(_, token)| *token == text).map(|(id, _)| id);
    match vocab.model.as_str() {
        "llama" => {
            vocab.bos_id = vocab.bos_id.or_else(|| find("<s>"));
            vocab.eos_id = vocab.eos_id.or_else(|| find("</s>"));
            vocab.unk_id = vocab.unk_id.or_else(|| find("<unk>"));
        }
        "bert" => {
            vocab.cls_id = vocab.cls_id.or(vocab.bos_id).or_else(|| find("[CLS]"));
            vocab.sep_id = vocab.sep_id.or(vocab.eos_id).or_else(|| find("[SEP]"));
            vocab.unk_id = vocab.unk_id.or_else(|| find("[UNK]"));
        }
        _ => {}
    }
}

/// The kinds the file gives, or, for a file without them, what the spellings say.
fn token_kinds(vocab: &GgufVocab) -> Vec<TokenKind> {
    if vocab.token_types.is_empty() {
        return (0..).zip(&vocab.tokens).map(|(id, text)| guess_kind(vocab, id, text)).collect();
    }
    let kind = |&number: &i32| match number {
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        _ => TokenKind::Normal,
    };
    vocab.token_types.iter().map(kind).collect()
}

fn guess_kind(vocab: &GgufVocab, id: u32, text: &str) -> TokenKind {
    let control = [vocab.bos_id, vocab.eos_id, vocab.pad_id, vocab.sep_id, vocab.cls_id];
    if vocab.unk_id == Some(id) {
        TokenKind::Unknown
    } else if control.contains(&Some(id)) {
        TokenKind::Control
    } else if vocab.model == "llama" && byte_token(text).is_some() {
        TokenKind::Byte
    } else {
        TokenKind::Normal
    }
}

/// The algorithm, how its tokens are spelled, and whether a text begins with `bos` when the file does not
/// say.
fn build_algorithm(vocab: &GgufVocab, kinds: &[TokenKind]) -> Result<(Algorithm, Style, bool)> {
    match vocab.model.as_str() {
        "gpt2" | "gemma4" => {
            let rule = pre::rule(if vocab.model == "gemma4" { "gemma4" } else { &vocab.pre })?;
            let bpe = Bpe::new(rule, &vocab.tokens, kinds, &vocab.merges)?;
            let style = match rule.spelling {
                Spelling::ByteLevel => Style::ByteLevel,
                Spelling::Sentence => Style::Sentence { strip: false },
            };
            Ok((Algorithm::Bpe(Box::new(bpe)), style, rule.add_bos))
        }
        "llama" => {
            if vocab.scores.is_empty() {
                return Err(Error::VocabularyLength {
                    field: "scores",
                    tokens: vocab.tokens.len(),
                    found: 0,
                });
            }
            let spm = Spm::new(&vocab.tokens, &vocab.scores, kinds, vocab.unk_id);
            let add_space_prefix = vocab.add_space_prefix.unwrap_or(true);
            Ok((Algorithm::Spm { spm, add_space_prefix }, Style::Sentence { strip: add_space_prefix }, true))
        }
        "bert" => {
            let unk = vocab.unk_id.ok_or(Error::MissingSpecialId { role: "unknown" })?;
            let wordpiece = WordPiece::new(&vocab.tokens, kinds, unk, vocab.lowercase.unwrap_or(true))?;
            Ok((Algorithm::WordPiece(Box::new(wordpiece)), Style::Sentence { strip: true }, true))
        }
        model => Err(Error::UnknownVocabulary { model: model.to_owned() }),
    }
}

/// What is put before and after a text.
fn affixes(vocab: &GgufVocab, add_bos: bool) -> Result<(Vec<u32>, Vec<u32>)> {
    if vocab.model == "bert" {
        return Ok((vocab.cls_id.into_iter().collect(), vocab.sep_id.into_iter().collect()));
    }
    let wanted = |flag: Option<bool>, default: bool, id: Option<u32>, role| match (flag, id) {
        (Some(true), None) => Err(Error::MissingSpecialId { role }),
        (flag, Some(id)) if flag.unwrap_or(default) => Ok(vec![id]),
        _ => Ok(Vec::new()),
    };
    Ok((
        wanted(vocab.add_bos, add_bos, vocab.bos_id, "bos")?,
        wanted(vocab.add_eos, false, vocab.eos_id, "eos")?,
    ))
}

/// Control, unknown and user-defined tokens are matched as a whole.
fn whole_tokens(vocab: &GgufVocab, kinds: &[TokenKind]) -> Vec<WholeToken> {
    let name = vocab.model_name.to_lowercase();
    let is_phi3 = name.contains("phi-3") || name.contains("phi3");
    let jina = ["jina-v2-de", "jina-v2-es", "jina-v2-code"].contains(&vocab.pre.as_str());
    let mut whole = Vec::new();
    for (id, (text, kind)) in (0..).zip(vocab.tokens.iter().zip(kinds)) {
        if !kind.is_control() && *kind != TokenKind::UserDefined {
            continue;
        }
        // Phi-3's own tokenizer strips blanks after its markers, but GGUF has no field for that.
        let rstrip = is_phi3 && !["<unk>", "<s>", "<|endoftext|>"].contains(&text.as_str());
        let lstrip = (jina && text == "<mask>") || (vocab.pre == "modern-bert" && text == "[MASK]");
        whole.push(WholeToken { id, text: text.clone(), control: kind.is_control(), lstrip, rstrip });
    }
    whole
}

fn roles(vocab: &GgufVocab) -> Roles {
    let named = [
        ("bos_token", vocab.bos_id),
        ("eos_token", vocab.eos_id),
        ("unk_token", vocab.unk_id),
        ("pad_token", vocab.pad_id),
        ("sep_token", vocab.sep_id),
        ("cls_token", vocab.cls_id),
    ];
    let text = |(name, id): (&str, Option<u32>)| Some((name.to_owned(), vocab.tokens[id? as usize].clone()));
    Roles {
        bos: vocab.bos_id,
        eos: vocab.eos_id,
        unk: vocab.unk_id,
        pad: vocab.pad_id,
        texts: named.into_iter().filter_map(text).collect(),
    }
}

/// Spellings that models give to the token ending a turn.
const TURN_ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<|return|>",
    "<|call|>",
    "<end_of_utterance>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
];

fn end_ids(vocab: &GgufVocab, kinds: &[TokenKind]) -> Vec<u32> {
    let mut ids: Vec<u32> = vocab.eos_id.into_iter().chain(vocab.eot_id).collect();
    let harmony =
        ["<|return|>", "<|call|>"].iter().all(|text| vocab.tokens.iter().any(|token| token == text));
    for (id, (text, kind)) in (0..).zip(vocab.tokens.iter().zip(kinds)) {
        // In the harmony format `<|end|>` ends a message of a turn, not the turn.
        let ends = TURN_ENDS.contains(&text.as_str()) && !(harmony && text == "<|end|>");
        if *kind == TokenKind::Control && ends {
            ids.push(id);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}
