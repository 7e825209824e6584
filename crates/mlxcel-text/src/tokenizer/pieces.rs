//! From a token's spelling in the vocabulary to the bytes it adds to a text, and from bytes to text as they
//! arrive.
//!
//! Knows spellings only; which token is hidden, and what comes first in a text, is decided by the callers.

use super::{TokenKind, byte_alphabet};

/// How a vocabulary spells text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// The GPT-2 byte alphabet.
    ByteLevel,
    /// SentencePiece: `▁` for a blank and `<0x0A>` for a byte; with `strip`, a text starts with a blank that
    /// is not part of it.
    Sentence { strip: bool },
    /// Only the decoder of `tokenizer.json` knows; a token's text may depend on its neighbours.
    Chain,
}

impl Style {
    pub(crate) fn strips_leading_space(self) -> bool {
        self == Style::Sentence { strip: true }
    }
}

/// Appends what one token spells. Control and user-defined tokens are spelled as they are.
pub(crate) fn append_piece(style: Style, text: &str, kind: TokenKind, out: &mut Vec<u8>) {
    let verbatim = matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined);
    match style {
        Style::ByteLevel if !verbatim => append_byte_level(text, out),
        Style::Sentence { .. } if kind == TokenKind::Byte => match byte_token(text) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text.as_bytes()),
        },
        Style::Sentence { .. } if kind == TokenKind::UserDefined || !verbatim => {
            out.extend_from_slice(text.replace('▁', " ").as_bytes());
        }
        _ => out.extend_from_slice(text.as_bytes()),
    }
}

/// A character outside the alphabet cannot come from training; the whole token is then taken as it is
/// written.
fn append_byte_level(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in text.chars() {
        match byte_alphabet::byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

/// The byte that a token spelled like `<0x0A>` stands for.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// Bytes that arrive in any portions, as text of whole characters. What can never become UTF-8 turns into
/// U+FFFD exactly where `String::from_utf8_lossy` over all the bytes would put it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Utf8Stream {
    /// The beginning of a character whose end has not arrived: at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, tail) = rest.split_at(error.valid_up_to());
                    out.push_str(std::str::from_utf8(valid).expect("checked up to here"));
                    rest = tail;
                    let Some(broken) = error.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[broken..];
                }
            }
        }
        let kept = rest.len();
        self.pending.drain(..self.pending.len() - kept);
    }

    /// Ends the stream: a character that never became whole is U+FFFD.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if !std::mem::take(&mut self.pending).is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece(style: Style, text: &str, kind: TokenKind) -> Vec<u8> {
        let mut out = Vec::new();
        append_piece(style, text, kind, &mut out);
        out
    }

    #[test]
    fn a_byte_level_token_spells_its_bytes() {
        assert_eq!(piece(Style::ByteLevel, "ĠhÃ©", TokenKind::Normal), " hé".as_bytes());
        assert_eq!(piece(Style::ByteLevel, "a b", TokenKind::Normal), b"a b");
        assert_eq!(
            piece(Style::ByteLevel, "<｜end▁of▁it｜>", TokenKind::Control),
            "<｜end▁of▁it｜>".as_bytes()
        );
    }

    #[test]
    fn a_sentencepiece_token_spells_blanks_and_bytes() {
        let style = Style::Sentence { strip: true };
        assert_eq!(piece(style, "▁the", TokenKind::Normal), b" the");
        assert_eq!(piece(style, "<0xE5>", TokenKind::Byte), [0xe5]);
        assert_eq!(piece(style, "<0xE5>", TokenKind::Normal), b"<0xE5>");
        assert_eq!(piece(style, "<s>", TokenKind::Control), b"<s>");
    }

    #[test]
    fn only_two_hex_digits_make_a_byte_token() {
        assert_eq!(byte_token("<0x0a>"), Some(10));
        for text in ["<0x0A", "0x0A>", "<0x+A>", "<0x00A>", "<0x>", "<0xé>"] {
            assert_eq!(byte_token(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_stream_in_any_portions_equals_one_lossy_conversion(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
            text in "\\PC{0,12}",
            cuts in proptest::collection::vec(0usize..8, 0..40),
        ) {
            let all = [text.as_bytes(), &bytes, text.as_bytes()].concat();
            let (mut stream, mut out, mut rest) = (Utf8Stream::default(), String::new(), all.as_slice());
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                stream.push(head, &mut out);
                rest = tail;
            }
            stream.push(rest, &mut out);
            stream.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&all));
        }
    }
}
