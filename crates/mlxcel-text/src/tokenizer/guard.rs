//! Finds where a user's text could become a control token once a template has put other text around it.
//!
//! Three places are marked: where a control token is written out; where the text ends with the beginning of
//! one (another text may follow); where it starts with the end of one (the template may have written the
//! beginning). A text that is only the middle of a control token is left alone, because templates build
//! markers out of role names, as in `'<|' + message.role + '|>'`.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Guard {
    written_out: AhoCorasick,
    /// Sorted, so that all tokens with a given beginning lie together.
    tokens: Vec<String>,
    /// The same with the characters of each token reversed.
    reversed: Vec<String>,
    longest_chars: usize,
}

impl Guard {
    pub(crate) fn new(mut tokens: Vec<String>) -> Result<Self> {
        tokens.sort_unstable();
        let written_out = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(&tokens)
            .map_err(|error| Error::Build { reason: error.to_string() })?;
        let mut reversed: Vec<String> = tokens.iter().map(|token| token.chars().rev().collect()).collect();
        reversed.sort_unstable();
        let longest_chars = tokens.iter().map(|token| token.chars().count()).max().unwrap_or(0);
        Ok(Self { written_out, tokens, reversed, longest_chars })
    }

    pub(crate) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The byte offsets of the characters to replace, ascending.
    pub(crate) fn marks(&self, text: &str) -> Vec<usize> {
        let mut marks: Vec<usize> =
            self.written_out.find_overlapping_iter(text).map(|found| found.start()).collect();
        marks.extend(self.unfinished_ends(text));
        if self.starts_inside_a_token(text) {
            marks.push(0);
        }
        marks.sort_unstable();
        marks.dedup();
        marks
    }

    /// Where a beginning of a control token runs to the end of the text.
    fn unfinished_ends<'t>(&'t self, text: &'t str) -> impl Iterator<Item = usize> + 't {
        let last = text.char_indices().rev().take(self.longest_chars).map(|(at, _)| at);
        last.filter(|&at| some_starts_with(&self.tokens, &text[at..]))
    }

    fn starts_inside_a_token(&self, text: &str) -> bool {
        let mut reversed = String::new();
        text.chars().take(self.longest_chars).any(|c| {
            reversed.insert(0, c);
            some_starts_with(&self.reversed, &reversed)
        })
    }
}

fn some_starts_with(sorted: &[String], beginning: &str) -> bool {
    let at = sorted.partition_point(|token| token.as_str() < beginning);
    sorted.get(at).is_some_and(|token| token.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard::new(["<|end|>", "<|user|>", "d|>x", "[A]"].map(str::to_owned).into()).expect("a few tokens")
    }

    #[test]
    fn every_token_that_is_written_out_is_marked_where_it_starts() {
        assert_eq!(guard().marks("a<|end|>xb[A]c"), [1, 5, 10]);
    }

    #[test]
    fn a_beginning_at_the_end_and_an_end_at_the_beginning_are_marked() {
        assert_eq!(guard().marks("text <|us"), [5]);
        assert_eq!(guard().marks("er|> text"), [0]);
        assert_eq!(guard().marks("> quote"), [0]);
        assert!(guard().marks("a < b").is_empty());
    }

    #[test]
    fn the_middle_of_a_token_is_left_for_templates_to_build_markers_from() {
        assert!(guard().marks("user").is_empty());
        assert_eq!(guard().marks("end"), [2], "only its last letter, which begins another token");
    }

    #[test]
    fn a_vocabulary_without_control_tokens_marks_nothing() {
        assert!(Guard::new(Vec::new()).expect("no tokens").marks("<|end|>").is_empty());
    }
}
