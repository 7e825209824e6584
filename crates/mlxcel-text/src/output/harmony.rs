//! Answers of gpt-oss: messages with a header that names a channel and perhaps a recipient.
//! The form is described in <https://cookbook.openai.com/articles/openai-harmony>.

use super::emitter::Emitter;
use super::{first_marker, undecided};
use crate::tools::{ToolCall, ToolSet};

const MESSAGE: &str = "<|message|>";
/// What is longer is no header.
const HEADER_BYTES_MAX: usize = 1024;
const HEADER: &[&str] = &["<|start|>", "<|channel|>"];
/// What ends the text of a message. The last two begin the next one.
const BODY_ENDS: &[&str] = &["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"];

#[derive(Clone, Debug)]
pub(super) struct Harmony {
    tools: ToolSet,
    buffer: String,
    state: State,
    /// The header of the message in `state`, to give it back should it be no call.
    header: String,
    /// How much of the buffer was searched for the end of a call.
    searched: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// After the prompt, which ends in the middle of a header.
    Begin,
    /// Between messages.
    Between,
    Header,
    Analysis,
    Final,
    Call {
        name: String,
    },
}

impl Harmony {
    pub(super) fn new(tools: ToolSet) -> Self {
        Self { tools, buffer: String::new(), state: State::Begin, header: String::new(), searched: 0 }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Emitter) {
        self.buffer.push_str(text);
        while !self.buffer.is_empty() && self.advance(out) {}
    }

    pub(super) fn finish(&mut self, out: &mut Emitter) {
        let rest = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, State::Begin) {
            State::Analysis => out.reasoning(&rest),
            State::Call { name } => self.call(name, &rest, "", out),
            _ => out.content(&rest),
        }
    }

    fn advance(&mut self, out: &mut Emitter) -> bool {
        match &self.state {
            State::Begin => self.begin(),
            State::Between => self.between(out),
            State::Header => self.header(out),
            State::Analysis | State::Final | State::Call { .. } => self.body(out),
        }
    }

    fn begin(&mut self) -> bool {
        const BEGINNINGS: [&str; 3] = ["<|channel|>", "<|start|>", " to="];
        if BEGINNINGS.iter().any(|start| start.len() > self.buffer.len() && start.starts_with(&self.buffer)) {
            return false;
        }
        let is_header = BEGINNINGS.iter().any(|start| self.buffer.starts_with(start));
        self.state = if is_header { State::Header } else { State::Between };
        true
    }

    /// Text here belongs to no message; it is shown rather than lost.
    fn between(&mut self, out: &mut Emitter) -> bool {
        if let Some((at, _)) = first_marker(&self.buffer, HEADER) {
            out.content(&self.buffer[..at]);
            self.buffer.drain(..at);
            self.state = State::Header;
            return true;
        }
        let decided = self.buffer.len() - undecided(&self.buffer, HEADER);
        out.content(&self.buffer[..decided]);
        self.buffer.drain(..decided);
        false
    }

    fn header(&mut self, out: &mut Emitter) -> bool {
        let at = match self.buffer.find(MESSAGE) {
            Some(at) if at <= HEADER_BYTES_MAX => at,
            None if self.buffer.len() < HEADER_BYTES_MAX + MESSAGE.len() => return false,
            _ => {
                out.content(&self.buffer[..1]);
                self.buffer.drain(..1);
                self.state = State::Between;
                return true;
            }
        };
        self.header = self.buffer.drain(..at + MESSAGE.len()).collect();
        self.searched = 0;
        let header = &self.header[..at];
        let channel = header.split("<|channel|>").nth(1).unwrap_or_default().trim_start();
        self.state = match recipient(header).filter(|_| !self.tools.is_empty()) {
            Some(name) => State::Call { name: name.to_owned() },
            None if channel.starts_with("analysis") => State::Analysis,
            None => State::Final,
        };
        if self.state == State::Analysis {
            out.reasoning_begins();
        }
        true
    }

    fn body(&mut self, out: &mut Emitter) -> bool {
        let found = self.end_of_body();
        if let (None, State::Call { .. }) = (found, &self.state) {
            self.searched = self.buffer.len();
            return false;
        }
        let end = found.map_or(self.buffer.len() - undecided(&self.buffer, BODY_ENDS), |(at, _)| at);
        let text: String = self.buffer.drain(..end).collect();
        let is_analysis = self.state == State::Analysis;
        if is_analysis {
            out.reasoning(&text);
        } else if self.state == State::Final {
            out.content(&text);
        }
        let Some((_, marker)) = found else { return false };
        let begins_next = HEADER.contains(&marker);
        if !begins_next {
            self.buffer.drain(..marker.len());
        }
        let next = if begins_next { State::Header } else { State::Between };
        match std::mem::replace(&mut self.state, next) {
            State::Call { name } => self.call(name, &text, if begins_next { "" } else { marker }, out),
            State::Analysis => out.reasoning_ends(),
            _ => {}
        }
        true
    }

    /// The first mark that ends the text; what was searched before is not searched again.
    fn end_of_body(&self) -> Option<(usize, &'static str)> {
        let longest = BODY_ENDS.iter().map(|mark| mark.len()).max().unwrap_or(0);
        let from =
            (0..=self.searched.saturating_sub(longest)).rev().find(|&at| self.buffer.is_char_boundary(at));
        let from = from.unwrap_or(0);
        first_marker(&self.buffer[from..], BODY_ENDS).map(|(at, mark)| (from + at, mark))
    }

    /// A call, or, if its arguments are no object, the text as the model wrote it.
    fn call(&mut self, name: String, text: &str, end: &str, out: &mut Emitter) {
        match ToolCall::with_arguments(name, text.trim()) {
            Some(call) => out.call(call),
            None => {
                out.content(&self.header);
                out.content(text);
                out.content(end);
            }
        }
    }
}

/// The function a header is addressed to.
fn recipient(header: &str) -> Option<&str> {
    let (_, after) = header.split_once("to=functions.")?;
    let name = after.split(|c: char| c.is_whitespace() || c == '<').next()?;
    (!name.is_empty()).then_some(name)
}
