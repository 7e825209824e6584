//! What may be drawn next, decided by someone else: a grammar, a schema. The scheduler asks for a mask before a draw
//! and tells which token was drawn.

use crate::ConstraintError;

/// Narrows down what may be drawn. It belongs to one request.
pub trait Constraint: Send {
    /// The tokens that may come next. Asked once or more between two tokens, at first while the engine computes, so
    /// the second time should cost nothing.
    fn mask(&mut self) -> Result<&TokenMask, ConstraintError>;

    /// The token that was drawn. Tokens that end the answer are told too.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Whether nothing may follow: the answer ends here.
    fn is_complete(&self) -> bool;
}

/// A set of token ids: one bit for each, the lowest bit of the first word for token 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// No token of a vocabulary.
    pub fn none(vocab_size: usize) -> Self {
        TokenMask { words: vec![0; vocab_size.div_ceil(32)] }
    }

    pub fn from_words(words: Vec<u32>) -> Self {
        TokenMask { words }
    }

    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Words to be overwritten in place.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// Panics if the token is beyond the vocabulary.
    pub fn allow(&mut self, token: u32) {
        self.words[token as usize / 32] |= 1 << (token % 32);
    }

    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|w| w >> (token % 32) & 1 == 1)
    }

    /// Makes all other logits impossible.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for (i, chunk) in logits.chunks_mut(32).enumerate() {
            let word = self.words.get(i).copied().unwrap_or(0);
            if word == u32::MAX {
                continue;
            }
            let forbidden = chunk.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
            forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_the_mask_becomes_impossible() {
        let mut mask = TokenMask::none(70);
        [0, 31, 32, 69].into_iter().for_each(|t| mask.allow(t));
        let mut logits = vec![1.0; 70];
        mask.apply(&mut logits);
        let left: Vec<usize> = (0..70).filter(|&t| logits[t] == 1.0).collect();
        assert_eq!(left, [0, 31, 32, 69]);
        assert!((0..70).all(|t| mask.allows(t) == left.contains(&(t as usize))));
        assert!(!mask.allows(1000));
    }

    #[test]
    fn a_mask_that_is_too_short_forbids_the_rest() {
        let mut logits = vec![1.0; 40];
        TokenMask::from_words(vec![u32::MAX]).apply(&mut logits);
        assert_eq!(logits.iter().filter(|l| **l == 1.0).count(), 32);
    }
}
