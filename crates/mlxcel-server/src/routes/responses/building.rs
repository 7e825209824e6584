//! A response as it grows: items of output, one open at a time, and the events that tell of them.

use serde_json::{Map, Value, json};

use super::request::called;
use super::store::Finished;
use crate::generate::{Ended, Piece, Usage};
use crate::ids;
use crate::openai;

/// Hears of what happens: the event's name, and its fields.
pub type Tell<'a> = dyn FnMut(&'static str, Value) + 'a;

pub struct Building {
    id: String,
    created_at: u64,
    /// Fields that repeat the request.
    about: Map<String, Value>,
    /// What was said before.
    earlier: Vec<Value>,
    output: Vec<Item>,
    ended: Option<Ended>,
}

struct Item {
    id: String,
    kind: Kind,
    text: String,
    is_open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Call { call_id: String, name: String },
}

impl Building {
    pub fn new(about: Map<String, Value>, earlier: Vec<Value>) -> Self {
        let (id, created_at) = (ids::new("resp_"), openai::now());
        Building { id, created_at, about, earlier, output: Vec::new(), ended: None }
    }

    /// Adds a piece to the open item, or opens another.
    pub fn add(&mut self, piece: Piece, tell: &mut Tell<'_>) {
        match piece {
            Piece::Text { text, .. } => self.grow(Kind::Message, &text, tell),
            Piece::Reasoning(text) => self.grow(Kind::Reasoning, &text, tell),
            Piece::ToolBegin { id, name, .. } => self.open(Kind::Call { call_id: id, name }, tell),
            Piece::ToolArguments { text, .. } => {
                if let Some(kind) = self.output.last().map(|item| item.kind.clone()) {
                    self.grow(kind, &text, tell);
                }
            }
            Piece::Ended(ended) => {
                self.close(tell);
                self.ended = Some(ended);
            }
        }
    }

    fn grow(&mut self, kind: Kind, text: &str, tell: &mut Tell<'_>) {
        if !self.output.last().is_some_and(|item| item.is_open && item.kind == kind) {
            self.open(kind, tell);
        }
        let index = self.output.len() - 1;
        let item = &mut self.output[index];
        item.text.push_str(text);
        let event = match item.kind {
            Kind::Message => "response.output_text.delta",
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Call { .. } => "response.function_call_arguments.delta",
        };
        tell(event, item.place(index, json!({"delta": text})));
    }

    fn open(&mut self, kind: Kind, tell: &mut Tell<'_>) {
        self.close(tell);
        let prefix = match kind {
            Kind::Message => "msg_",
            Kind::Reasoning => "rs_",
            Kind::Call { .. } => "fc_",
        };
        let item = Item { id: ids::new(prefix), kind, text: String::new(), is_open: true };
        let index = self.output.len();
        let bare = item.object(Content::Left);
        tell("response.output_item.added", json!({"output_index": index, "item": bare}));
        if item.kind == Kind::Message {
            tell("response.content_part.added", item.place(index, json!({"part": part("")})));
        }
        self.output.push(item);
    }

    fn close(&mut self, tell: &mut Tell<'_>) {
        let index = self.output.len().wrapping_sub(1);
        let Some(item) = self.output.last_mut().filter(|item| item.is_open) else { return };
        item.is_open = false;
        let text = &item.text;
        match &item.kind {
            Kind::Message => {
                tell("response.output_text.done", item.place(index, json!({"text": text, "logprobs": []})));
                tell("response.content_part.done", item.place(index, json!({"part": part(text)})));
            }
            Kind::Reasoning => tell("response.reasoning_text.done", item.place(index, json!({"text": text}))),
            Kind::Call { name, .. } => {
                let done = item.place(index, json!({"arguments": text, "name": name}));
                tell("response.function_call_arguments.done", done);
            }
        }
        let whole = item.object(Content::Given);
        tell("response.output_item.done", json!({"output_index": index, "item": whole}));
    }

    /// The response as it stands.
    pub fn response(&self, status: &str, usage: Option<&Usage>) -> Value {
        let mut response = self.about.clone();
        let is_cut = status == "incomplete";
        let usage = usage.map(|usage| {
            json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.made,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.total(),
            })
        });
        let fields = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})),
            "output": self.output.iter().map(|item| item.object(Content::Given)).collect::<Vec<_>>(),
            "usage": usage,
        });
        if let Value::Object(fields) = fields {
            response.extend(fields);
        }
        Value::Object(response)
    }

    /// The whole response, and what is kept of it.
    pub fn finish(mut self, usage: &Usage, tell: &mut Tell<'_>) -> Finished {
        self.close(tell);
        let is_cut = self.ended == Some(Ended::Length);
        let (status, event) = match is_cut {
            true => ("incomplete", "response.incomplete"),
            false => ("completed", "response.completed"),
        };
        let response = self.response(status, Some(usage));
        tell(event, json!({"response": response}));
        let made = self.output.iter().filter_map(Item::message);
        let messages = self.earlier.iter().cloned().chain(made).collect();
        Finished { id: self.id.clone(), response, messages }
    }
}

/// Whether an item is shown with what it holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Given,
    Left,
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

impl Item {
    fn object(&self, content: Content) -> Value {
        let status = if self.is_open { "in_progress" } else { "completed" };
        let is_left = content == Content::Left;
        match &self.kind {
            Kind::Message => {
                let parts = if is_left { json!([]) } else { json!([part(&self.text)]) };
                json!({"id": self.id, "type": "message", "status": status, "role": "assistant", "content": parts})
            }
            Kind::Reasoning => {
                let parts =
                    if is_left { json!([]) } else { json!([{"type": "reasoning_text", "text": self.text}]) };
                json!({"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": parts})
            }
            Kind::Call { call_id, name } => json!({
                "id": self.id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": self.text,
            }),
        }
    }

    /// Fields that say where something happened, with some more.
    fn place(&self, index: usize, more: Value) -> Value {
        let mut place = json!({"item_id": self.id, "output_index": index});
        if !matches!(self.kind, Kind::Call { .. }) {
            place["content_index"] = json!(0);
        }
        if let (Value::Object(place), Value::Object(more)) = (&mut place, more) {
            place.extend(more);
        }
        place
    }

    /// The item as a message of the conversation; what was thought is left out.
    fn message(&self) -> Option<Value> {
        match &self.kind {
            Kind::Message => Some(json!({"role": "assistant", "content": self.text})),
            Kind::Reasoning => None,
            Kind::Call { call_id, name } => Some(called(call_id, name, &self.text)),
        }
    }
}
