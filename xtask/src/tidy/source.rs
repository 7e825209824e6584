//! Enough of Rust's lexical grammar to tell code from comments and literals, and tests from the rest.
//!
//! It does not parse. What it produces is the same text with the same line breaks, some of it blanked, so that the
//! rules can look for words and match braces.

use std::ops::Range;

/// A source file taken apart.
pub(crate) struct Source {
    /// The text with comments, strings and characters blanked.
    pub(crate) code: String,
    /// The text with everything but comments blanked.
    pub(crate) comments: String,
    /// Where `#[cfg(test)]` and `#[cfg(all(test, …))]` items are, as byte ranges.
    tests: Vec<Range<usize>>,
}

/// What a stretch of text is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        let pieces = split(text);
        let code = blank_but(text, &pieces, Kind::Code);
        let comments = blank_but(text, &pieces, Kind::Comment);
        let tests = test_items(&code);
        Self { code, comments, tests }
    }

    /// Whether a byte of the file belongs to its unit tests.
    pub(crate) fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }

    /// The line, counted from one, of a byte.
    pub(crate) fn line(&self, at: usize) -> usize {
        1 + self.code.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
    }

    /// Where `word` stands in the code with no other word's letters around it.
    pub(crate) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code
            .match_indices(word)
            .map(|(at, _)| at)
            .filter(move |at| is_whole_word(&self.code, *at, word.len()))
    }
}

/// Whether no letter, digit or underscore touches the ends of a stretch.
pub(crate) fn is_whole_word(text: &str, at: usize, length: usize) -> bool {
    let bytes = text.as_bytes();
    let joins = |byte: Option<&u8>| byte.is_some_and(|byte| is_name(*byte));
    let before = at > 0 && is_name(bytes[at]) && joins(bytes.get(at - 1));
    let after = is_name(bytes[at + length - 1]) && joins(bytes.get(at + length));
    !before && !after
}

/// The end of the block that opens with the first brace at or after `from`, or of the item that a semicolon ends
/// before any brace. Braces inside brackets and parentheses belong to the signature.
pub(crate) fn block_end(code: &str, from: usize) -> Option<(usize, Option<usize>)> {
    let mut nested = 0i32;
    for (offset, byte) in code.as_bytes()[from..].iter().enumerate() {
        match byte {
            b'(' | b'[' => nested += 1,
            b')' | b']' => nested -= 1,
            b';' if nested == 0 => return Some((from + offset, None)),
            b'{' if nested == 0 => {
                return matching_brace(code, from + offset).map(|end| (end, Some(from + offset)));
            }
            _ => {}
        }
    }
    None
}

fn matching_brace(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (offset, byte) in code.as_bytes()[open..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + offset);
        }
    }
    None
}

fn test_items(code: &str) -> Vec<Range<usize>> {
    // A test of one system only is `#[cfg(all(test, …))]`, whose parentheses `block_end` skips.
    let plain = code.match_indices("#[cfg(test)]").map(|(at, attribute)| (at, at + attribute.len()));
    let limited = code.match_indices("#[cfg(all(test,").map(|(at, _)| (at, at + 1));
    plain
        .chain(limited)
        .filter_map(|(at, after)| block_end(code, after).map(|(end, _)| at..end + 1))
        .collect()
}

/// Cuts the text into stretches of one kind each, given by their ends.
fn split(text: &str) -> Vec<(usize, Kind)> {
    let bytes = text.as_bytes();
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let (end, kind) = next_piece(bytes, at);
        pieces.push((end, kind));
        at = end;
    }
    pieces
}

