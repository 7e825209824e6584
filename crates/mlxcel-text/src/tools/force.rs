//! A grammar in which the answer is a call: what `tool_choice` asks for, in the form the model knows.
//!
//! Marks that are control tokens of the vocabulary are named by id; all else is text. Reasoning may come first where
//! the model reasons.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{ToolSet, ToolSyntax, deepseek, mistral, tagged};
use crate::error::{Error, Result};
use crate::grammar::GrammarSource;
use crate::lark::Lark;
use crate::reasoning::ReasoningStyle;
use crate::tokenizer::Tokenizer;

/// Which tool must be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any of them.
    Required,
    Named(String),
}

/// What is asked of an answer that must be calls.
#[derive(Clone, Debug)]
pub struct ForcedCalls<'a> {
    pub syntax: ToolSyntax,
    pub tools: &'a ToolSet,
    pub choice: ToolChoice,
    /// How the model marks reasoning that may come before the calls.
    pub reasoning: Option<ReasoningStyle>,
    /// The rendered prompt or its end, which tells whether the reasoning is open already.
    pub prompt: &'a str,
    /// Several calls may follow each other, where the form has a way to write that.
    pub may_repeat: bool,
    /// What the answer may be instead of calls.
    pub instead: Option<GrammarSource>,
}

/// A text in a grammar, or a value that a rule describes.
enum Part {
    /// A mark, which may be a control token.
    Mark(&'static str),
    Text(String),
    Rule(String),
}

impl ForcedCalls<'_> {
    pub fn grammar(&self, tokenizer: &Tokenizer) -> Result<GrammarSource> {
        let chosen: Vec<&super::Tool> = match &self.choice {
            ToolChoice::Required => self.tools.iter().collect(),
            ToolChoice::Named(name) => {
                vec![self.tools.get(name).ok_or_else(|| Error::UnknownTool { name: name.clone() })?]
            }
        };
        if chosen.is_empty() {
            return Err(Error::NoTools);
        }
        let mut lark = Lark::new(tokenizer);
        let (before, between, after) = self.frame();
        let start = lark.reasoning(self.reasoning, self.prompt);
        let mut calls = sequence(&lark, &before) + "call";
        if let Some(between) = between.filter(|_| self.may_repeat) {
            write!(calls, " ({} call)*", sequence(&lark, &between)).expect("a text can be written to");
        }
        calls.push(' ');
        calls += &sequence(&lark, &after);
        lark.rule("calls", &calls);
        match &self.instead {
            None => lark.rule("start", &format!("{start}calls")),
            // What is read first decides, and both begin with a bracket.
            Some(_) if self.syntax == ToolSyntax::Llama3 => return Err(Error::AnswerLikeCall),
            Some(source) => {
                lark.answer("answer", source).ok_or(Error::AnswerLikeCall)?;
                let before = lark.before_answer(self.reasoning);
                lark.rule("start", &format!("{start}(calls | {before}answer)"));
            }
        }
        let names: Vec<String> = (0..chosen.len()).map(|index| format!("call_{index}")).collect();
        lark.rule("call", &names.join(" | "));
        for (index, tool) in chosen.iter().enumerate() {
            let parts = self.call(index, tool, &mut lark);
            let sequence = sequence(&lark, &parts);
            lark.rule(&names[index], &sequence);
        }
        Ok(GrammarSource::Lark(lark.text))
    }

    /// What stands before the first call, between two (if there can be two) and after the last.
    fn frame(&self) -> (Vec<Part>, Option<Vec<Part>>, Vec<Part>) {
        let text = |text: &str| vec![Part::Text(text.to_owned())];
        match self.syntax {
            ToolSyntax::Hermes | ToolSyntax::QwenXml | ToolSyntax::Glm => (vec![], Some(text("\n")), vec![]),
            ToolSyntax::Mistral => (vec![], Some(vec![]), vec![]),
            ToolSyntax::MistralList => {
                (vec![Part::Mark(mistral::MARK), Part::Text("[".to_owned())], Some(text(", ")), text("]"))
            }
            ToolSyntax::DeepSeek => {
                (vec![Part::Mark(deepseek::BLOCK)], Some(text("\n")), vec![Part::Mark(deepseek::BLOCK_END)])
            }
            ToolSyntax::DeepSeek31 => {
                (vec![Part::Mark(deepseek::BLOCK)], Some(vec![]), vec![Part::Mark(deepseek::BLOCK_END)])
            }
            ToolSyntax::Llama3 | ToolSyntax::Harmony => (vec![], None, vec![]),
        }
    }

