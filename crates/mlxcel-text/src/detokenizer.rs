//! Token ids to text, one at a time, never showing half a character. It does not know when to stop.

use crate::error::Result;
use crate::tokenizer::{SpecialText, Style, Tokenizer, Utf8Stream};

/// Whether the ids are the start of a text or go on from a prompt that is not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextPosition {
    /// A blank that the vocabulary puts before every text is left out.
    Start,
    #[default]
    Continuation,
}

/// How a [`Detokenizer`] shows tokens. The default is right for generated text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetokenizeOptions {
    pub special: SpecialText,
    pub position: TextPosition,
}

/// Turns a growing sequence of ids into text as it grows.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    special: SpecialText,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Bytes { stream: Utf8Stream, strip_blank: bool },
    Chain(Window),
}

/// The last ids, for decoders that look at neighbours: text is what decoding with the newest ids adds to
/// decoding without them.
#[derive(Clone, Debug, Default)]
struct Window {
    ids: Vec<u32>,
    /// How many of `ids` have been shown and are kept as context.
    shown: usize,
}

const HELD_IDS_MAX: usize = 8;

impl Detokenizer {
    pub fn new(tokenizer: &Tokenizer, options: DetokenizeOptions) -> Self {
        let style = tokenizer.style();
        let state = match style {
            Style::Chain => State::Chain(Window::default()),
            _ => State::Bytes {
                stream: Utf8Stream::default(),
                strip_blank: style.strips_leading_space() && options.position == TextPosition::Start,
            },
        };
        Self { tokenizer: tokenizer.clone(), special: options.special, state }
    }

    /// The text that is certain after one more token; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> Result<String> {
        match &mut self.state {
            State::Bytes { stream, strip_blank } => {
                let mut bytes = Vec::new();
                self.tokenizer.append_bytes(id, self.special, &mut bytes);
                if *strip_blank && !bytes.is_empty() {
                    *strip_blank = false;
                    if bytes[0] == b' ' {
                        bytes.remove(0);
                    }
                }
                let mut text = String::new();
                stream.push(&bytes, &mut text);
                Ok(text)
            }
            State::Chain(window) => window.push(&self.tokenizer, self.special, id),
        }
    }

    /// Ends the text: what is left of an incomplete character becomes U+FFFD. The detokenizer can then start
    /// anew.
    pub fn finish(&mut self) -> Result<String> {
        match &mut self.state {
            State::Bytes { stream, .. } => {
                let mut text = String::new();
                stream.finish(&mut text);
                Ok(text)
            }
            State::Chain(window) => {
                let (before, all) = window.texts(&self.tokenizer, self.special)?;
                *window = Window::default();
                Ok(all.get(before.len()..).unwrap_or_default().to_owned())
            }
        }
    }
}

impl Window {
    fn push(&mut self, tokenizer: &Tokenizer, special: SpecialText, id: u32) -> Result<String> {
        self.ids.push(id);
        let (before, all) = self.texts(tokenizer, special)?;
        // No character needs more than four tokens; bytes that never become one must not be held for ever.
        let waiting =
            all.ends_with(char::REPLACEMENT_CHARACTER) && self.ids.len() - self.shown <= HELD_IDS_MAX;
        if waiting || all.len() <= before.len() {
            return Ok(String::new());
        }
        let Some(text) = all.get(before.len()..) else { return Ok(String::new()) };
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        Ok(text.to_owned())
    }

    fn texts(&self, tokenizer: &Tokenizer, special: SpecialText) -> Result<(String, String)> {
        let before = tokenizer.decode_chain(&self.ids[..self.shown], special)?;
        Ok((before, tokenizer.decode_chain(&self.ids, special)?))
    }
}
