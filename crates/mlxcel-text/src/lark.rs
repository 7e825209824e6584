//! A Lark grammar that is being written: rules, texts, marks that may be control tokens, JSON by a schema, and reasoning
//! that may come first. What the rules are for is decided elsewhere.

use std::fmt::Write as _;

use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use crate::grammar::{BLANKS, GrammarSource};
use crate::reasoning::ReasoningStyle;
use crate::tokenizer::Tokenizer;

/// A grammar that is being written.
pub(crate) struct Lark<'a> {
    pub(crate) text: String,
    tokenizer: &'a Tokenizer,
}

impl<'a> Lark<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { text: String::new(), tokenizer }
    }

    pub(crate) fn rule(&mut self, name: &str, body: &str) {
        writeln!(self.text, "{name}: {body}").expect("a text can be written to");
    }

    pub(crate) fn literal(&self, text: &str) -> String {
        Value::String(text.to_owned()).to_string()
    }

    pub(crate) fn mark(&self, mark: &str) -> String {
        match self.control(mark) {
            Some(id) => format!("<[{id}]>"),
            None => self.literal(mark),
        }
    }

    fn control(&self, mark: &str) -> Option<u32> {
        self.tokenizer.token_id(mark).filter(|&id| self.tokenizer.is_control(id))
    }

    /// A rule for a JSON value of a schema.
    pub(crate) fn schema(&mut self, name: &str, mut schema: Value) {
        match schema {
            Value::Object(_) => {}
            Value::Bool(true) => schema = Value::Object(Map::new()),
            // Nothing follows it, so that the grammar is refused.
            _ => schema = json!({"enum": []}),
        }
        if let Some(fields) = schema.as_object_mut() {
            fields.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": BLANKS}));
        }
        self.rule(name, &format!("%json {schema}"));
    }

    /// A rule for an answer. `None` for a source that is a grammar itself and cannot be a rule of another.
    pub(crate) fn answer(&mut self, name: &str, source: &GrammarSource) -> Option<()> {
        match source {
            GrammarSource::JsonSchema(schema) => self.schema(name, schema.clone()),
            GrammarSource::JsonObject => self.schema(name, json!({"type": "object"})),
            GrammarSource::Regex(text) => self.rule(name, &format!("/{}/", regex_to_lark(text, ""))),
            GrammarSource::Lark(_) | GrammarSource::Gbnf(_) => return None,
        }
        Some(())
    }

    /// What stands before an answer that the model tells from reasoning and calls by its channel.
    pub(crate) fn before_answer(&self, style: Option<ReasoningStyle>) -> String {
        match style {
            Some(ReasoningStyle::Harmony) => {
                ["<|channel|>", "final", "<|message|>"].map(|mark| self.mark(mark)).join(" ") + " "
            }
            _ => String::new(),
        }
    }

    /// A value without quotes if it is a text, as JSON otherwise, and what closes it.
    pub(crate) fn value(&mut self, name: &str, schema: &Value, close: &str) -> String {
        let is_text = schema.get("type").is_some_and(|kind| kind == "string");
        match schema.get("enum").and_then(Value::as_array).filter(|_| is_text) {
            Some(texts) => {
                let texts = texts.iter().filter_map(Value::as_str).map(|text| self.literal(text));
                let texts: Vec<String> = texts.collect();
                format!("({}) {}", texts.join(" | "), self.literal(close))
            }
            None if is_text => self.text_until(name, close),
            None => {
                self.schema(name, schema.clone());
                format!("{name} {}", self.literal(close))
            }
        }
    }

    /// Any text up to the first mark, and the mark.
    pub(crate) fn text_until(&mut self, name: &str, mark: &str) -> String {
        match self.control(mark) {
            Some(id) => {
                self.rule(name, "/(?s:.*)/");
                format!("{name} <[{id}]>")
            }
            None => {
                self.rule(&format!("{name}[suffix={}]", self.literal(mark)), "/(?s:.*)/");
                name.to_owned()
            }
        }
    }

    /// Reasoning that may come first, as the beginning of a rule. `prompt` tells whether it is open already.
    pub(crate) fn reasoning(&mut self, style: Option<ReasoningStyle>, prompt: &str) -> String {
        let Some(style) = style else { return String::new() };
        if style == ReasoningStyle::Harmony {
            let open = ["<|channel|>", "analysis", "<|message|>"].map(|mark| self.mark(mark)).join(" ");
            let text = self.text_until("reasoning", "<|end|>");
            let close = ["<|start|>", "assistant"].map(|mark| self.mark(mark)).join(" ");
            return format!("({open} {text} {close})? ");
        }
        let (open, close) = style.markers();
        let text = self.text_until("reasoning", close);
        match style.is_open_at_end(prompt) {
            true => format!("{text} /[ \\n]{{0,4}}/ "),
            false => format!("({} {text} /[ \\n]{{0,4}}/)? ", self.mark(open)),
        }
    }
}