fn next_piece(bytes: &[u8], at: usize) -> (usize, Kind) {
    let rest = &bytes[at..];
    match rest {
        [b'/', b'/', ..] => {
            (at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()), Kind::Comment)
        }
        [b'/', b'*', ..] => (at + block_comment(rest), Kind::Comment),
        [b'"', ..] => (at + quoted(rest, b'"'), Kind::Literal),
        [b'\'', b'\\', ..] => (at + quoted(rest, b'\''), Kind::Literal),
        [b'\'', ..] => character(rest).map_or((at + 1, Kind::Code), |length| (at + length, Kind::Literal)),
        [first, ..] if is_name(*first) => {
            let name = rest.iter().position(|byte| !is_name(*byte)).unwrap_or(rest.len());
            match (&rest[..name], raw_string(&rest[name..])) {
                (b"r" | b"br" | b"cr", Some(length)) => (at + name + length, Kind::Literal),
                _ => (at + name, Kind::Code),
            }
        }
        _ => (at + 1, Kind::Code),
    }
}

/// The length of a block comment, which may hold others.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of a literal that ends at the next unescaped quote.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a character literal without escapes; `None` for a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    let length = match rest.get(1)? {
        0x00..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
    };
    (rest.get(1 + length) == Some(&b'\'')).then_some(length + 2)
}

/// The length of what follows the `r` of a raw string; `None` if none follows.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().position(|byte| *byte != b'#')?;
    if rest[hashes] != b'"' {
        return None;
    }
    let close = [b"\"", "#".repeat(hashes).as_bytes()].concat();
    let body = &rest[hashes + 1..];
    let end = body.windows(close.len()).position(|window| window == close);
    Some(end.map_or(rest.len(), |end| hashes + 1 + end + close.len()))
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The text with all pieces of other kinds turned into spaces, line breaks kept.
fn blank_but(text: &str, pieces: &[(usize, Kind)], kept: Kind) -> String {
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for (end, kind) in pieces {
        let end = (*end).min(text.len());
        if *kind == kept {
            out.push_str(&text[at..end]);
        } else {
            out.extend(text[at..end].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        }
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_told_from_code() {
        let text = concat!(
            "a /* b /* c */ d */ \"e\\\" // f\" 'g' '\\'' 'h: i // j\n",
            "r#\"k \" l\"# br\"m\" r#type 'é' n // o \" p\nq"
        );
        let source = Source::new(text);
        assert_eq!(source.code.split_whitespace().collect::<Vec<_>>(), ["a", "'h:", "i", "r#type", "n", "q"]);
        let comments: Vec<_> = source.comments.split_whitespace().collect();
        assert_eq!(comments, ["/*", "b", "/*", "c", "*/", "d", "*/", "//", "j", "//", "o", "\"", "p"]);
        assert_eq!((source.code.len(), source.comments.len()), (text.len(), text.len()));
    }

    #[test]
    fn text_that_breaks_off_is_survived() {
        for text in
            ["\"", "'", "'\\", "/*", "r#\"", "r#", "b'", "\"\\", "#[cfg(test)]", "fn f(", "fn f() {", "é"]
        {
            assert_eq!(Source::new(text).code.len(), text.len(), "{text}");
        }
    }

    #[test]
    fn unit_tests_are_told_from_the_rest() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { '{'; }\n}\n#[cfg(test)]\nuse x::{y};\nfn c() {}\n";
        let source = Source::new(text);
        let at = |word: &str| source.words(word).next().unwrap();
        assert!(
            !source.is_test(at("a"))
                && source.is_test(at("b"))
                && source.is_test(at("y"))
                && !source.is_test(at("c"))
        );
        assert_eq!(source.line(at("c")), 8);
    }

    #[test]
    fn tests_of_one_system_are_tests() {
        let text = "fn a() {}\n#[cfg(all(test, unix))]\nmod tests {\n fn b() {}\n}\n#[cfg(all(unix, x))]\nfn c() {}\n";
        let source = Source::new(text);
        let is_test = |word: &str| source.is_test(source.words(word).next().unwrap());
        assert_eq!(["a", "b", "c"].map(is_test), [false, true, false]);
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(Source::new("fn fn_ xfn fn(").words("fn").collect::<Vec<_>>(), [0, 11]);
    }
}
