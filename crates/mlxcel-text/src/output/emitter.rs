//! Collects events, and decides which blanks are part of the answer.

use super::OutputEvent;
use crate::tools::ToolCall;

/// What templates put around the parts of an answer.
const BLANKS: [char; 4] = [' ', '\n', '\r', '\t'];

#[derive(Clone, Debug, Default)]
pub(super) struct Emitter {
    events: Vec<OutputEvent>,
    calls: usize,
    content: Part,
    reasoning: Part,
}

/// The blanks of a stream of text: some are held until it is known what follows.
#[derive(Clone, Debug, Default)]
struct Part {
    held: String,
    /// Blanks come first, so they are dropped.
    drops: bool,
}

impl Part {
    /// The text that can be shown now.
    fn push(&mut self, text: &str) -> Option<String> {
        let text = if self.drops { text.trim_start_matches(BLANKS) } else { text };
        if text.is_empty() {
            return None;
        }
        self.drops = false;
        let shown = text.trim_end_matches(BLANKS);
        if shown.is_empty() {
            self.held.push_str(text);
            return None;
        }
        let before = std::mem::replace(&mut self.held, text[shown.len()..].to_owned());
        Some(before + shown)
    }

    fn drop_blanks(&mut self) {
        self.held.clear();
        self.drops = true;
    }
}

impl Emitter {
    pub(super) fn content(&mut self, text: &str) {
        let Some(text) = self.content.push(text) else { return };
        match self.events.last_mut() {
            Some(OutputEvent::Content(last)) => last.push_str(&text),
            _ => self.events.push(OutputEvent::Content(text)),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        let Some(text) = self.reasoning.push(text) else { return };
        match self.events.last_mut() {
            Some(OutputEvent::Reasoning(last)) => last.push_str(&text),
            _ => self.events.push(OutputEvent::Reasoning(text)),
        }
    }

    pub(super) fn reasoning_begins(&mut self) {
        self.content.drop_blanks();
        self.reasoning.drop_blanks();
    }

    pub(super) fn reasoning_ends(&mut self) {
        self.reasoning.drop_blanks();
        self.content.drop_blanks();
    }

    pub(super) fn call(&mut self, call: ToolCall) {
        self.call_begins(call.id, call.name);
        self.arguments(&call.arguments);
        self.call_ends();
    }

    pub(super) fn call_begins(&mut self, id: Option<String>, name: String) {
        self.content.drop_blanks();
        self.events.push(OutputEvent::ToolCallBegin { index: self.calls, id, name });
    }

    /// A part of the arguments of the call that has begun.
    pub(super) fn arguments(&mut self, text: &str) {
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputEvent::ToolCallArguments { text: last, .. }) => last.push_str(text),
            _ => {
                let text = text.to_owned();
                self.events.push(OutputEvent::ToolCallArguments { index: self.calls, text });
            }
        }
    }

    pub(super) fn call_ends(&mut self) {
        self.events.push(OutputEvent::ToolCallEnd { index: self.calls });
        self.calls += 1;
    }

    /// Gives the blanks that ended the text, for they were part of it.
    pub(super) fn finish(&mut self) {
        for (part, event) in [
            (&mut self.reasoning, OutputEvent::Reasoning as fn(String) -> OutputEvent),
            (&mut self.content, OutputEvent::Content),
        ] {
            let held = std::mem::take(&mut part.held);
            if !held.is_empty() {
                self.events.push(event(held));
            }
        }
    }

    pub(super) fn take(&mut self) -> Vec<OutputEvent> {
        std::mem::take(&mut self.events)
    }
}
