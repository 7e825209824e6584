//! Chat templates: messages to a prompt, as Hugging Face transformers renders them.
//!
//! [`ChatTemplate::encode`] is the safe way from messages to token ids: the template's own control tokens are
//! recognised, the same characters in anything a client sent are not. What the roles mean, and which tools
//! exist, is for the caller and the template to know.

mod bounded;
mod environment;
mod generation;
mod json;
mod meter;
mod methods;
mod source;

use std::collections::BTreeMap;
use std::time::SystemTime;

use minijinja::Environment;
use minijinja::value::{Serde, Value as JinjaValue};
use serde_json::{Map, Value};

pub use source::{ChatTemplates, TemplateChoice};

use crate::error::{Error, Result};
use crate::tokenizer::{Guard, Protection, Tokenizer};

/// What a template is given.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// Objects with `role`, `content` and whatever else the template knows (`tool_calls` …).
    pub messages: Vec<Value>,
    pub tools: Option<Vec<Value>>,
    pub documents: Option<Vec<Value>>,
    /// End the prompt where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// End the prompt where the last message's content ends, so that the answer goes on from it.
    pub continue_last_message: bool,
    /// Further template variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// The time `strftime_now` shows, as UTC; the local time when `None`.
    pub now: Option<SystemTime>,
}

/// A rendered and encoded chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    pub text: String,
    pub tokens: Vec<u32>,
}

/// A compiled chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// `bos_token` and its like.
    tokens: BTreeMap<String, String>,
}

/// Names a client may not set: they are the chat's own.
const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
    "namespace",
    "range",
    "dict",
    "loop",
    "self",
    "caller",
];

/// Marks where the last message ends while a template is rendered. Nobody writes these characters, which belong to no
/// script; if a client does, it is told that its message cannot be gone on from.
const END_OF_LAST: &str = "\u{10fffd}\u{10fffc}\u{10fffd}";

impl ChatTemplate {
    /// `tokens` are the variables `bos_token`, `eos_token` …: see [`Tokenizer::template_tokens`].
    pub fn new(source: &str, tokens: &BTreeMap<String, String>) -> Result<Self> {
        let environment = environment::compile(source)?;
        Ok(Self { environment, source: source.to_owned(), tokens: tokens.clone() })
    }

    /// The template's text, control tokens and all. Encoding it with [`SpecialTokens::Parse`] would let
    /// message contents spell control tokens; use [`encode`](Self::encode) for prompts.
    ///
    /// [`SpecialTokens::Parse`]: crate::SpecialTokens::Parse
    pub fn render(&self, request: &ChatRequest) -> Result<String> {
        self.check_variables(request)?;
        environment::render(&self.environment, self.context(request))
    }

    /// The prompt's token ids. Control tokens come from the template only: written in a message, a tool or a
    /// variable they are ordinary text. No other token is added, since a template writes `bos_token` itself.
    pub fn encode(&self, tokenizer: &Tokenizer, request: &ChatRequest) -> Result<ChatPrompt> {
        let guard = tokenizer.guard()?;
        let mut protection = Protection::default();
        protection.note(&self.source);
        self.tokens.values().chain(guard.tokens()).for_each(|text| protection.note(text));
        let mut request = request.clone();
        for_each_text(&mut request, &mut |text| {
            protection.note(text);
            Ok(())
        })?;
        protection.note(END_OF_LAST);
        for_each_text(&mut request, &mut |text| protect(text, guard, &mut protection))?;
        let rendered = if request.continue_last_message {
            self.render_open(&mut request)?
        } else {
            self.render(&request)?
        };
        let tokens = tokenizer.encode_protected(&rendered, &protection)?;
        Ok(ChatPrompt { text: protection.restore(&rendered), tokens })
    }

    /// The prompt up to the end of the last message's content, whatever the template writes after it.
    fn render_open(&self, request: &mut ChatRequest) -> Result<String> {
        let content = request.messages.last_mut().and_then(|message| message.get_mut("content"));
        let Some(Value::String(content)) = content else { return Err(Error::NothingToContinue) };
        if content.contains(END_OF_LAST) {
            return Err(Error::NothingToContinue);
        }
        content.push_str(END_OF_LAST);
        request.add_generation_prompt = false;
        let mut rendered = self.render(request)?;
        let end = rendered.rfind(END_OF_LAST).ok_or(Error::NothingToContinue)?;
        rendered.truncate(end);
        // A template may show the message twice; only its last showing is gone on from.
        Ok(rendered.replace(END_OF_LAST, ""))
    }

    fn check_variables(&self, request: &ChatRequest) -> Result<()> {
        let reserved = |name: &&String| RESERVED.contains(&name.as_str()) || self.tokens.contains_key(*name);
        match request.variables.keys().find(reserved) {
            Some(name) => Err(Error::ReservedVariable { name: name.clone() }),
            None => Ok(()),
        }
    }

    fn context(&self, request: &ChatRequest) -> JinjaValue {
        let mut context: BTreeMap<&str, JinjaValue> =
            self.tokens.iter().map(|(name, text)| (name.as_str(), JinjaValue::from(text.as_str()))).collect();
        for (name, value) in &request.variables {
            context.insert(name, JinjaValue::from(Serde(value)));
        }
        context.insert("messages", JinjaValue::from(Serde(&request.messages)));
        context.insert("tools", JinjaValue::from(Serde(&request.tools)));
        context.insert("documents", JinjaValue::from(Serde(&request.documents)));
        context.insert("add_generation_prompt", JinjaValue::from(request.add_generation_prompt));
        context.insert("strftime_now", environment::strftime_now(request.now));
        JinjaValue::from_pairs(context)
    }
}

/// Replaces the characters with which a client's text could become a control token.
fn protect(text: &mut String, guard: &Guard, protection: &mut Protection) -> Result<()> {
    let marks = guard.marks(text);
    if marks.is_empty() {
        return Ok(());
    }
    let mut protected = String::with_capacity(text.len() + 4 * marks.len());
    for (at, c) in text.char_indices() {
        let marked = marks.binary_search(&at).is_ok();
        protected.push(if marked { protection.stand_in(c)? } else { c });
    }
    *text = protected;
    Ok(())
}

type TextVisitor<'a> = dyn FnMut(&mut String) -> Result<()> + 'a;

/// Visits every text a client can choose, names of fields included.
fn for_each_text(request: &mut ChatRequest, visit: &mut TextVisitor) -> Result<()> {
    let lists = [Some(&mut request.messages), request.tools.as_mut(), request.documents.as_mut()];
    for value in lists.into_iter().flatten().flatten() {
        visit_value(value, visit)?;
    }
    request.variables.values_mut().try_for_each(|value| visit_value(value, visit))
}

fn visit_value(value: &mut Value, visit: &mut TextVisitor) -> Result<()> {
    match value {
        Value::String(text) => visit(text),
        Value::Array(values) => values.iter_mut().try_for_each(|value| visit_value(value, visit)),
        Value::Object(fields) => {
            let old = std::mem::take(fields);
            for (mut name, mut value) in old {
                visit(&mut name)?;
                visit_value(&mut value, visit)?;
                fields.insert(name, value);
            }
            Ok(())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}
