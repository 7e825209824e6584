//! SentencePiece BPE: neighbouring pieces are joined, best score first, and what no piece spells falls back
//! to bytes. The algorithm is that of the SentencePiece library (<https://arxiv.org/abs/1808.06226>), without
//! its text normalisation, which the vocabularies stored in GGUF files do not use.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::TokenKind;
use super::pieces::byte_token;
use super::spans::{Marked, Spans};
use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct Spm {
    pieces: HashMap<String, Piece>,
    bytes: Box<[Option<u32>; 256]>,
    unk: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    id: u32,
    score: f32,
    /// An unused piece takes part in merging but is taken apart again at the end.
    unused: bool,
}

impl Spm {
    /// Control and byte tokens are kept out of the pieces, so that no text can spell one.
    pub(super) fn new(tokens: &[String], scores: &[f32], kinds: &[TokenKind], unk: Option<u32>) -> Self {
        let mut pieces = HashMap::with_capacity(tokens.len());
        let mut bytes = Box::new([None; 256]);
        for (id, ((text, &score), &kind)) in (0..).zip(tokens.iter().zip(scores).zip(kinds)) {
            match kind {
                TokenKind::Control | TokenKind::Unknown => {}
                TokenKind::Byte => {
                    if let Some(byte) = byte_token(text) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused => {
                    pieces.insert(text.clone(), Piece { id, score, unused: kind == TokenKind::Unused });
                }
            }
        }
        Self { pieces, bytes, unk }
    }

    pub(super) fn encode(&self, text: &Marked, out: &mut Spans) -> Result<()> {
        let mut merging = Merging::new(self, &text.text);
        merging.run();
        let mut output = Output { text, unknown_before: false, out };
        let mut at = if merging.symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let symbol = merging.symbols[at];
            self.emit(&merging, symbol.start..symbol.end, &mut output)?;
            at = symbol.next;
        }
        Ok(())
    }

    /// Appends one final symbol, taking unused pieces apart again.
    fn emit(&self, merging: &Merging, symbol: Range<usize>, output: &mut Output) -> Result<()> {
        let mut stack = vec![symbol];
        while let Some(range) = stack.pop() {
            let text = &merging.text[range.clone()];
            match self.pieces.get(text) {
                Some(piece) if !piece.unused => {
                    output.push(piece.id, range);
                    continue;
                }
                _ => {}
            }
            if let Some(&left) = merging.unused_joins.get(text) {
                stack.push(range.start + left..range.end);
                stack.push(range.start..range.start + left);
                continue;
            }
            self.emit_bytes(text, range, output)?;
        }
        Ok(())
    }

    fn emit_bytes(&self, text: &str, range: Range<usize>, output: &mut Output) -> Result<()> {
        let ids: Option<Vec<u32>> = text.bytes().map(|byte| self.bytes[usize::from(byte)]).collect();
        if let Some(ids) = ids {
            for (at, id) in range.zip(ids) {
                output.push(id, at..at + 1);
            }
            return Ok(());
        }
        let unk = self.unk.ok_or_else(|| Error::Unencodable { what: format!("`{text}`") })?;
        output.push_unknown(unk, range);
        Ok(())
    }
}

/// Where tokens go, with their places in the original text.
struct Output<'a> {
    text: &'a Marked,
    unknown_before: bool,
    out: &'a mut Spans,
}

impl Output<'_> {
    fn push(&mut self, id: u32, range: Range<usize>) {
        self.out.push(id, self.text.origin(range));
        self.unknown_before = false;
    }

    /// A run of unknown characters is one unknown token.
    fn push_unknown(&mut self, unk: u32, range: Range<usize>) {
        if self.unknown_before {
            self.out.stretch(self.text.origin(range).end);
        } else {
            self.push(unk, range);
        }
        self.unknown_before = true;
    }
}

const NONE: usize = usize::MAX;

/// A part of the text that has become one piece; the live symbols form a doubly linked list.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    end: usize,
    previous: usize,
    next: usize,
}

/// Two neighbours that together spell a piece.
#[derive(Debug, PartialEq)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Length of the joined text: an outdated candidate no longer has it.
    len: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    /// The best score first, then the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Merging<'a> {
    spm: &'a Spm,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
    /// For an unused piece, where its two halves met.
    unused_joins: HashMap<&'a str, usize>,
}

