//! The tokens of a tokenizer as a trie of bytes, made once and shared by every grammar.

use std::sync::Arc;

use llguidance::ParserFactory;
use toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// A vocabulary that masks are made for.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    size: usize,
    pub(super) factory: ParserFactory,
}

impl Vocabulary {
    /// `size` is how many logits the model gives, which may be more than there are tokens: what has no token is never
    /// allowed. `end_ids` may be chosen where the text is complete.
    pub fn new(tokenizer: &Tokenizer, size: usize, end_ids: &[u32]) -> Result<Self> {
        let failed = |reason: String| Error::Build { reason };
        let vocab_size = u32::try_from(size).map_err(|_| failed(format!("{size} tokens are too many")))?;
        if let Some(id) = end_ids.iter().find(|&&id| id >= vocab_size) {
            return Err(failed(format!("token {id} ends a text, but there are only {size}")));
        }
        let words: Vec<Vec<u8>> = (0..vocab_size).map(|id| spelling(tokenizer, id)).collect();
        let bytes: usize = words.iter().map(Vec::len).sum();
        if size > TOKENS_MAX || bytes > TRIE_BYTES_MAX {
            return Err(failed(format!("{size} tokens of {bytes} bytes do not fit into a trie")));
        }
        let info = TokRxInfo::new(vocab_size, end_ids.first().copied().unwrap_or(INVALID_TOKEN));
        let trie = TokTrie::from(&info, &words);
        let trie = if end_ids.is_empty() { trie } else { trie.with_eos_tokens(end_ids) };
        // Text is matched as bytes: whichever tokens spell them are allowed, and the model chooses among them.
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| failed(error.to_string()))?;
        factory.quiet();
        Ok(Self { tokenizer: tokenizer.clone(), size, factory })
    }

    /// How many tokens a mask covers.
    pub fn size(&self) -> usize {
        self.size
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size).finish_non_exhaustive()
    }
}

/// The bytes of a token. Control tokens begin with a byte that no text has, so that only a grammar that names them
/// allows them; an ordinary token that begins with this byte is spelled by nothing.
fn spelling(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let mut bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if tokenizer.is_control(id) {
        bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
    } else if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
        bytes.clear();
    }
    // The trie keeps depths in ten bits; a token that does not fit is never allowed.
    if bytes.len() > SPELLING_BYTES_MAX {
        bytes.clear();
    }
    bytes
}

/// What a node of the trie has bits for.
const SPELLING_BYTES_MAX: usize = 1000;
const TOKENS_MAX: usize = (1 << 24) - 2;
const TRIE_BYTES_MAX: usize = (1 << 22) - 2;
