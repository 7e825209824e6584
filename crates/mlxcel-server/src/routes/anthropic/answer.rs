//! Answers of Anthropic's interface: a message of blocks, whole and as events.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::generate::{Ended, Generation, Piece, Shown};
use crate::refusal::Dialect;
use crate::sse::{Events, Script};

#[derive(Debug, JsonSchema, Serialize)]
pub struct MessageObject {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub role: &'static str,
    pub model: String,
    pub content: Vec<AnswerBlock>,
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
    pub usage: Usage,
}

#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnswerBlock {
    Text { text: String },
    Thinking { thinking: String, signature: String },
    ToolUse { id: String, name: String, input: Value },
}

/// Tokens that were found in the cache are counted apart from those that were computed.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Usage {
    pub input_tokens: usize,
    pub cache_creation_input_tokens: usize,
    pub cache_read_input_tokens: usize,
    pub output_tokens: usize,
}

impl Usage {
    fn of(generation: &Generation) -> Self {
        let usage = &generation.usage;
        Usage {
            input_tokens: usage.prompt - usage.cached.min(usage.prompt),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached,
            output_tokens: usage.made,
        }
    }
}

fn message(generation: &Generation) -> MessageObject {
    MessageObject {
        id: crate::ids::new("msg_"),
        kind: "message",
        role: "assistant",
        model: generation.model.id.clone(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: Usage::of(generation),
    }
}

/// The pieces of a finished generation as one message.
pub fn whole(generation: &Generation, pieces: Vec<Shown>) -> MessageObject {
    let mut whole = message(generation);
    let mut arguments = String::new();
    for Shown { piece, .. } in pieces {
        match (piece, whole.content.last_mut()) {
            (Piece::Text { text: more, .. }, Some(AnswerBlock::Text { text })) => text.push_str(&more),
            (Piece::Text { text, .. }, _) if !text.is_empty() => {
                whole.content.push(AnswerBlock::Text { text })
            }
            (Piece::Text { .. }, _) => {}
            (Piece::Reasoning(more), Some(AnswerBlock::Thinking { thinking, .. })) => {
                thinking.push_str(&more)
            }
            (Piece::Reasoning(thinking), _) => {
                whole.content.push(AnswerBlock::Thinking { thinking, signature: String::new() });
            }
            (Piece::ToolBegin { id, name, .. }, _) => {
                arguments.clear();
                whole.content.push(AnswerBlock::ToolUse { id, name, input: Value::Object(Map::new()) });
            }
            (Piece::ToolArguments { text, .. }, Some(AnswerBlock::ToolUse { input, .. })) => {
                arguments.push_str(&text);
                if let Ok(parsed) = serde_json::from_str(&arguments) {
                    *input = parsed;
                }
            }
            (Piece::ToolArguments { .. }, _) => {}
            (Piece::Ended(ended), _) => {
                let has_calls = whole.content.iter().any(|b| matches!(b, AnswerBlock::ToolUse { .. }));
                (whole.stop_reason, whole.stop_sequence) = stopped(ended, has_calls);
            }
        }
    }
    whole
}

fn stopped(ended: Ended, has_calls: bool) -> (Option<&'static str>, Option<String>) {
    match ended {
        Ended::Length => (Some("max_tokens"), None),
        Ended::Complete if has_calls => (Some("tool_use"), None),
        Ended::Complete => (Some("end_turn"), None),
        Ended::Stop(stop) => (Some("stop_sequence"), Some(stop)),
    }
}

/// Tells a message as events: blocks begin, grow and end, one after the other.
pub struct Telling {
    /// The block that is open, by its number.
    open: Option<(usize, Open)>,
    blocks: usize,
    has_calls: bool,
    stopped: (Option<&'static str>, Option<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
    Call(usize),
}

impl Telling {
    pub fn new() -> Self {
        Telling { open: None, blocks: 0, has_calls: false, stopped: (None, None) }
    }

    /// The number of a block of this kind; begins one where another is open.
    fn block(&mut self, kind: Open, start: impl FnOnce() -> Value, events: &mut Events) -> usize {
        if let Some((index, _)) = self.open.filter(|(_, open)| *open == kind) {
            return index;
        }
        self.close(events);
        let index = self.blocks;
        self.blocks += 1;
        self.open = Some((index, kind));
        let event = json!({"type": "content_block_start", "index": index, "content_block": start()});
        events.event("content_block_start", &event);
        index
    }

    fn close(&mut self, events: &mut Events) {
        if let Some((index, _)) = self.open.take() {
            events.event("content_block_stop", &json!({"type": "content_block_stop", "index": index}));
        }
    }

    fn delta(&self, index: usize, delta: Value, events: &mut Events) {
        let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
        events.event("content_block_delta", &event);
    }
}

impl Script for Telling {
    const DIALECT: Dialect = Dialect::Anthropic;

    fn begin(&mut self, generation: &Generation, events: &mut Events) {
        let message = message(generation);
        events.event("message_start", &json!({"type": "message_start", "message": message}));
    }

    fn show(&mut self, shown: Shown, _: &Generation, events: &mut Events) {
        match shown.piece {
            Piece::Text { text, .. } => {
                let index = self.block(Open::Text, || json!({"type": "text", "text": ""}), events);
                self.delta(index, json!({"type": "text_delta", "text": text}), events);
            }
            Piece::Reasoning(text) => {
                let start = || json!({"type": "thinking", "thinking": "", "signature": ""});
                let index = self.block(Open::Thinking, start, events);
                self.delta(index, json!({"type": "thinking_delta", "thinking": text}), events);
            }
            Piece::ToolBegin { index: call, id, name } => {
                self.has_calls = true;
                let start = || json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.block(Open::Call(call), start, events);
            }
            Piece::ToolArguments { text, .. } => {
                if let Some((index, Open::Call(_))) = self.open {
                    self.delta(index, json!({"type": "input_json_delta", "partial_json": text}), events);
                }
            }
            Piece::Ended(ended) => self.stopped = stopped(ended, self.has_calls),
        }
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        self.close(events);
        let (reason, sequence) = std::mem::take(&mut self.stopped);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let event = json!({"type": "message_delta", "delta": delta, "usage": Usage::of(generation)});
        events.event("message_delta", &event);
        events.event("message_stop", &json!({"type": "message_stop"}));
    }
}
