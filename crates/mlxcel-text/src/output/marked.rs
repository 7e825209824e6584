//! Answers in which reasoning and calls stand between markers, which is every known form but harmony.

use super::emitter::Emitter;
use super::{OutputFormat, first_marker, undecided};
use crate::reasoning::ReasoningStyle;
use crate::tools::{Closing, Parsed, Scan, Scanned, ToolSet, ToolSyntax};

/// What may be a call is looked at with every portion while it is short.
const SHORT_BYTES: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct Marked {
    syntax: Option<ToolSyntax>,
    reasoning: Option<ReasoningStyle>,
    tools: ToolSet,
    /// What is not decided yet.
    buffer: String,
    mode: Mode,
    /// Nothing but blanks came yet.
    is_first: bool,
    /// How much of the buffer was looked at as a call.
    tried: usize,
    /// How much of it was searched for the mark that closes a call.
    searched: usize,
    calls: Calls,
    /// Follows the arguments of the call that has begun.
    scan: Scan,
}

/// When a call is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    Whole,
    /// As it comes, where its form allows that.
    Streamed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// No answer yet.
    Start,
    /// A call was the last thing.
    AfterCall,
    Reasoning,
    Content,
    /// The buffer begins with what may be a call.
    Call,
    /// A call has begun, and its arguments come.
    Arguments,
    /// The arguments are over, and what closes the call comes.
    Closing,
}

/// Whether the answer may go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    GoesOn,
    Ended,
}

impl Marked {
    pub(super) fn new(format: OutputFormat, prompt: &str, tools: ToolSet) -> Self {
        let is_open = format.reasoning.is_some_and(|style| style.is_open_at_end(prompt));
        Self {
            syntax: format.tools.filter(|_| !tools.is_empty()),
            reasoning: format.reasoning,
            tools,
            buffer: String::new(),
            mode: if is_open { Mode::Reasoning } else { Mode::Start },
            is_first: true,
            tried: 0,
            searched: 0,
            calls: Calls::Whole,
            scan: Scan::default(),
        }
    }

    pub(super) fn stream_arguments(&mut self) {
        self.calls = Calls::Streamed;
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Emitter) {
        self.buffer.push_str(text);
        self.advance(Input::GoesOn, out);
    }

    pub(super) fn finish(&mut self, out: &mut Emitter) {
        self.advance(Input::Ended, out);
        let rest = std::mem::take(&mut self.buffer);
        match self.mode {
            Mode::Reasoning => out.reasoning(&rest),
            Mode::Arguments | Mode::Closing => {
                out.call_ends();
                out.content(&rest);
            }
            _ => out.content(&rest),
        }
    }

    /// Goes on as long as something was decided.
    fn advance(&mut self, input: Input, out: &mut Emitter) {
        if self.mode == Mode::Reasoning && self.is_first {
            out.reasoning_begins();
            self.is_first = false;
        }
        while !self.buffer.is_empty()
            && match self.mode {
                Mode::Start | Mode::AfterCall => self.start(input, out),
                Mode::Reasoning => self.reasoning(out),
                Mode::Content => self.content(out),
                Mode::Call => self.call(input, out),
                Mode::Arguments => self.arguments(out),
                Mode::Closing => self.closing(input, out),
            }
        {}
    }

    fn start(&mut self, input: Input, out: &mut Emitter) -> bool {
        let blanks = self.buffer.len() - self.buffer.trim_start().len();
        let rest = &self.buffer[blanks..];
        if rest.is_empty() {
            return false;
        }
        if let Some(style) = self.reasoning.filter(|_| self.is_first) {
            let (open, close) = style.markers();
            let is_open = rest.starts_with(open);
            // Some models close what they have not opened.
            if is_open || rest.starts_with(close) {
                self.buffer.drain(..blanks + if is_open { open } else { close }.len());
                out.reasoning_begins();
                self.is_first = false;
                self.mode = if is_open { Mode::Reasoning } else { Mode::Start };
                return true;
            }
            if (open.starts_with(rest) || close.starts_with(rest)) && input == Input::GoesOn {
                return false;
            }
        }
        let separator = self.syntax.filter(|_| self.mode == Mode::AfterCall).and_then(ToolSyntax::separator);
        if separator.is_some_and(|separator| rest.starts_with(separator)) {
            self.buffer.drain(..=blanks);
            self.mode = Mode::Start;
            return true;
        }
        let is_bare = self.syntax.is_some_and(|syntax| syntax.begins_bare(rest));
        self.mode = if is_bare { Mode::Call } else { Mode::Content };
        if is_bare {
            self.emit(blanks, out);
        }
        self.is_first = false;
        true
    }

