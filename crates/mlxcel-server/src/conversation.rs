//! A conversation on its way to a model, whichever interface it came by: rendered, encoded, and with it how the answer
//! is read and what it must follow.

use mlxcel_text::{ChatPrompt, ChatRequest, GrammarSource, TemplateChoice};
use serde_json::{Map, Value};

use crate::app::App;
use crate::model::Model;
use crate::openai::{Must, Tools};
use crate::order::Order;
use crate::reading::{self, Calls, Reading};
use crate::refusal::Refusal;
use crate::wire::SamplingFields;

/// What is said, and what the answer may be.
pub struct Conversation {
    /// As templates read them.
    pub messages: Vec<Value>,
    pub tools: Tools,
    pub calls: Calls,
    /// Further variables of the template.
    pub variables: Map<String, Value>,
    /// What the answer must follow, and the field that says so.
    pub format: Option<(GrammarSource, &'static str)>,
    /// Tokens that the model may think at most, and the field that says so.
    pub thinking: Option<(usize, &'static str)>,
    pub turn: Turn,
}

/// Where an answer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// In a message of its own.
    #[default]
    New,
    /// In the last message, which the assistant has begun.
    Begun,
    /// Right after the last message, without the words by which a template opens an answer.
    Bare,
}

impl Turn {
    /// Goes on from the assistant's words where they come last.
    pub fn after(messages: &[Value]) -> Self {
        let begun = messages.last().is_some_and(|last| {
            let has_text = last["content"].as_str().is_some_and(|text| !text.is_empty());
            last["role"] == "assistant" && has_text && last.get("tool_calls").is_none()
        });
        if begun { Turn::Begun } else { Turn::New }
    }
}

impl Conversation {
    /// The prompt, in text and tokens.
    pub async fn render(&self, model: &Model) -> Result<ChatPrompt, Refusal> {
        let request = ChatRequest {
            messages: self.messages.clone(),
            tools: self.tools.offered(),
            add_generation_prompt: self.turn == Turn::New,
            continue_last_message: self.turn == Turn::Begun,
            variables: self.variables.clone(),
            ..ChatRequest::default()
        };
        model.text.render(request).await
    }

    /// An order for one answer.
    pub async fn order(self, app: &App, model: &Model, sampling: &SamplingFields) -> Result<Order, Refusal> {
        let prompt = self.render(model).await?;
        let reading = Some(Reading::new(model, &prompt.text, &self.tools, self.calls)?);
        let may_call = self.tools.offered().is_some();
        let grammar = match self.format {
            Some((source, field)) if may_call && self.tools.must == Must::May => {
                let calls = (&self.tools, self.calls);
                let source = reading::either(model, &prompt.text, calls, (source, field))?;
                Some(model.text.grammar(source, field).await?)
            }
            Some((source, field)) if !may_call => {
                let source = reading::constrained(model, &prompt.text, source);
                Some(model.text.grammar(source, field).await?)
            }
            // Where a call is required there is no other answer whose form could matter.
            _ => reading::forced(model, &prompt.text, &self.tools, self.calls).await?,
        };
        let order = Order::new(model, vec![prompt.tokens.clone()], sampling, &app.config.sampling)?;
        let bound = |bound| reading::budget(model, &prompt.text, &self.tools, bound);
        let thinking = self.thinking.map(bound).transpose()?.flatten();
        Ok(Order { grammar, reading, thinking, ..order })
    }
}

/// What becomes of a developer's message: most templates know a system's only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeveloperRole {
    Known,
    AsSystem,
}

impl DeveloperRole {
    /// Whether the template tells a developer's message from a system's.
    pub fn of(model: &Model) -> Self {
        let source = model.text.template_source(TemplateChoice::Default).unwrap_or_default();
        if source.contains("developer") { DeveloperRole::Known } else { DeveloperRole::AsSystem }
    }
}
