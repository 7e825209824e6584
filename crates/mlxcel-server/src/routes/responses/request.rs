//! What `/v1/responses` takes, and what it becomes for a template.

use mlxcel_text::GrammarSource;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::conversation::DeveloperRole;
use crate::openai::{Function, FunctionName, Mode, Named, Tool as Offered, ToolChoice, Tools};
use crate::refusal::Refusal;
use crate::routes::chat::Effort;
use crate::wire::{SamplingFields, TextOr};

const ITEMS_MAX: usize = 10_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesBody {
    /// The default model where it is missing.
    pub model: Option<String>,
    pub input: TextOr<Item>,
    pub instructions: Option<String>,
    pub previous_response_id: Option<String>,
    pub store: Option<bool>,
    pub stream: Option<bool>,
    #[schemars(range(min = 1))]
    pub max_output_tokens: Option<u64>,
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    pub text: Option<TextSettings>,
    pub tools: Option<Vec<Tool>>,
    pub tool_choice: Option<Choice>,
    pub parallel_tool_calls: Option<bool>,
    pub reasoning: Option<Reasoning>,
    /// Kept with the answer.
    #[serde(rename = "metadata")]
    pub _metadata: Option<Map<String, Value>>,
    pub user: Option<String>,
    /// Only `disabled`: a prompt is never cut.
    pub truncation: Option<String>,
    /// Only an empty list.
    pub include: Option<Vec<String>>,
    /// Only `false`.
    pub background: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    pub effort: Option<Effort>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextSettings {
    pub format: Option<Format>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Format {
    Text {},
    JsonObject {},
    JsonSchema {
        schema: Value,
        #[serde(rename = "name")]
        _name: Option<String>,
        #[serde(rename = "description")]
        _description: Option<String>,
        #[serde(rename = "strict")]
        _strict: Option<bool>,
    },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Tool {
    Function { name: String, description: Option<String>, parameters: Option<Value>, strict: Option<bool> },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\", or an object that names a function"
)]
pub enum Choice {
    Mode(Mode),
    Named(NamedChoice),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum NamedChoice {
    Function { name: String },
}

/// An item of the input. A message may leave out its type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a message, a function_call or a function_call_output with known fields only"
)]
pub enum Item {
    Typed(TypedItem),
    Message(Message),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum TypedItem {
    Message {
        role: Role,
        content: TextOr<Part>,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    FunctionCall {
        call_id: String,
        name: String,
        arguments: String,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    FunctionCallOutput {
        call_id: String,
        output: TextOr<Part>,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    /// What a model thought earlier is not given to it again.
    Reasoning {
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "summary")]
        _summary: Option<Vec<Value>>,
        #[serde(rename = "content")]
        _content: Option<Vec<Value>>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: Role,
    pub content: TextOr<Part>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Part {
    InputText {
        text: String,
    },
    OutputText {
        text: String,
        #[serde(rename = "annotations")]
        _annotations: Option<Vec<Value>>,
        #[serde(rename = "logprobs")]
        _logprobs: Option<Vec<Value>>,
    },
    Refusal {
        refusal: String,
    },
}

impl ResponsesBody {
    /// Refuses what is understood and cannot be done.
    pub fn check(&self) -> Result<(), Refusal> {
        let refused = |field: &str, message: &str| Err(Refusal::field(field, message));
        if self.max_output_tokens == Some(0) {
            return refused("max_output_tokens", "'max_output_tokens' is 0; ask for one token at least");
        }
        if self.truncation.as_deref().is_some_and(|truncation| truncation != "disabled") {
            return refused("truncation", "a prompt is never cut; leave 'truncation' out");
        }
        if self.include.as_ref().is_some_and(|include| !include.is_empty()) {
            return refused("include", "nothing can be included; leave 'include' out");
        }
        if self.background == Some(true) {
            return refused("background", "answers are not made in the background; leave 'background' out");
        }
        tracing::debug!(user = self.user, "a response");
        Ok(())
    }

    pub fn sampling(&self) -> SamplingFields {
        SamplingFields { temperature: self.temperature, top_p: self.top_p, ..SamplingFields::default() }
    }

    /// What the template is told beside the messages.
    pub fn variables(&self) -> Map<String, Value> {
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort);
        effort.map(Effort::variables).unwrap_or_default()
    }

    pub fn format(&mut self) -> Result<Option<GrammarSource>, Refusal> {
        Ok(match self.text.take().and_then(|text| text.format) {
            None | Some(Format::Text {}) => None,
            Some(Format::JsonObject {}) => Some(GrammarSource::JsonObject),
            Some(Format::JsonSchema { schema, .. }) => Some(GrammarSource::JsonSchema(schema)),
        })
    }

    pub fn tools(&mut self) -> Result<Tools, Refusal> {
        let offered = |tool| {
            let Tool::Function { name, description, parameters, strict } = tool;
            Offered::Function { function: Function { name, description, parameters, strict } }
        };
        let tools = self.tools.take().map(|tools| tools.into_iter().map(offered).collect());
        let choice = self.tool_choice.take().map(|choice| match choice {
            Choice::Mode(mode) => ToolChoice::Mode(mode),
            Choice::Named(NamedChoice::Function { name }) => {
                ToolChoice::Named(Named::Function { function: FunctionName { name } })
            }
        });
        Tools::new(tools, choice)
    }

    /// The input as messages for a template.
    pub fn messages(&mut self, developer: DeveloperRole) -> Result<Vec<Value>, Refusal> {
        let items = match std::mem::replace(&mut self.input, TextOr::Text(String::new())) {
            TextOr::Text(text) => return Ok(vec![json!({"role": "user", "content": text})]),
            TextOr::Items(items) => items,
        };
        if items.is_empty() || items.len() > ITEMS_MAX {
            let message = format!("there are {} items; send 1 to {ITEMS_MAX}", items.len());
            return Err(Refusal::field("input", message));
        }
        Ok(items.into_iter().filter_map(|item| message(item, developer)).collect())
    }
}

fn message(item: Item, developer: DeveloperRole) -> Option<Value> {
    match item {
        Item::Message(Message { role, content }) | Item::Typed(TypedItem::Message { role, content, .. }) => {
            let role = match role {
                Role::Developer if developer == DeveloperRole::Known => "developer",
                Role::System | Role::Developer => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
            };
            Some(json!({"role": role, "content": text(content)}))
        }
        Item::Typed(TypedItem::FunctionCall { call_id, name, arguments, .. }) => {
            Some(called(&call_id, &name, &arguments))
        }
        Item::Typed(TypedItem::FunctionCallOutput { call_id, output, .. }) => {
            Some(json!({"role": "tool", "tool_call_id": call_id, "content": text(output)}))
        }
        Item::Typed(TypedItem::Reasoning { .. }) => None,
    }
}

/// A call as a message; templates write arguments as JSON themselves.
pub fn called(call_id: &str, name: &str, arguments: &str) -> Value {
    let arguments = serde_json::from_str::<Value>(arguments).ok().filter(Value::is_object);
    let arguments = arguments.unwrap_or_else(|| json!({}));
    let call = json!({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}});
    json!({"role": "assistant", "content": "", "tool_calls": [call]})
}

fn text(content: TextOr<Part>) -> String {
    match content {
        TextOr::Text(text) => text,
        TextOr::Items(parts) => parts
            .into_iter()
            .map(|part| match part {
                Part::InputText { text } | Part::OutputText { text, .. } => text,
                Part::Refusal { refusal } => refusal,
            })
            .collect(),
    }
}
