//! A conversation on its way to a model, whichever interface it came by: rendered, encoded, and with it how the answer
//! is read and what it must follow.

use mlxcel_text::{ChatPrompt, ChatRequest, GrammarSource, TemplateChoice};
use serde_json::{Map, Value};

use crate::app::App;
use crate::model::Model;
use crate::openai::Tools;
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
}

impl Conversation {
    /// The prompt, in text and tokens.
    pub async fn render(&self, model: &Model) -> Result<ChatPrompt, Refusal> {
        let request = ChatRequest {
            messages: self.messages.clone(),
            tools: self.tools.offered(),
            add_generation_prompt: true,
            variables: self.variables.clone(),
            ..ChatRequest::default()
        };
        model.text.render(request).await
    }

    /// An order for one answer.
    pub async fn order(self, app: &App, model: &Model, sampling: &SamplingFields) -> Result<Order, Refusal> {
        let prompt = self.render(model).await?;
        let (grammar, reading) = match self.format {
            Some((_, field)) if self.tools.offered().is_some() => {
                let message =
                    format!("'{field}' and 'tools' cannot be followed together; leave one of them out");
                return Err(Refusal::field(field, message));
            }
            Some((source, field)) => {
                let source = reading::constrained(model, &prompt.text, source);
                let grammar = model.text.grammar(source, field).await?;
                (Some(grammar), Some(Reading::new(model, &prompt.text, &self.tools, self.calls)?))
            }
            None => {
                let forced = reading::forced(model, &prompt.text, &self.tools, self.calls).await?;
                (forced, Some(Reading::new(model, &prompt.text, &self.tools, self.calls)?))
            }
        };
        let order = Order::new(model, vec![prompt.tokens], sampling, &app.config.sampling)?;
        Ok(Order { grammar, reading, ..order })
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
