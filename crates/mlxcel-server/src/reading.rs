//! How what a model writes is read: as plain text, or taken apart into reasoning, calls of tools and the answer. Which
//! form a model uses is known by its template.

use std::sync::Arc;

use mlxcel_text::{
    EncodeOptions, ForcedCalls, Grammar, GrammarSource, OutputFormat, OutputParser, ReasoningStyle,
    SpecialTokens, TemplateChoice, Tool, ToolChoice, ToolSet,
};
use serde_json::json;

use crate::generate::Budget;
use crate::model::Model;
use crate::openai::{Must, Tools};
use crate::refusal::Refusal;

/// How an answer is taken apart.
#[derive(Clone, Debug)]
pub struct Reading {
    pub parser: OutputParser,
    /// Whether control tokens are part of the text that is taken apart.
    pub shows_controls: bool,
    /// Calls after which the answer is over.
    pub calls_max: Option<usize>,
}

/// Whether a model may call several tools in one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    Several,
    One,
}

impl Reading {
    /// How the answer to a rendered chat is read.
    pub fn new(model: &Model, prompt: &str, tools: &Tools, calls: Calls) -> Result<Self, Refusal> {
        let format = format(model, tools);
        Ok(Reading {
            parser: format.parser(tail(prompt), tool_set(tools)?),
            shows_controls: format.needs_control_tokens(),
            calls_max: (calls == Calls::One).then_some(1),
        })
    }

    /// Reads the arguments of calls as they come, for a client who hears of them at once.
    pub fn streamed(self) -> Self {
        Reading { parser: self.parser.streamed(), ..self }
    }
}

/// The grammar that makes an answer a call, where one is required.
pub async fn forced(
    model: &Model,
    prompt: &str,
    tools: &Tools,
    calls: Calls,
) -> Result<Option<Arc<Grammar>>, Refusal> {
    let choice = match &tools.must {
        Must::May | Must::Not => return Ok(None),
        Must::Any => ToolChoice::Required,
        Must::Named(name) => ToolChoice::Named(name.clone()),
    };
    let format = format(model, tools);
    let syntax = format.tools.ok_or_else(|| {
        let message = "the model's template knows no calls of tools, so none can be required";
        Refusal::field("tool_choice", message)
    })?;
    let set = tool_set(tools)?;
    let forced = ForcedCalls {
        syntax,
        tools: &set,
        choice,
        reasoning: format.reasoning,
        prompt: tail(prompt),
        may_repeat: calls == Calls::Several,
        instead: None,
    };
    let source = forced.grammar(&model.text.tokenizer);
    let source = source.map_err(|error| Refusal::field("tools", error.to_string()))?;
    Ok(Some(model.text.grammar(source, "tools").await?))
}

/// A grammar for an answer that is calls of tools, as the model likes, or follows what `source` describes.
pub fn either(
    model: &Model,
    prompt: &str,
    (tools, calls): (&Tools, Calls),
    (source, field): (GrammarSource, &str),
) -> Result<GrammarSource, Refusal> {
    let format = format(model, tools);
    let Some(syntax) = format.tools else { return Ok(constrained(model, prompt, source)) };
    let set = tool_set(tools)?;
    let either = ForcedCalls {
        syntax,
        tools: &set,
        choice: ToolChoice::Required,
        reasoning: format.reasoning,
        prompt: tail(prompt),
        may_repeat: calls == Calls::Several,
        instead: Some(source),
    };
    either.grammar(&model.text.tokenizer).map_err(|error| {
        Refusal::field(field, format!("{error}; leave out '{field}' or 'tools', or require a call"))
    })
}

/// A grammar for the answer, before which the model may reason in its own form.
pub fn constrained(model: &Model, prompt: &str, source: GrammarSource) -> GrammarSource {
    format(model, &Tools::default()).constrain(source, tail(prompt), &model.text.tokenizer)
}

/// A bound on thoughts, in the marks of the model. `None` for a model that marks none, and so thinks in its answer.
pub fn budget(
    model: &Model,
    prompt: &str,
    tools: &Tools,
    (tokens, field): (usize, &str),
) -> Result<Option<Budget>, Refusal> {
    let Some(style) = format(model, tools).reasoning else { return Ok(None) };
    if style == ReasoningStyle::Harmony {
        let message = format!("what this model thinks cannot be bounded; leave out '{field}'");
        return Err(Refusal::field(field, message));
    }
    let (open, close) = style.markers();
    let options = EncodeOptions { special_tokens: SpecialTokens::Parse, add_special_tokens: false };
    let closing = model.text.tokenizer.encode(close, options);
    let closing = closing.map_err(|error| Refusal::internal(error.to_string()))?.into();
    let is_open = prompt.trim_end().ends_with(open);
    Ok(Some(Budget { tokens, open, close, closing, is_open }))
}

fn format(model: &Model, tools: &Tools) -> OutputFormat {
    let has_tools = tools.offered().is_some();
    let choice = if has_tools { TemplateChoice::ToolUse } else { TemplateChoice::Default };
    model.text.template_source(choice).map(OutputFormat::detect).unwrap_or_default()
}

/// Only tools that are offered can be called.
fn tool_set(tools: &Tools) -> Result<ToolSet, Refusal> {
    if tools.offered().is_none() {
        return Ok(ToolSet::default());
    }
    let any = || json!({"type": "object"});
    let tool = |f: &crate::openai::Function| Tool {
        name: f.name.clone(),
        parameters: f.parameters.clone().unwrap_or_else(any),
    };
    let set = ToolSet::new(tools.functions.iter().map(tool).collect());
    set.map_err(|error| Refusal::field("tools", error.to_string()))
}

/// The end of a prompt, which tells whether reasoning is open.
fn tail(prompt: &str) -> &str {
    const BYTES: usize = 400;
    let mut start = prompt.len().saturating_sub(BYTES);
    while !prompt.is_char_boundary(start) {
        start += 1;
    }
    &prompt[start..]
}
