//! The answer to a chat, whole and in chunks.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::generate::{Ended, Generation, Piece, Shown, Timings, TokenInfo};
use crate::model::Model;
use crate::openai::{self, Logprob, Usage};
use crate::refusal::Dialect;
use crate::sse::{Events, Script, Template};

/// A whole answer.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ChatCompletion {
    pub id: String,
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub choices: Vec<ChatChoice>,
    pub usage: Usage,
    pub system_fingerprint: String,
    pub timings: Timings,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct ChatChoice {
    pub index: usize,
    pub message: Answered,
    pub logprobs: Option<ChoiceLogprobs>,
    pub finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Answered {
    pub role: &'static str,
    pub content: Option<String>,
    pub refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<MadeCall>,
}

#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct MadeCall {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub function: MadeFunction,
}

#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct MadeFunction {
    pub name: String,
    pub arguments: String,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct ChoiceLogprobs {
    pub content: Vec<Logprob>,
    pub refusal: Option<Vec<Logprob>>,
}

/// What the answer is called.
#[derive(Clone, Debug)]
pub struct Heading {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub fingerprint: String,
}

impl Heading {
    pub fn new(prefix: &str, model: &Model) -> Self {
        Heading {
            id: crate::ids::new(prefix),
            created: openai::now(),
            model: model.id.clone(),
            fingerprint: openai::fingerprint(&model.info),
        }
    }
}

/// The pieces of a finished generation as one answer.
pub fn whole(heading: Heading, generation: &Generation, pieces: Vec<Shown>) -> ChatCompletion {
    let mut choices: BTreeMap<usize, ChatChoice> = BTreeMap::new();
    for Shown { choice: index, piece } in pieces {
        let choice = choices.entry(index).or_insert_with(|| ChatChoice { index, ..ChatChoice::default() });
        choice.add(piece, &generation.model);
    }
    let mut choices: Vec<ChatChoice> = choices.into_values().collect();
    for ChatChoice { message, .. } in &mut choices {
        message.role = "assistant";
        if message.tool_calls.is_empty() {
            message.content.get_or_insert_default();
        }
    }
    ChatCompletion {
        id: heading.id,
        object: "chat.completion",
        created: heading.created,
        model: heading.model,
        choices,
        usage: Usage::from(&generation.usage),
        system_fingerprint: heading.fingerprint,
        timings: generation.usage.timings(),
    }
}

impl ChatChoice {
    fn add(&mut self, piece: Piece, model: &Model) {
        match piece {
            Piece::Text { text, tokens } => {
                if !text.is_empty() {
                    self.message.content.get_or_insert_default().push_str(&text);
                }
                if let Some(logprobs) = logprobs(model, &tokens) {
                    self.logprobs.get_or_insert_default().content.extend(logprobs.content);
                }
            }
            Piece::Reasoning(text) => {
                self.message.reasoning_content.get_or_insert_default().push_str(&text);
            }
            Piece::ToolBegin { id, name, .. } => {
                let function = MadeFunction { name, arguments: String::new() };
                self.message.tool_calls.push(MadeCall { id, kind: "function", function });
            }
            Piece::ToolArguments { index, text } => {
                if let Some(call) = self.message.tool_calls.get_mut(index) {
                    call.function.arguments.push_str(&text);
                }
            }
            Piece::Ended(ended) => {
                let has_calls = !self.message.tool_calls.is_empty();
                self.finish_reason = Some(finish_reason(&ended, has_calls));
            }
        }
    }
}

fn logprobs(model: &Model, tokens: &[TokenInfo]) -> Option<ChoiceLogprobs> {
    let content: Vec<Logprob> =
        tokens.iter().filter_map(|token| Logprob::new(&model.text.tokenizer, token)).collect();
    (!content.is_empty()).then_some(ChoiceLogprobs { content, refusal: None })
}

fn finish_reason(ended: &Ended, has_calls: bool) -> &'static str {
    match ended {
        Ended::Length => "length",
        _ if has_calls => "tool_calls",
        Ended::Complete | Ended::Stop(_) => "stop",
    }
}

