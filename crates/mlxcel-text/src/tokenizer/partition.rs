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

/// A part of a text: a whole token, or what is left to the algorithm.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fragment<'t> {
    pub(super) token: Option<u32>,
    /// Where the part begins.
    pub(super) start: usize,
    /// With the blanks that belong to a token.
    pub(super) text: &'t str,
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
            let mut start = found.start().max(done);
            if token.lstrip {
                start = done + text[done..start].trim_end().len();
            }
            let mut end = found.end().max(start);
            if token.rstrip {
                end += text[end..].len() - text[end..].trim_start().len();
            }
            if done < start {
                fragments.push(Fragment { token: None, start: done, text: &text[done..start] });
            }
            fragments.push(Fragment { token: Some(token.id), start, text: &text[start..end] });
            done = end;
        }
        if done < text.len() {
            fragments.push(Fragment { token: None, start: done, text: &text[done..] });
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

    /// The fragments of a text as its tokens and parts, which must lie end to end.
    fn split(text: &str, special: SpecialTokens) -> Vec<(Option<u32>, &str)> {
        let fragments = partition().split(text, special);
        let mut end = 0;
        for fragment in &fragments {
            assert_eq!(fragment.start, end, "{text}");
            end += fragment.text.len();
        }
        assert_eq!(end, text.len());
        fragments.into_iter().map(|fragment| (fragment.token, fragment.text)).collect()
    }

    #[test]
    fn the_longest_token_wins() {
        let fragments = split("a<s>x<s>y", SpecialTokens::Parse);
        assert_eq!(fragments, [(None, "a"), (Some(2), "<s>x"), (Some(1), "<s>"), (None, "y")]);
    }

    #[test]
    fn control_tokens_are_text_unless_asked_for() {
        let fragments = split("<s><u>b", SpecialTokens::AsText);
        assert_eq!(fragments, [(None, "<s>"), (Some(3), "<u>"), (None, "b")]);
    }

    #[test]
    fn stripping_tokens_take_the_blanks_beside_them() {
        let fragments = split("a \n<l> b <r> \u{a0}<l>  c", SpecialTokens::Parse);
        let expected = [
            (None, "a"),
            (Some(4), " \n<l>"),
            (None, " b "),
            (Some(5), "<r> \u{a0}"),
            (Some(4), "<l>"),
            (None, "  c"),
        ];
        assert_eq!(fragments, expected);
    }

    #[test]
    fn a_vocabulary_without_whole_tokens_leaves_the_text_alone() {
        let partition = Partition::new(Vec::new()).expect("nothing to match");
        let whole = Fragment { token: None, start: 0, text: "<s>" };
        assert_eq!(partition.split("<s>", SpecialTokens::Parse), [whole]);
        assert_eq!(partition.split("", SpecialTokens::Parse), []);
    }
}
