//! What a model wrote, taken apart as it arrives: the answer, the reasoning before it and the calls of tools.
//!
//! An [`OutputFormat`] says how a model marks these; [`OutputFormat::detect`] reads it from the chat template. An
//! [`OutputParser`] is fed text in any portions and gives the same events however it was cut. Text is streamed; a call
//! is given once it is complete and well formed, and what only looked like a call is text. A parser that is
//! [`streamed`](OutputParser::streamed) gives the arguments of a call as they come, where the form allows it. Blanks
//! around calls and around reasoning, which templates put there, are dropped; nothing else ever is.
//!
//! It does not know whether a tool exists or its arguments fit; only where a format has no marker must the name be one
//! of the request's tools.

mod constrain;
mod emitter;
mod harmony;
mod marked;

use emitter::Emitter;
use harmony::Harmony;
use marked::Marked;

use crate::reasoning::ReasoningStyle;
use crate::tools::{ToolSet, ToolSyntax};

/// A part of what a model wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    Content(String),
    Reasoning(String),
    /// A call begins. `id` is there only if the model wrote one.
    ToolCallBegin {
        index: usize,
        id: Option<String>,
        name: String,
    },
    /// The arguments as JSON, as the model wrote them.
    ToolCallArguments {
        index: usize,
        text: String,
    },
    ToolCallEnd {
        index: usize,
    },
}

/// How a model marks calls and reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputFormat {
    /// `None` for a model that has no known form of calling tools.
    pub tools: Option<ToolSyntax>,
    pub reasoning: Option<ReasoningStyle>,
}

impl OutputFormat {
    /// Reads the format from the source of a chat template.
    pub fn detect(template: &str) -> Self {
        Self { tools: ToolSyntax::detect(template), reasoning: ReasoningStyle::detect(template) }
    }

    /// Whether control tokens must be part of the text that the parser is given.
    pub fn needs_control_tokens(&self) -> bool {
        self.tools.is_some_and(ToolSyntax::needs_control_tokens)
            || self.reasoning.is_some_and(ReasoningStyle::needs_control_tokens)
    }

    /// A parser of one answer. `prompt` is the rendered prompt, or its end: it tells whether the template has already
    /// opened the reasoning. Without tools, nothing is taken for a call.
    pub fn parser(&self, prompt: &str, tools: ToolSet) -> OutputParser {
        let is_harmony =
            self.tools == Some(ToolSyntax::Harmony) || self.reasoning == Some(ReasoningStyle::Harmony);
        let kind = if is_harmony {
            Kind::Harmony(Harmony::new(tools))
        } else {
            Kind::Marked(Marked::new(*self, prompt, tools))
        };
        OutputParser { kind, out: Emitter::default() }
    }
}

/// Takes one answer apart.
#[derive(Clone, Debug)]
pub struct OutputParser {
    kind: Kind,
    out: Emitter,
}

#[derive(Clone, Debug)]
enum Kind {
    Marked(Marked),
    Harmony(Harmony),
}

impl OutputParser {
    /// Gives the arguments of calls as they come, from where the name of a tool and the opening of the arguments were
    /// read: in forms that are an object with a name and arguments, in that order. Should the arguments turn out to be no
    /// JSON, the call ends there, and what follows is text; should the answer break off in them, they stay as they are.
    pub fn streamed(mut self) -> Self {
        if let Kind::Marked(parser) = &mut self.kind {
            parser.stream_arguments();
        }
        self
    }

    /// Takes the next portion and gives what is certain.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        match &mut self.kind {
            Kind::Marked(parser) => parser.push(text, &mut self.out),
            Kind::Harmony(parser) => parser.push(text, &mut self.out),
        }
        self.out.take()
    }

    /// Ends the answer: what was held is given.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        match &mut self.kind {
            Kind::Marked(parser) => parser.finish(&mut self.out),
            Kind::Harmony(parser) => parser.finish(&mut self.out),
        }
        self.out.finish();
        self.out.take()
    }
}

/// Where the first of several markers stands in a text.
pub(crate) fn first_marker<'m>(text: &str, markers: &[&'m str]) -> Option<(usize, &'m str)> {
    let found = markers.iter().filter_map(|marker| text.find(marker).map(|at| (at, *marker)));
    found.min_by_key(|(at, marker)| (*at, std::cmp::Reverse(marker.len())))
}

/// How many bytes at the end of a text might be the beginning of a marker.
pub(crate) fn undecided(text: &str, markers: &[&str]) -> usize {
    let longest = |marker: &&str| {
        let starts = (1..marker.len()).rev().filter(|&len| marker.is_char_boundary(len));
        starts.into_iter().find(|&len| text.ends_with(&marker[..len])).unwrap_or(0)
    };
    markers.iter().map(longest).max().unwrap_or(0)
}
