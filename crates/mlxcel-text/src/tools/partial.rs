//! A call that is told while it is being written: how it begins, its arguments piece by piece, and what closes it. Only
//! for forms that are an object with a name and arguments, in that order; other calls are told when they are whole.

use serde_json::{Map, Value};

use super::cursor::{Cursor, Read, Stop};
use super::{ToolSet, ToolSyntax, llama3, tagged};

/// Where the arguments of a call begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) name: String,
    pub(crate) at: usize,
}

/// What follows the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    Incomplete,
    Closed {
        len: usize,
    },
    /// Something that closes no call.
    Other,
}

/// What stands between arguments and the end of a call is short.
const CLOSING_BYTES_MAX: usize = 1024;

/// Stands for the part of an object before what is looked at.
const BEFORE: &str = "{\"\":0";

impl ToolSyntax {
    /// How a text begins a call, once it has the name of a tool of the request and the opening of its arguments.
    pub(crate) fn opening(self, text: &str, tools: &ToolSet) -> Option<Opening> {
        let mut cursor = Cursor::new(text, false);
        match self {
            Self::Hermes | Self::QwenXml | Self::Glm => cursor.expect(tagged::OPEN).ok()?,
            Self::Llama3 if text.starts_with('{') => {}
            Self::Llama3 => cursor.expect(llama3::TAG).ok()?,
            _ => return None,
        }
        opening(&mut cursor, tools).ok()
    }

    /// What a text is that follows the arguments of a call.
    pub(crate) fn closing(self, text: &str, is_whole: bool) -> Closing {
        let near = (0..=CLOSING_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
        let near = &text[..near.unwrap_or(0)];
        let is_cut = near.len() < text.len();
        let object = format!("{BEFORE}{near}");
        let mut cursor = Cursor::new(&object, is_whole && !is_cut);
        match self.close(&mut cursor) {
            Ok(()) => Closing::Closed { len: cursor.position() - BEFORE.len() },
            Err(Stop::Incomplete) if !is_whole && !is_cut => Closing::Incomplete,
            Err(_) => Closing::Other,
        }
    }

    fn close(self, cursor: &mut Cursor<'_>) -> Read<()> {
        let object = cursor.json()?;
        serde_json::from_str::<Map<String, Value>>(object).map_err(|_| Stop::NoCall)?;
        if self == Self::Llama3 { Ok(()) } else { cursor.close(tagged::CLOSE) }
    }
}

fn opening(cursor: &mut Cursor<'_>, tools: &ToolSet) -> Read<Opening> {
    let mark = |cursor: &mut Cursor<'_>, mark: &str| {
        cursor.skip_blanks();
        cursor.expect(mark)
    };
    mark(cursor, "{")?;
    cursor.skip_blanks();
    if cursor.take("\"type\"")? {
        [":", "\"function\"", ","].iter().try_for_each(|text| mark(cursor, text))?;
    }
    ["\"name\"", ":", "\""].iter().try_for_each(|text| mark(cursor, text))?;
    let name = cursor.name("\"")?;
    if name.contains('\\') || tools.get(name).is_none() {
        return Err(Stop::NoCall);
    }
    mark(cursor, ",")?;
    cursor.skip_blanks();
    if !cursor.take("\"arguments\"")? {
        cursor.expect("\"parameters\"")?;
    }
    mark(cursor, ":")?;
    cursor.skip_blanks();
    let at = cursor.position();
    cursor.expect("{")?;
    cursor.skip_blanks();
    match cursor.rest().chars().next() {
        Some('"' | '}') => Ok(Opening { name: name.to_owned(), at }),
        Some(_) => Err(Stop::NoCall),
        None => Err(Stop::Incomplete),
    }
}

/// Follows a JSON value with brackets character by character, to its end or to where it is none.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    open: Vec<char>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    More,
    /// This character closes it.
    Done,
    /// This character cannot follow.
    Broken,
}

#[derive(Clone, Debug)]
enum State {
    Value,
    ValueOrClose,
    Key,
    KeyOrClose,
    Colon,
    CommaOrClose,
    Text {
        is_key: bool,
        escape: Escape,
    },
    /// A number, or one of the three words.
    Word(String),
}

#[derive(Clone, Copy, Debug)]
enum Escape {
    None,
    Begun,
    /// So many digits are to come.
    Digits(u8),
}

/// As deep as the parser of whole calls goes.
const DEPTH_MAX: usize = 127;