impl<'a> Merging<'a> {
    fn new(spm: &'a Spm, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                end: start + c.len_utf8(),
                previous: i.checked_sub(1).unwrap_or(NONE),
                next: i + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        Self { spm, text, symbols, queue: BinaryHeap::new(), unused_joins: HashMap::new() }
    }

    fn run(&mut self) {
        for right in 1..self.symbols.len() {
            self.propose(right - 1, right);
        }
        while let Some(candidate) = self.queue.pop() {
            if self.is_outdated(&candidate) {
                continue;
            }
            let right = self.symbols[candidate.right];
            self.symbols[candidate.right].end = right.start;
            self.symbols[candidate.left].end = right.end;
            self.symbols[candidate.left].next = right.next;
            if right.next != NONE {
                self.symbols[right.next].previous = candidate.left;
            }
            self.propose(self.symbols[candidate.left].previous, candidate.left);
            self.propose(candidate.left, right.next);
        }
    }

    /// A symbol that was joined into its left neighbour is empty.
    fn is_outdated(&self, candidate: &Candidate) -> bool {
        let (left, right) = (self.symbols[candidate.left], self.symbols[candidate.right]);
        let empty = left.start == left.end || right.start == right.end;
        empty || right.end.wrapping_sub(left.start) != candidate.len || left.end != right.start
    }

    fn propose(&mut self, left: usize, right: usize) {
        if left == NONE || right == NONE {
            return;
        }
        let (start, middle, end) =
            (self.symbols[left].start, self.symbols[left].end, self.symbols[right].end);
        let joined = &self.text[start..end];
        let Some(piece) = self.spm.pieces.get(joined) else { return };
        if piece.unused {
            self.unused_joins.insert(joined, middle - start);
        }
        self.queue.push(Candidate { score: piece.score, left, right, len: end - start });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spm(pieces: &[(&str, f32, TokenKind)]) -> Spm {
        let tokens: Vec<String> = pieces.iter().map(|piece| piece.0.to_owned()).collect();
        let scores: Vec<f32> = pieces.iter().map(|piece| piece.1).collect();
        let kinds: Vec<TokenKind> = pieces.iter().map(|piece| piece.2).collect();
        Spm::new(&tokens, &scores, &kinds, Some(0))
    }

    fn ids(spm: &Spm, text: &str) -> Vec<u32> {
        let mut out = Spans::default();
        spm.encode(&Marked::new(text), &mut out).expect("encodable");
        out.tokens.iter().map(|token| token.id).collect()
    }

    #[test]
    fn no_text_spells_a_control_or_byte_token() {
        use TokenKind::{Byte, Control, Normal, Unknown};
        let spm = spm(&[
            ("<unk>", 0.0, Unknown),
            ("<s>", 0.0, Control),
            ("<", -1.0, Normal),
            ("s>", -2.0, Normal),
            ("s", -3.0, Normal),
            (">", -4.0, Normal),
            ("<0x41>", 0.0, Byte),
        ]);
        assert_eq!(ids(&spm, "<s>"), [2, 3]);
        assert_eq!(ids(&spm, "A"), [6]);
        // `0x` is one unknown token; `A` falls back to its byte.
        assert_eq!(ids(&spm, "<0xA>"), [2, 0, 6, 5]);
    }

    #[test]
    fn an_unused_piece_is_taken_apart_again() {
        use TokenKind::{Normal, Unknown, Unused};
        let spm = spm(&[
            ("<unk>", 0.0, Unknown),
            ("a", -5.0, Normal),
            ("b", -5.0, Normal),
            ("ab", -1.0, Unused),
            ("abb", -2.0, Normal),
        ]);
        assert_eq!(ids(&spm, "ab"), [1, 2]);
        assert_eq!(ids(&spm, "abb"), [4]);
    }

    #[test]
    fn a_run_of_unknown_characters_is_one_unknown_token() {
        use TokenKind::{Normal, Unknown};
        let spm = spm(&[("<unk>", 0.0, Unknown), ("a", -1.0, Normal)]);
        assert_eq!(ids(&spm, "字字a字"), [0, 1, 0]);
    }

    #[test]
    fn scores_that_are_no_numbers_do_not_panic() {
        use TokenKind::{Normal, Unknown};
        let spm = spm(&[
            ("<unk>", f32::NAN, Unknown),
            ("a", f32::NAN, Normal),
            ("aa", f32::NAN, Normal),
            ("aaa", f32::NEG_INFINITY, Normal),
        ]);
        assert_eq!(ids(&spm, "aaaaa"), [2, 3], "every join that makes a piece is made");
    }
}