    fn reasoning(&mut self, out: &mut Emitter) -> bool {
        let Some(style) = self.reasoning else { return false };
        let (_, close) = style.markers();
        if let Some(at) = self.buffer.find(close) {
            out.reasoning(&self.buffer[..at]);
            self.buffer.drain(..at + close.len());
            out.reasoning_ends();
            self.mode = Mode::Start;
            return true;
        }
        let decided = self.buffer.len() - undecided(&self.buffer, &[close]);
        out.reasoning(&self.buffer[..decided]);
        self.buffer.drain(..decided);
        false
    }

    fn content(&mut self, out: &mut Emitter) -> bool {
        let markers = self.syntax.map_or(&[][..], ToolSyntax::markers);
        if let Some((at, _)) = first_marker(&self.buffer, markers) {
            self.emit(at, out);
            self.mode = Mode::Call;
            return true;
        }
        self.emit(self.buffer.len() - undecided(&self.buffer, markers), out);
        false
    }

    fn call(&mut self, input: Input, out: &mut Emitter) -> bool {
        let streaming = self.syntax.filter(|_| self.calls == Calls::Streamed);
        if let Some(opening) = streaming.and_then(|syntax| syntax.opening(&self.buffer, &self.tools)) {
            self.buffer.drain(..opening.at);
            out.call_begins(None, opening.name);
            self.scan = Scan::default();
            (self.tried, self.searched) = (0, 0);
            self.mode = Mode::Arguments;
            return true;
        }
        let is_worth_a_look = self.syntax.is_some_and(|syntax| self.is_worth_a_look(syntax, input));
        self.searched = self.buffer.len();
        let Some(syntax) = self.syntax.filter(|_| is_worth_a_look) else { return false };
        match syntax.parse(&self.buffer, &self.tools, input == Input::Ended) {
            Parsed::Incomplete if input == Input::GoesOn => {
                self.tried = self.buffer.len();
                return false;
            }
            Parsed::Calls { len, calls } => {
                self.buffer.drain(..len);
                calls.into_iter().for_each(|call| out.call(call));
                self.mode = Mode::AfterCall;
            }
            Parsed::NoCall | Parsed::Incomplete => {
                let marker = first_marker(&self.buffer, syntax.markers()).filter(|(at, _)| *at == 0);
                self.emit(marker.map_or(1, |(_, marker)| marker.len()), out);
                self.mode = Mode::Content;
            }
        }
        (self.tried, self.searched) = (0, 0);
        true
    }

    fn arguments(&mut self, out: &mut Emitter) -> bool {
        let mut scanned = Scanned::More;
        let mut end = self.buffer.len();
        for (at, c) in self.buffer.char_indices() {
            scanned = self.scan.push(c);
            if scanned != Scanned::More {
                end = if scanned == Scanned::Done { at + c.len_utf8() } else { at };
                break;
            }
        }
        out.arguments(&self.buffer[..end]);
        self.buffer.drain(..end);
        match scanned {
            Scanned::More => return false,
            Scanned::Done => self.mode = Mode::Closing,
            Scanned::Broken => {
                out.call_ends();
                self.mode = Mode::Content;
            }
        }
        true
    }

    fn closing(&mut self, input: Input, out: &mut Emitter) -> bool {
        let Some(syntax) = self.syntax else { return false };
        match syntax.closing(&self.buffer, input == Input::Ended) {
            Closing::Incomplete => return false,
            Closing::Closed { len } => {
                self.buffer.drain(..len);
                self.mode = Mode::AfterCall;
            }
            Closing::Other => self.mode = Mode::Content,
        }
        out.call_ends();
        true
    }

    /// Looking at a long call with every portion would take time by the square of its length. So it is looked at where
    /// a mark closes it, or, in forms without such a mark, whenever it has grown by a good part; at the latest at the end.
    fn is_worth_a_look(&self, syntax: ToolSyntax, input: Input) -> bool {
        if self.buffer.len() < SHORT_BYTES || input == Input::Ended {
            return true;
        }
        let closers = syntax.closers();
        let overlap = closers.iter().map(|mark| mark.len()).max().unwrap_or(0);
        let from =
            (0..=self.searched.saturating_sub(overlap)).rev().find(|&at| self.buffer.is_char_boundary(at));
        let new = &self.buffer[from.unwrap_or(0)..];
        match closers {
            [] => self.buffer.len() - self.tried > self.tried / 8,
            _ => closers.iter().any(|mark| new.contains(mark)),
        }
    }

    fn emit(&mut self, len: usize, out: &mut Emitter) {
        out.content(&self.buffer[..len]);
        self.buffer.drain(..len);
    }
}