/// Longer numbers are none.
const WORD_BYTES_MAX: usize = 1024;

impl Default for Scan {
    fn default() -> Self {
        Self { open: Vec::new(), state: State::Value }
    }
}

impl Scan {
    pub(crate) fn push(&mut self, c: char) -> Scanned {
        if let State::Text { is_key, escape } = self.state {
            return self.text(c, is_key, escape);
        }
        if let State::Word(word) = &mut self.state {
            if is_word(c) && word.len() < WORD_BYTES_MAX {
                word.push(c);
                return Scanned::More;
            }
            if serde_json::from_str::<Value>(word).is_err() {
                return Scanned::Broken;
            }
            self.state = State::CommaOrClose;
        }
        if matches!(c, ' ' | '\n' | '\r' | '\t') {
            return Scanned::More;
        }
        let in_list = self.open.last() == Some(&'[');
        self.state = match (&self.state, c) {
            (State::Value | State::ValueOrClose, '{' | '[') if self.open.len() < DEPTH_MAX => {
                self.open.push(c);
                if c == '{' { State::KeyOrClose } else { State::ValueOrClose }
            }
            (State::Value | State::ValueOrClose, '"') => State::Text { is_key: false, escape: Escape::None },
            (State::Value | State::ValueOrClose, c) if is_word(c) => State::Word(c.to_string()),
            (State::Key | State::KeyOrClose, '"') => State::Text { is_key: true, escape: Escape::None },
            (State::Colon, ':') => State::Value,
            (State::CommaOrClose, ',') if in_list => State::Value,
            (State::CommaOrClose, ',') => State::Key,
            (State::CommaOrClose | State::ValueOrClose, ']') if in_list => return self.close(),
            (State::CommaOrClose | State::KeyOrClose, '}') if !in_list => return self.close(),
            _ => return Scanned::Broken,
        };
        Scanned::More
    }

    fn text(&mut self, c: char, is_key: bool, escape: Escape) -> Scanned {
        let escape = match (escape, c) {
            (Escape::None, '"') => {
                self.state = if is_key { State::Colon } else { State::CommaOrClose };
                return Scanned::More;
            }
            (Escape::None, '\\') => Escape::Begun,
            (Escape::None, c) if c >= ' ' => Escape::None,
            (Escape::Begun, 'u') => Escape::Digits(4),
            (Escape::Begun, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Digits(1), c) if c.is_ascii_hexdigit() => Escape::None,
            (Escape::Digits(n), c) if c.is_ascii_hexdigit() => Escape::Digits(n - 1),
            _ => return Scanned::Broken,
        };
        self.state = State::Text { is_key, escape };
        Scanned::More
    }

    fn close(&mut self) -> Scanned {
        self.open.pop();
        self.state = State::CommaOrClose;
        if self.open.is_empty() { Scanned::Done } else { Scanned::More }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Result<usize, usize> {
        let mut scan = Scan::default();
        for (at, c) in text.char_indices() {
            match scan.push(c) {
                Scanned::More => {}
                Scanned::Done => return Ok(at + 1),
                Scanned::Broken => return Err(at),
            }
        }
        Err(text.len())
    }

    #[test]
    fn what_the_parser_of_json_takes_is_followed_to_its_end() {
        for text in [
            "{}",
            "{ \"a\" : [ ] , \"b\":[1,-2.5e+3, true,null , \"\\\"}\\u00e9\"],\"c\":{\"d\":{}}}",
            "[[],[[{}]]]",
            "{\"n\":12345678901234567890123}",
        ] {
            assert!(serde_json::from_str::<Value>(text).is_ok(), "{text}");
            assert_eq!(scan(&format!("{text}}} and more")), Ok(text.len()), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_broken_where_it_breaks() {
        for (text, at) in [
            ("{broken", 1),
            ("{,", 1),
            ("{\"a\" 1", 5),
            ("{\"a\":1 2", 7),
            ("{\"a\":tru}", 8),
            ("{\"a\":01}", 7),
            ("{\"a\":[1}", 7),
            ("{\"a\":1]", 6),
            ("{\"a\":1,}", 7),
            ("[1,]", 3),
            ("{\"a\\x", 4),
            ("{\"\\u12x4", 6),
            ("{\"a\n", 3),
        ] {
            assert_eq!(scan(text), Err(at), "{text}");
        }
        assert!(scan(&"[".repeat(200)).is_err_and(|at| at == DEPTH_MAX));
    }
}
