//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`, as data: which regular expressions cut a
//! text into words, in which order, and how the words are spelled.
//!
//! The names are those llama.cpp writes; the expressions are those of the models' own `tokenizer.json`. A
//! name that is not here is an error, never a guess. Adding one is adding a row to `table.rs`.

mod table;

use fancy_regex::{Regex, RegexBuilder};

use crate::error::{Error, Result};
use table::TABLE;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    names: &'static [&'static str],
    /// Applied one after the other; each cuts its matches out of the pieces the one before it left.
    patterns: &'static [&'static str],
    pub(super) words: Words,
    pub(super) spelling: Spelling,
    /// Whether a beginning-of-sequence token is added when the file does not say.
    pub(super) add_bos: bool,
}

impl Rule {
    pub(super) fn patterns(&self) -> &'static [&'static str] {
        self.patterns
    }
}

/// What happens to a word that is itself a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// It is merged from its characters like any other.
    Merged,
    /// It is that token, whatever the merges say.
    Whole,
}

/// How the vocabulary spells words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// In the GPT-2 byte alphabet.
    ByteLevel,
    /// As UTF-8 with `▁` for a blank and byte tokens for what is missing.
    Sentence,
}

/// Cuts a text into words.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    patterns: Vec<Regex>,
}

/// A blank run longer than this is an error rather than minutes of backtracking.
const BACKTRACK_LIMIT: usize = 4_000_000;

impl PreTokenizer {
    pub(super) fn new(rule: &Rule) -> Result<Self> {
        let compile = |pattern: &&str| {
            RegexBuilder::new(pattern)
                .backtrack_limit(BACKTRACK_LIMIT)
                .build()
                .map_err(|error| Error::Build { reason: error.to_string() })
        };
        Ok(Self { patterns: rule.patterns.iter().map(compile).collect::<Result<_>>()? })
    }

    /// The words of `text`; together they are the whole text.
    pub(super) fn split<'t>(&self, text: &'t str) -> Result<Vec<&'t str>> {
        let mut words = vec![text];
        for pattern in &self.patterns {
            let mut cut = Vec::with_capacity(words.len());
            for word in words {
                isolate(pattern, word, &mut cut)?;
            }
            words = cut;
        }
        Ok(words)
    }
}

/// Appends the matches in `text` and the gaps between them.
fn isolate<'t>(pattern: &Regex, text: &'t str, out: &mut Vec<&'t str>) -> Result<()> {
    let mut done = 0;
    for found in pattern.find_iter(text) {
        let found = found.map_err(|error| Error::PreTokenize { reason: error.to_string() })?;
        for part in [&text[done..found.start()], found.as_str()] {
            if !part.is_empty() {
                out.push(part);
            }
        }
        done = found.end();
    }
    if done < text.len() {
        out.push(&text[done..]);
    }
    Ok(())
}

/// The rule for a name in `tokenizer.ggml.pre`.
pub(super) fn rule(name: &str) -> Result<&'static Rule> {
    TABLE
        .iter()
        .find(|rule| rule.names.contains(&name))
        .ok_or_else(|| Error::UnknownPreTokenizer { pre: name.to_owned() })
}

/// One name for each rule of byte-level vocabularies that treats words in this way.
pub(super) fn byte_level_names(words: Words) -> impl Iterator<Item = &'static str> {
    let fitting =
        TABLE.iter().filter(move |rule| rule.spelling == Spelling::ByteLevel && rule.words == words);
    // The last rule is for files that do not name one.
    fitting.filter_map(|rule| rule.names.first().copied()).filter(|name| *name != "default")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let splitter = PreTokenizer::new(rule(name).expect("a known name")).expect("a valid rule");
        splitter.split(text).expect("a short text")
    }

    #[test]
    fn every_rule_compiles_and_keeps_the_whole_text() {
        let text = "Hello, wörld's 12345  \n\n\tif (x>=1) 字字かな 한국어 😀 Ünïcödé 3.14e-10 \u{2028}end  ";
        for row in TABLE {
            let splitter = PreTokenizer::new(row).expect("a valid rule");
            assert_eq!(splitter.split(text).expect("a short text").concat(), text, "{:?}", row.names);
        }
    }

    #[test]
    fn no_name_is_listed_twice() {
        let mut names: Vec<&str> = TABLE.iter().flat_map(|row| row.names).copied().collect();
        let listed = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), listed);
    }

    #[test]
    fn digits_are_cut_as_each_family_cuts_them() {
        assert_eq!(words("smollm", "a 1234"), ["a", " ", "1", "2", "3", "4"]);
        assert_eq!(words("llama-bpe", "a 1234"), ["a", " ", "123", "4"]);
        assert_eq!(words("gpt-2", "a 1234"), ["a", " 1234"]);
        assert_eq!(words("superbpe", "1234567"), ["1", "234", "567"]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_says_it() {
        let error = rule("no-such-rule").expect_err("not in the table");
        assert_eq!(
            error.to_string(),
            "the GGUF vocabulary asks for the pre-tokenizer `no-such-rule`, which this version does not know"
        );
    }

    #[test]
    fn a_hostile_run_of_blanks_is_an_error_and_not_a_wrong_split() {
        let splitter = PreTokenizer::new(rule("gpt-2").expect("a known name")).expect("a valid rule");
        let text = format!("{}a", " ".repeat(9_000_000));
        assert!(matches!(splitter.split(&text), Err(Error::PreTokenize { .. })));
    }
}
