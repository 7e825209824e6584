//! Stand-in characters: while a template is rendered, characters of a user's text that could make it look
//! like a control token are replaced by stand-ins, and put back after the control tokens have been
//! recognised.
//!
//! Knows only the replacement; which characters need one is decided by the chat guard.

use std::collections::BTreeSet;

use crate::error::{Error, Result};

/// Egyptian hieroglyphs: assigned letters that every normaliser leaves alone and hardly any text uses. A
/// private-use character would not do, since some normalisers delete those.
const STAND_INS: std::ops::RangeInclusive<char> = '\u{13000}'..='\u{1342f}';

/// Pairs of an original character and its stand-in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protection {
    pairs: Vec<(char, char)>,
    /// Possible stand-ins that occur in the real text.
    taken: BTreeSet<char>,
}

impl Protection {
    /// Notes the characters of a text that will be part of the prompt, so that none of them becomes a
    /// stand-in.
    pub(crate) fn note(&mut self, text: &str) {
        self.taken.extend(text.chars().filter(|c| STAND_INS.contains(c)));
    }

    /// The stand-in for a character.
    pub(crate) fn stand_in(&mut self, original: char) -> Result<char> {
        if let Some(pair) = self.pairs.iter().find(|pair| pair.0 == original) {
            return Ok(pair.1);
        }
        let free = STAND_INS.into_iter().find(|c| !self.taken.contains(c)).ok_or(Error::NoSpareCharacters)?;
        self.taken.insert(free);
        self.pairs.push((original, free));
        Ok(free)
    }

    /// The original of a stand-in; any other character is itself.
    pub(crate) fn restore_char(&self, c: char) -> char {
        self.pairs.iter().find(|pair| pair.1 == c).map_or(c, |pair| pair.0)
    }

    pub(crate) fn restore(&self, text: &str) -> String {
        text.chars().map(|c| self.restore_char(c)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_are_put_back_and_real_hieroglyphs_are_left_alone() {
        let mut protection = Protection::default();
        protection.note("\u{13000} and \u{13001}");
        let stand_in = protection.stand_in('<').expect("one is free");
        assert_eq!(stand_in, '\u{13002}');
        assert_eq!(protection.stand_in('<').expect("the same again"), stand_in);
        assert_ne!(protection.stand_in('[').expect("one is free"), stand_in);
        assert_eq!(protection.restore(&format!("\u{13000}{stand_in}|x|>")), "\u{13000}<|x|>");
    }

    #[test]
    fn a_text_of_every_hieroglyph_is_an_error() {
        let mut protection = Protection::default();
        protection.note(&STAND_INS.collect::<String>());
        assert!(matches!(protection.stand_in('<'), Err(Error::NoSpareCharacters)));
    }
}
