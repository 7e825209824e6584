//! Cutting a text at the tokens that are matched as a whole, before any algorithm sees it.
//!
//! User-defined tokens are always cut out; control tokens only when the caller trusts the text.

use aho_corasick::{AhoCorasick, MatchKind};

use super::SpecialTokens;
use crate::error::{Error, Result};

/// A token that is matched as a whole.
#[derive(Clone, Debug)]
pub(super) struct WholeToken {
    pub(super) id: u32,
    pub(super) text: String,
    pub(super) control: bool,
    /// Blanks before or after the token belong to it.
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    Token(u32),
    Text(&'t str),
}

/// Finds whole tokens; where several could start, the longest wins.
#[derive(Debug)]
pub(super) struct Partition {
    all: Matcher,
    user_defined: Matcher,
}

impl Partition {
    pub(super) fn new(tokens: Vec<WholeToken>) -> Result<Self> {
        let user_defined = tokens.iter().filter(|token| !token.control).cloned().collect();
        Ok(Self { all: Matcher::new(tokens)?, user_defined: Matcher::new(user_defined)? })
    }

    /// The fragments of `text` in order; no fragment is empty.
    pub(super) fn split<'t>(&self, text: &'t str, special: SpecialTokens) -> Vec<Fragment<'t>> {
        match special {
            SpecialTokens::Parse => self.all.split(text),
            SpecialTokens::AsText => self.user_defined.split(text),
        }
    }
}

#[derive(Debug)]
struct Matcher {
    /// `None` when there is nothing to match.
    automaton: Option<AhoCorasick>,
    tokens: Vec<WholeToken>,
}

impl Matcher {
    fn new(mut tokens: Vec<WholeToken>) -> Result<Self> {
        tokens.retain(|token| !token.text.is_empty());
        let automaton = (!tokens.is_empty())
            .then(|| {
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(tokens.iter().map(|token| &token.text))
            })
            .transpose()
            .map_err(|error| Error::Build { reason: error.to_string() })?;
        Ok(Self { automaton, tokens })
    }

    fn split<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        let mut done = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            let token = &self.tokens[found.pattern().as_usize()];
            // Blanks after the previous token may already have been taken.
            let mut before = &text[done.min(found.start())..found.start()];
            if token.lstrip {
                before = before.trim_end();
            }
            if !before.is_empty() {
                fragments.push(Fragment::Text(before));
            }
            fragments.push(Fragment::Token(token.id));
            done = found.end();
            if token.rstrip {
                done += text[done..].len() - text[done..].trim_start().len();
            }
        }
        if done < text.len() {
            fragments.push(Fragment::Text(&text[done..]));
        }
        fragments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, text: &str) -> WholeToken {
        WholeToken { id, text: text.to_owned(), control: true, lstrip: false, rstrip: false }
    }

    fn partition() -> Partition {
        Partition::new(vec![
            token(1, "<s>"),
            token(2, "<s>x"),
            WholeToken { control: false, ..token(3, "<u>") },
            WholeToken { lstrip: true, ..token(4, "<l>") },
            WholeToken { rstrip: true, ..token(5, "<r>") },
            token(6, ""),
        ])
        .expect("valid tokens")
    }

    #[test]
    fn the_longest_token_wins() {
        use Fragment::{Text, Token};
        let fragments = partition().split("a<s>x<s>y", SpecialTokens::Parse);
        assert_eq!(fragments, [Text("a"), Token(2), Token(1), Text("y")]);
    }

    #[test]
    fn control_tokens_are_text_unless_asked_for() {
        use Fragment::{Text, Token};
        let fragments = partition().split("<s><u>b", SpecialTokens::AsText);
        assert_eq!(fragments, [Text("<s>"), Token(3), Text("b")]);
    }

    #[test]
    fn stripping_tokens_take_the_blanks_beside_them() {
        use Fragment::{Text, Token};
        let fragments = partition().split("a \n<l> b <r> \u{a0}<l>  c", SpecialTokens::Parse);
        assert_eq!(fragments, [Text("a"), Token(4), Text(" b "), Token(5), Token(4), Text("  c")]);
    }

    #[test]
    fn a_vocabulary_without_whole_tokens_leaves_the_text_alone() {
        let partition = Partition::new(Vec::new()).expect("nothing to match");
        assert_eq!(partition.split("<s>", SpecialTokens::Parse), [Fragment::Text("<s>")]);
        assert_eq!(partition.split("", SpecialTokens::Parse), []);
    }
}