    fn call(&self, index: usize, tool: &super::Tool, lark: &mut Lark<'_>) -> Vec<Part> {
        let name = &tool.name;
        let quoted = Value::String(name.clone()).to_string();
        let text = |text: String| Part::Text(text);
        match self.syntax {
            ToolSyntax::QwenXml => return xml(index, tool, lark),
            ToolSyntax::Glm => return pairs(index, tool, lark),
            _ => {}
        }
        let arguments = arguments(format!("arguments_{index}"), &tool.parameters, lark);
        match self.syntax {
            ToolSyntax::Hermes | ToolSyntax::QwenXml | ToolSyntax::Glm => vec![
                Part::Mark(tagged::OPEN),
                text(format!("\n{{\"name\": {quoted}, \"arguments\": ")),
                arguments,
                text("}\n".to_owned()),
                Part::Mark(tagged::CLOSE),
            ],
            ToolSyntax::Llama3 => {
                vec![text(format!("{{\"name\": {quoted}, \"parameters\": ")), arguments, text("}".to_owned())]
            }
            ToolSyntax::MistralList => {
                vec![text(format!("{{\"name\": {quoted}, \"arguments\": ")), arguments, text("}".to_owned())]
            }
            ToolSyntax::Mistral => {
                vec![Part::Mark(mistral::MARK), text(name.clone()), Part::Mark(mistral::ARGUMENTS), arguments]
            }
            ToolSyntax::DeepSeek => vec![
                Part::Mark(deepseek::CALL),
                text("function".to_owned()),
                Part::Mark(deepseek::SEPARATOR),
                text(format!("{name}\n```json\n")),
                arguments,
                text("\n```".to_owned()),
                Part::Mark(deepseek::CALL_END),
            ],
            ToolSyntax::DeepSeek31 => vec![
                Part::Mark(deepseek::CALL),
                text(name.clone()),
                Part::Mark(deepseek::SEPARATOR),
                arguments,
                Part::Mark(deepseek::CALL_END),
            ],
            ToolSyntax::Harmony => vec![
                Part::Mark("<|channel|>"),
                text(format!("commentary to=functions.{name} ")),
                Part::Mark("<|constrain|>"),
                text("json".to_owned()),
                Part::Mark("<|message|>"),
                arguments,
            ],
        }
    }
}

fn sequence(lark: &Lark<'_>, parts: &[Part]) -> String {
    parts.iter().fold(String::new(), |mut sequence, part| {
        match part {
            Part::Mark(mark) => sequence += &lark.mark(mark),
            Part::Text(text) => sequence += &lark.literal(text),
            Part::Rule(rule) => sequence += rule,
        }
        sequence + " "
    })
}

/// A rule for arguments as JSON.
fn arguments(name: String, schema: &Value, lark: &mut Lark<'_>) -> Part {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("type").or_insert_with(|| json!("object"));
    }
    lark.schema(&name, schema);
    Part::Rule(name)
}

/// The arguments of a schema with whether each is required, in the order they are declared.
fn declared(tool: &super::Tool) -> Vec<(&String, &Value, bool)> {
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let is_required = |key: &str| required.is_some_and(|keys| keys.iter().any(|entry| entry == key));
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let allowed = properties.into_iter().flatten().filter(|(_, schema)| **schema != Value::Bool(false));
    allowed.map(|(key, schema)| (key, schema, is_required(key))).collect()
}

fn xml(index: usize, tool: &super::Tool, lark: &mut Lark<'_>) -> Vec<Part> {
    let mut parts = vec![Part::Mark(tagged::OPEN), Part::Text(format!("\n<function={}>\n", tool.name))];
    for (number, (key, schema, is_required)) in declared(tool).into_iter().enumerate() {
        let value = lark.value(&format!("value_{index}_{number}"), schema, "\n</parameter>\n");
        let open = lark.literal(&format!("<parameter={key}>\n"));
        parts.push(Part::Rule(format!("({open} {value}){}", if is_required { "" } else { "?" })));
    }
    parts.extend([Part::Text("</function>\n".to_owned()), Part::Mark(tagged::CLOSE)]);
    parts
}

fn pairs(index: usize, tool: &super::Tool, lark: &mut Lark<'_>) -> Vec<Part> {
    let mut parts = vec![Part::Mark(tagged::OPEN), Part::Text(format!("{}\n", tool.name))];
    for (number, (key, schema, is_required)) in declared(tool).into_iter().enumerate() {
        let value = lark.value(&format!("value_{index}_{number}"), schema, "</arg_value>\n");
        let open = lark.literal(&format!("<arg_key>{key}</arg_key>\n<arg_value>"));
        parts.push(Part::Rule(format!("({open} {value}){}", if is_required { "" } else { "?" })));
    }
    parts.push(Part::Mark(tagged::CLOSE));
    parts
}
