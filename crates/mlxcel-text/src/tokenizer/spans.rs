//! Tokens with the bytes of the text they were made from. Which tokens those are is for the algorithms.

use std::ops::Range;

/// A token of an encoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedToken {
    pub id: u32,
    /// The bytes of the original text this token was made from. A token that is only a part of a character has
    /// that part's bytes; a token that was added around the text has an empty range at its place.
    pub start: usize,
    pub end: usize,
}

/// Collects tokens whose places are counted from somewhere inside the text.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// Where the fragment begins that is being encoded.
    pub(super) base: usize,
    pub(super) tokens: Vec<EncodedToken>,
}

impl Spans {
    pub(super) fn push(&mut self, id: u32, range: Range<usize>) {
        self.tokens.push(EncodedToken { id, start: self.base + range.start, end: self.base + range.end });
    }

    /// Lets the last token reach up to `end`.
    pub(super) fn stretch(&mut self, end: usize) {
        if let Some(last) = self.tokens.last_mut() {
            last.end = self.base + end;
        }
    }
}

/// A text as SentencePiece sees it, with blanks written as `▁`.
#[derive(Debug)]
pub(super) struct Marked {
    pub(super) text: String,
    /// For each byte of `text`, and for its end, the byte of the original it comes from.
    origins: Vec<usize>,
}

const BLANK: &str = "▁";

impl Marked {
    pub(super) fn new(original: &str) -> Self {
        let mut marked = Self { text: String::with_capacity(original.len()), origins: Vec::new() };
        for (at, c) in original.char_indices() {
            if c == ' ' {
                marked.append(BLANK, |_| at);
            } else {
                marked.append(c.encode_utf8(&mut [0; 4]), |i| at + i);
            }
        }
        marked.origins.push(original.len());
        marked
    }

    /// Puts a blank that is not in the original before the text.
    pub(super) fn with_leading_blank(mut self) -> Self {
        self.text.insert_str(0, BLANK);
        self.origins.splice(0..0, [0; BLANK.len()]);
        self
    }

    /// The bytes of the original that `range` comes from.
    pub(super) fn origin(&self, range: Range<usize>) -> Range<usize> {
        self.origins[range.start]..self.origins[range.end]
    }

    fn append(&mut self, part: &str, origin: impl Fn(usize) -> usize) {
        self.text.push_str(part);
        self.origins.extend((0..part.len()).map(origin));
    }
}

/// Finds tokens in the word they were made from. Bytes that no token spells are passed over.
#[derive(Debug)]
pub(super) struct WordCursor<'w> {
    word: &'w [u8],
    at: usize,
}

impl<'w> WordCursor<'w> {
    pub(super) fn new(word: &'w str) -> Self {
        Self { word: word.as_bytes(), at: 0 }
    }

    /// The range of the next token, which spells `bytes`.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Range<usize> {
        let mut start = None;
        for byte in bytes {
            let Some(skipped) = self.word[self.at..].iter().position(|other| other == byte) else { break };
            start.get_or_insert(self.at + skipped);
            self.at += skipped + 1;
        }
        start.unwrap_or(self.at)..self.at
    }
}

/// Makes the ranges that a library reports exact. It counts in whole characters and may leave blanks out; where a
/// token's own bytes go on from the end of the one before, they say better where it lies.
pub(super) fn refine(text: &str, tokens: &mut [EncodedToken], spelled: impl Fn(u32) -> Option<Vec<u8>>) {
    let mut at = 0;
    for token in tokens {
        if token.start == token.end {
            // Added around the text: the library puts all of these at its beginning.
            (token.start, token.end) = (at, at);
            continue;
        }
        let bytes = spelled(token.id).unwrap_or_default();
        // SentencePiece spells a blank before a text that has none, and spells a real `▁` in the same way.
        let has_mark = text.get(token.start..token.end).is_some_and(|there| there.contains(BLANK));
        let spellings = [Some(bytes.as_slice()), bytes.strip_prefix(b" ").filter(|_| !has_mark)];
        for spelling in spellings.into_iter().flatten() {
            let end = at + spelling.len();
            let overlaps = spelling.is_empty() || (token.start < end && at < token.end);
            if overlaps && text.as_bytes().get(at..end) == Some(spelling) {
                (token.start, token.end) = (at, end);
                break;
            }
        }
        at = token.end.max(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_blanks_are_one_byte_of_the_original() {
        let marked = Marked::new("é a").with_leading_blank();
        assert_eq!(marked.text, "▁é▁a");
        assert_eq!(marked.origin(0..3), 0..0, "the blank that was put before");
        assert_eq!(marked.origin(3..5), 0..2);
        assert_eq!(marked.origin(4..5), 1..2, "half a character");
        assert_eq!(marked.origin(5..9), 2..4);
    }

    #[test]
    fn bytes_without_a_token_are_passed_over() {
        let mut cursor = WordCursor::new("a\u{14}bc");
        assert_eq!([cursor.take(b"ab"), cursor.take(b"c"), cursor.take(b"z")], [0..3, 3..4, 4..4]);
    }

    #[test]
    fn a_range_in_whole_characters_is_cut_to_the_tokens_bytes() {
        let token = |id, start, end| EncodedToken { id, start, end };
        let mut tokens = [token(9, 0, 0), token(0, 1, 5), token(1, 1, 5), token(2, 5, 6)];
        let spelled = |id| Some([&b" \xf0\x9f"[..], b"\x98\x80", b"?"][id as usize].to_vec());
        refine(" 😀x", &mut tokens, spelled);
        assert_eq!(tokens, [token(9, 0, 0), token(0, 0, 3), token(1, 3, 5), token(2, 5, 6)]);
    }
}