/// A part of a streamed answer.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ChatChunk<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'a str,
    pub choices: Vec<ChunkChoice<'a>>,
    /// Present where it was asked for; null but in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct ChunkChoice<'a> {
    pub index: usize,
    pub delta: Delta<'a>,
    pub logprobs: Option<ChoiceLogprobs>,
    pub finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[CallDelta<'a>; 1]>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct CallDelta<'a> {
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: FunctionDelta<'a>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    pub arguments: &'a str,
}

/// Tells a chat in chunks.
pub struct Chunks {
    heading: Heading,
    model: Arc<Model>,
    tells_usage: bool,
    choices: usize,
    /// By choice: whether a tool was called.
    has_calls: Vec<bool>,
    /// By choice: how its text is told.
    texts: Vec<Template>,
}

impl Chunks {
    pub fn new(heading: Heading, model: Arc<Model>, choices: usize, usage: Telling) -> Self {
        let tells_usage = usage == Telling::Usage;
        let has_calls = vec![false; choices];
        let mut chunks = Chunks { heading, model, tells_usage, choices, has_calls, texts: Vec::new() };
        let template = |index| {
            let delta = Delta { content: Some(Template::BLANK), ..Delta::default() };
            let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
            Template::new(&chunks.chunk(vec![choice]))
        };
        chunks.texts = (0..choices).map(template).collect();
        chunks
    }

    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> ChatChunk<'a> {
        ChatChunk {
            id: &self.heading.id,
            object: "chat.completion.chunk",
            created: self.heading.created,
            model: &self.heading.model,
            system_fingerprint: &self.heading.fingerprint,
            choices,
            usage: self.tells_usage.then_some(None),
            timings: None,
        }
    }

    fn delta(&self, index: usize, delta: Delta<'_>, logprobs: Option<ChoiceLogprobs>, events: &mut Events) {
        events.data(&self.chunk(vec![ChunkChoice { index, delta, logprobs, finish_reason: None }]));
    }
}

/// Whether a stream ends with its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    Usage,
    Text,
}

impl Script for Chunks {
    const DIALECT: Dialect = Dialect::OpenAi;

    fn begin(&mut self, _: &Generation, events: &mut Events) {
        for index in 0..self.choices {
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            self.delta(index, delta, None, events);
        }
    }

    fn show(&mut self, shown: Shown, _: &Generation, events: &mut Events) {
        let Shown { choice, piece } = shown;
        match piece {
            Piece::Text { text, tokens } => {
                let Some(logprobs) = logprobs(&self.model, &tokens) else {
                    return events.templated(&self.texts[choice], &text);
                };
                self.delta(
                    choice,
                    Delta { content: Some(&text), ..Delta::default() },
                    Some(logprobs),
                    events,
                );
            }
            Piece::Reasoning(text) => {
                let delta = Delta { reasoning_content: Some(&text), ..Delta::default() };
                self.delta(choice, delta, None, events);
            }
            Piece::ToolBegin { index, id, name } => {
                self.has_calls[choice] = true;
                let function = FunctionDelta { name: Some(&name), arguments: "" };
                let call = CallDelta { index, id: Some(&id), kind: Some("function"), function };
                let delta = Delta { tool_calls: Some([call]), ..Delta::default() };
                self.delta(choice, delta, None, events);
            }
            Piece::ToolArguments { index, text } => {
                let function = FunctionDelta { name: None, arguments: &text };
                let call = CallDelta { index, id: None, kind: None, function };
                let delta = Delta { tool_calls: Some([call]), ..Delta::default() };
                self.delta(choice, delta, None, events);
            }
            Piece::Ended(ended) => {
                let finish_reason = Some(finish_reason(&ended, self.has_calls[choice]));
                let last =
                    ChunkChoice { index: choice, delta: Delta::default(), logprobs: None, finish_reason };
                events.data(&self.chunk(vec![last]));
            }
        }
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        if self.tells_usage {
            let usage = Some(Some(Usage::from(&generation.usage)));
            let timings = Some(generation.usage.timings());
            events.data(&ChatChunk { usage, timings, ..self.chunk(Vec::new()) });
        }
        events.done();
    }
}
