//! Calls of tools in the forms that models write them.
//!
//! A [`ToolSyntax`] is one family of forms; `parse` reads one from the beginning of a text. Reading is decided by the
//! beginning alone: once a text is a call, or is none, nothing that follows changes that.

mod cursor;
mod deepseek;
mod force;
mod llama3;
mod mistral;
mod object;
mod partial;
mod set;
mod tagged;

pub use force::{ForcedCalls, ToolChoice};
pub(crate) use object::ToolCall;
pub(crate) use partial::{Closing, Scan, Scanned};
pub use set::{Tool, ToolSet};

use cursor::{Cursor, Stop};

/// A family of forms in which models call tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSyntax {
    /// `<tool_call>` around an object: Hermes, Qwen and many others.
    Hermes,
    /// `<tool_call>` around `<function=…>` and `<parameter=…>`: Qwen3-Coder, Nemotron 3.
    QwenXml,
    /// `<tool_call>` around a name, `<arg_key>` and `<arg_value>`: GLM 4.5 and later.
    Glm,
    /// An object with `name` and `parameters`, perhaps after `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS]` before a list of objects: Mistral up to 2024.
    MistralList,
    /// `[TOOL_CALLS]name[ARGS]{…}`: Mistral since 2025.
    Mistral,
    /// Names and fenced JSON between `<｜tool▁call▁begin｜>` and its like: DeepSeek V3 and R1.
    DeepSeek,
    /// The same without fences: DeepSeek V3.1.
    DeepSeek31,
    /// A message to `functions.name` on the commentary channel: gpt-oss.
    Harmony,
}

/// What a text that begins with a marker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    Incomplete,
    Calls { len: usize, calls: Vec<ToolCall> },
    NoCall,
}

/// The marks in a template by which a form is known; all must be there, and the first match counts.
const MARKS: &[(ToolSyntax, &[&str])] = &[
    (ToolSyntax::Harmony, &["<|channel|>", "<|message|>", "functions."]),
    (ToolSyntax::DeepSeek, &["<｜tool▁call▁begin｜>", "```json"]),
    (ToolSyntax::DeepSeek31, &["<｜tool▁call▁begin｜>"]),
    (ToolSyntax::Mistral, &["[TOOL_CALLS]", "[ARGS]"]),
    (ToolSyntax::MistralList, &["[TOOL_CALLS]"]),
    (ToolSyntax::QwenXml, &["<tool_call>", "<function="]),
    (ToolSyntax::Glm, &["<tool_call>", "<arg_key>"]),
    (ToolSyntax::Hermes, &["<tool_call>"]),
    (ToolSyntax::Llama3, &["<|start_header_id|>", "{\"name\": function name, \"parameters\":"]),
];

/// Marks of forms that are not known, in templates that also have marks of one that is: MiniMax and Apriel.
const OTHER_FORMS: &[&str] = &["<invoke name=", "<tool_calls>["];

impl ToolSyntax {
    /// Reads the form from the source of a chat template.
    pub fn detect(template: &str) -> Option<Self> {
        if OTHER_FORMS.iter().any(|mark| template.contains(mark)) {
            return None;
        }
        let fits = |marks: &[&str]| marks.iter().all(|mark| template.contains(mark));
        MARKS.iter().find(|(_, marks)| fits(marks)).map(|(syntax, _)| *syntax)
    }

    /// Whether the marks are control tokens in the models that use them.
    pub(crate) fn needs_control_tokens(self) -> bool {
        !matches!(self, Self::Hermes | Self::QwenXml | Self::Glm)
    }

    /// What a call begins with.
    pub(crate) fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::QwenXml | Self::Glm => &[tagged::OPEN],
            Self::Llama3 => &[llama3::TAG],
            Self::MistralList | Self::Mistral => &[mistral::MARK],
            Self::DeepSeek | Self::DeepSeek31 => &[deepseek::BLOCK, deepseek::CALL],
            Self::Harmony => &[],
        }
    }

    /// What every call of a form ends with, if it has such a mark.
    pub(crate) fn closers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::QwenXml | Self::Glm => &[tagged::CLOSE],
            Self::DeepSeek | Self::DeepSeek31 => &[deepseek::BLOCK_END, deepseek::CALL_END],
            Self::Llama3 | Self::MistralList | Self::Mistral | Self::Harmony => &[],
        }
    }

    /// Whether an answer that begins like this may be a call without a marker.
    pub(crate) fn begins_bare(self, text: &str) -> bool {
        self == Self::Llama3 && text.starts_with('{')
    }

    /// What may stand between two calls, besides blanks.
    pub(crate) fn separator(self) -> Option<char> {
        (self == Self::Llama3).then_some(';')
    }

    /// Reads calls from a text that begins with a marker, or that [`begins_bare`](Self::begins_bare) accepts.
    pub(crate) fn parse(self, text: &str, tools: &ToolSet, is_whole: bool) -> Parsed {
        let mut cursor = Cursor::new(text, is_whole);
        let calls = match self {
            Self::Hermes | Self::QwenXml | Self::Glm => tagged::parse(&mut cursor, tools),
            Self::Llama3 => llama3::parse(&mut cursor, tools),
            Self::MistralList | Self::Mistral => mistral::parse(&mut cursor),
            Self::DeepSeek | Self::DeepSeek31 => deepseek::parse(&mut cursor),
            Self::Harmony => Err(Stop::NoCall),
        };
        match calls {
            Ok(calls) if !calls.is_empty() => Parsed::Calls { len: cursor.position(), calls },
            Err(Stop::Incomplete) => Parsed::Incomplete,
            Ok(_) | Err(Stop::NoCall) => Parsed::NoCall,
        }
    }
}
