//! The answer to a completion, whole and in chunks.

use std::collections::BTreeMap;
use std::sync::Arc;

use mlxcel_text::SpecialText;
use schemars::JsonSchema;
use serde::Serialize;

use crate::generate::{Ended, Generation, Piece, Shown, Timings, TokenInfo};
use crate::model::Model;
use crate::openai::{Logprob, Usage};
use crate::refusal::{Dialect, Refusal};
use crate::routes::chat::{Heading, Telling};
use crate::sse::{Events, Script, Template};

#[derive(Debug, JsonSchema, Serialize)]
pub struct Completion<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'a str,
    pub choices: Vec<CompletionChoice>,
    /// In a stream only where it was asked for, in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct CompletionChoice {
    pub text: String,
    pub index: usize,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<&'static str>,
}

/// Log-probabilities as columns.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct CompletionLogprobs {
    pub tokens: Vec<String>,
    pub token_logprobs: Vec<f32>,
    pub top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where each token's text begins, in characters.
    pub text_offset: Vec<usize>,
}

/// What stands before each choice: its prompt, where the client wants it.
#[derive(Clone, Debug)]
pub struct Echo(Vec<String>);

impl Echo {
    pub fn new(model: &Model, echo: bool, prompts: &[Vec<u32>], n: usize) -> Result<Self, Refusal> {
        let text = |prompt: &Vec<u32>| match echo {
            false => Ok(String::new()),
            true => model.text.tokenizer.decode(prompt, SpecialText::Hide),
        };
        let texts: Result<Vec<String>, _> = prompts.iter().map(text).collect();
        let texts = texts.map_err(|error| Refusal::field("prompt", error.to_string()))?;
        Ok(Echo(texts.into_iter().flat_map(|text| vec![text; n]).collect()))
    }
}

fn finish_reason(ended: &Ended) -> &'static str {
    match ended {
        Ended::Complete | Ended::Stop(_) => "stop",
        Ended::Length => "length",
    }
}

impl CompletionLogprobs {
    fn add(&mut self, model: &Model, tokens: &[TokenInfo], offset: &mut usize) {
        for logprob in tokens.iter().filter_map(|token| Logprob::new(&model.text.tokenizer, token)) {
            self.text_offset.push(*offset);
            *offset += logprob.token.chars().count();
            self.tokens.push(logprob.token);
            self.token_logprobs.push(logprob.logprob);
            let top = logprob.top_logprobs.into_iter().map(|top| (top.token, top.logprob));
            self.top_logprobs.push(top.collect());
        }
    }
}

fn logprobs(model: &Model, tokens: &[TokenInfo], offset: &mut usize) -> Option<CompletionLogprobs> {
    let mut logprobs = CompletionLogprobs::default();
    logprobs.add(model, tokens, offset);
    (!logprobs.tokens.is_empty()).then_some(logprobs)
}

/// The pieces of a finished generation as one answer.
pub fn whole(
    heading: Heading,
    generation: &Generation,
    pieces: Vec<Shown>,
    echo: &Echo,
) -> serde_json::Value {
    let start = |(index, text): (usize, &String)| CompletionChoice {
        text: text.clone(),
        index,
        ..CompletionChoice::default()
    };
    let mut choices: Vec<CompletionChoice> = echo.0.iter().enumerate().map(start).collect();
    let mut offsets = vec![0; choices.len()];
    for Shown { choice: index, piece } in pieces {
        let choice = &mut choices[index];
        match piece {
            Piece::Text { text, tokens } => {
                choice.text.push_str(&text);
                if tokens.iter().any(|token| token.logprobs.is_some()) {
                    let logprobs = choice.logprobs.get_or_insert_default();
                    logprobs.add(&generation.model, &tokens, &mut offsets[index]);
                }
            }
            Piece::Ended(ended) => choice.finish_reason = Some(finish_reason(&ended)),
            Piece::Reasoning(_) | Piece::ToolBegin { .. } | Piece::ToolArguments { .. } => {}
        }
    }
    let usage = Some(Usage::from(&generation.usage));
    let timings = Some(generation.usage.timings());
    serde_json::json!(Completion { choices, usage, timings, ..heading.completion() })
}

impl Heading {
    fn completion(&self) -> Completion<'_> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint,
            choices: Vec::new(),
            usage: None,
            timings: None,
        }
    }
}

/// Tells a completion in chunks.
pub struct Chunks {
    heading: Heading,
    model: Arc<Model>,
    echo: Echo,
    offsets: Vec<usize>,
    telling: Telling,
    /// By choice: how its text is told.
    texts: Vec<Template>,
}

impl Chunks {
    pub fn new(heading: Heading, model: Arc<Model>, echo: Echo, telling: Telling) -> Self {
        let offsets = vec![0; echo.0.len()];
        let template = |index| {
            let text = Template::BLANK.to_string();
            let choice = CompletionChoice { text, index, ..CompletionChoice::default() };
            Template::new(&Completion { choices: vec![choice], ..heading.completion() })
        };
        let texts = (0..echo.0.len()).map(template).collect();
        Chunks { heading, model, echo, offsets, telling, texts }
    }

    fn chunk(&self, choice: CompletionChoice, events: &mut Events) {
        events.data(&Completion { choices: vec![choice], ..self.heading.completion() });
    }
}

impl Script for Chunks {
    const DIALECT: Dialect = Dialect::OpenAi;

    fn begin(&mut self, _: &Generation, events: &mut Events) {
        for (index, text) in self.echo.0.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            let choice = CompletionChoice { text: text.clone(), index, ..CompletionChoice::default() };
            self.chunk(choice, events);
        }
    }

    fn show(&mut self, shown: Shown, _: &Generation, events: &mut Events) {
        let Shown { choice: index, piece } = shown;
        match piece {
            Piece::Text { text, tokens } => {
                let logprobs = logprobs(&self.model, &tokens, &mut self.offsets[index]);
                if logprobs.is_none() {
                    return events.templated(&self.texts[index], &text);
                }
                self.chunk(CompletionChoice { text, index, logprobs, finish_reason: None }, events);
            }
            Piece::Ended(ended) => {
                let finish_reason = Some(finish_reason(&ended));
                self.chunk(CompletionChoice { index, finish_reason, ..CompletionChoice::default() }, events);
            }
            Piece::Reasoning(_) | Piece::ToolBegin { .. } | Piece::ToolArguments { .. } => {}
        }
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        if self.telling == Telling::Usage {
            let usage = Some(Usage::from(&generation.usage));
            let timings = Some(generation.usage.timings());
            events.data(&Completion { usage, timings, ..self.heading.completion() });
        }
        events.done();
    }
}
