//! Requests of Anthropic's interface, and what they become for a template.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::conversation::{Conversation, Turn};
use crate::openai::{Function, FunctionName, Mode, Named, Tool as Offered, ToolChoice, Tools};
use crate::order;
use crate::reading::Calls;
use crate::refusal::Refusal;
use crate::wire::{SamplingFields, TextOr};

const MESSAGES_MAX: usize = 10_000;

/// Declares a request: what is said is the same in both, and every field is known.
macro_rules! request {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            pub model: String,
            #[schemars(length(min = 1, max = 10000))]
            pub messages: Vec<Message>,
            pub system: Option<TextOr<Block>>,
            pub tools: Option<Vec<Tool>>,
            pub tool_choice: Option<Choice>,
            pub thinking: Option<Thinking>,
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl $name {
            /// What is said, and with which tools.
            pub fn conversation(&mut self) -> Result<Conversation, Refusal> {
                Said {
                    messages: std::mem::take(&mut self.messages),
                    system: self.system.take(),
                    tools: self.tools.take(),
                    tool_choice: self.tool_choice.take(),
                    thinking: self.thinking,
                }
                .conversation()
            }
        }
    };
}

request! {
    pub struct MessagesBody {
        #[schemars(range(min = 1))]
        pub max_tokens: u64,
        pub stream: Option<bool>,
        pub stop_sequences: Option<Vec<String>>,
        #[schemars(range(min = 0, max = 1))]
        pub temperature: Option<f64>,
        #[schemars(range(min = 0, max = 1))]
        pub top_p: Option<f64>,
        #[schemars(range(min = 0))]
        pub top_k: Option<i64>,
        /// Written to the log.
        pub metadata: Option<Metadata>,
        /// Only `auto` and `standard_only`.
        pub service_tier: Option<ServiceTier>,
    }
}

request! {
    pub struct CountBody {}
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    pub user_id: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ServiceTier {
    Auto,
    StandardOnly,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    User { content: TextOr<Block> },
    Assistant { content: TextOr<Block> },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Block {
    Text {
        text: String,
        /// What prompts have in common is kept by itself.
        #[serde(rename = "cache_control")]
        _cache_control: Option<Value>,
        #[serde(rename = "citations")]
        _citations: Option<()>,
    },
    Thinking {
        thinking: String,
        #[serde(rename = "signature")]
        _signature: Option<String>,
    },
    ToolUse {
        id: String,
        name: String,
        input: Value,
        #[serde(rename = "cache_control")]
        _cache_control: Option<Value>,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<TextOr<Block>>,
        is_error: Option<bool>,
        #[serde(rename = "cache_control")]
        _cache_control: Option<Value>,
    },
    Image {
        #[serde(rename = "source")]
        _source: Value,
        #[serde(rename = "cache_control")]
        _cache_control: Option<Value>,
    },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    pub input_schema: Value,
    /// Only `custom`.
    #[serde(rename = "type")]
    pub _kind: Option<Custom>,
    #[serde(rename = "cache_control")]
    pub _cache_control: Option<Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Custom {
    Custom,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Choice {
    Auto { disable_parallel_tool_use: Option<bool> },
    Any { disable_parallel_tool_use: Option<bool> },
    Tool { name: String, disable_parallel_tool_use: Option<bool> },
    None {},
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Thinking {
    Enabled {
        /// Thoughts are closed after so many tokens. Fewer than `max_tokens`.
        #[schemars(range(min = 1))]
        budget_tokens: Option<u64>,
    },
    Disabled {},
    Adaptive {},
}

impl MessagesBody {
    /// Refuses what is understood and cannot be done.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.max_tokens == 0 {
            return Err(Refusal::field("max_tokens", "'max_tokens' is 0; ask for one token at least"));
        }
        if let Some(Thinking::Enabled { budget_tokens: Some(n) }) = self.thinking
            && n >= self.max_tokens
        {
            let message = "the budget leaves no token of 'max_tokens' for an answer; send a smaller one";
            return Err(Refusal::field(BUDGET, message));
        }
        tracing::debug!(
            user = self.metadata.as_ref().and_then(|m| m.user_id.as_deref()),
            tier = ?self.service_tier,
            "a message"
        );
        Ok(())
    }

    pub fn sampling(&self) -> SamplingFields {
        SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            stop: self.stop_sequences.clone().map(TextOr::Items),
            ..SamplingFields::default()
        }
    }
}

/// What both requests hold.
struct Said {
    messages: Vec<Message>,
    system: Option<TextOr<Block>>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
    thinking: Option<Thinking>,
}

impl Said {
    fn conversation(self) -> Result<Conversation, Refusal> {
        if self.messages.is_empty() || self.messages.len() > MESSAGES_MAX {
            let message = format!("there are {} messages; send 1 to {MESSAGES_MAX}", self.messages.len());
            return Err(Refusal::field("messages", message));
        }
        let is_assistant_last = matches!(self.messages.last(), Some(Message::Assistant { .. }));
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            messages.push(json!({"role": "system", "content": plain(system, "system")?}));
        }
        for (index, message) in self.messages.into_iter().enumerate() {
            let place = format!("messages[{index}].content");
            match message {
                Message::User { content } => user(content, &place, &mut messages)?,
                Message::Assistant { content } => messages.push(assistant(content, &place)?),
            }
        }
        let turn = Turn::after(&messages);
        if is_assistant_last && turn == Turn::New {
            let message =
                "the last message is the assistant's and holds no text to go on from; send a user's";
            return Err(Refusal::field("messages", message));
        }
        let (choice, calls) = choice(self.tool_choice);
        let tools = self.tools.unwrap_or_default().into_iter().map(offered).collect();
        Ok(Conversation {
            messages,
            tools: Tools::new(Some(tools), choice)?,
            calls,
            variables: thinking(self.thinking),
            format: None,
            thinking: budget(self.thinking)?,
            turn,
        })
    }
}

/// A user's message; results of tools become messages of their own, before it.
fn user(content: TextOr<Block>, place: &str, messages: &mut Vec<Value>) -> Result<(), Refusal> {
    let blocks = match content {
        TextOr::Text(text) => {
            messages.push(json!({"role": "user", "content": text}));
            return Ok(());
        }
        TextOr::Items(blocks) => blocks,
    };
    let mut said = String::new();
    let mut has_text = false;
    for (index, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match block {
            Block::Text { text, .. } => {
                has_text = true;
                said.push_str(&text);
            }
            Block::ToolResult { tool_use_id, content, is_error, .. } => {
                let text = content.map(|content| plain(content, &place)).transpose()?.unwrap_or_default();
                let text = if is_error == Some(true) { format!("Error: {text}") } else { text };
                messages.push(json!({"role": "tool", "tool_call_id": tool_use_id, "content": text}));
            }
            _ => return Err(Refusal::field(place, "a user's message holds text and results of tools only")),
        }
    }
    if has_text {
        messages.push(json!({"role": "user", "content": said}));
    }
    Ok(())
}

fn assistant(content: TextOr<Block>, place: &str) -> Result<Value, Refusal> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(json!({"role": "assistant", "content": text})),
        TextOr::Items(blocks) => blocks,
    };
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text { text, .. } => said.push_str(&text),
            Block::Thinking { thinking, .. } => thought.push_str(&thinking),
            Block::ToolUse { id, name, input, .. } => {
                let function = json!({"name": name, "arguments": input});
                calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            Block::ToolResult { .. } | Block::Image { .. } => {
                let message = "an assistant's message holds text, thinking and calls of tools only";
                return Err(Refusal::field(format!("{place}[{index}]"), message));
            }
        }
    }
    let mut message = json!({"role": "assistant", "content": said});
    if !thought.is_empty() {
        message["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

/// Text and nothing else.
fn plain(content: TextOr<Block>, place: &str) -> Result<String, Refusal> {
    match content {
        TextOr::Text(text) => Ok(text),
        TextOr::Items(blocks) => blocks
            .into_iter()
            .map(|block| match block {
                Block::Text { text, .. } => Ok(text),
                _ => Err(Refusal::field(place, format!("'{place}' holds something else than text"))),
            })
            .collect(),
    }
}

fn offered(tool: Tool) -> Offered {
    let Tool { name, description, input_schema, .. } = tool;
    Offered::Function {
        function: Function { name, description, parameters: Some(input_schema), strict: None },
    }
}

fn choice(choice: Option<Choice>) -> (Option<ToolChoice>, Calls) {
    let (choice, alone) = match choice {
        None => return (None, Calls::Several),
        Some(Choice::Auto { disable_parallel_tool_use }) => {
            (ToolChoice::Mode(Mode::Auto), disable_parallel_tool_use)
        }
        Some(Choice::Any { disable_parallel_tool_use }) => {
            (ToolChoice::Mode(Mode::Required), disable_parallel_tool_use)
        }
        Some(Choice::Tool { name, disable_parallel_tool_use }) => {
            let named = Named::Function { function: FunctionName { name } };
            (ToolChoice::Named(named), disable_parallel_tool_use)
        }
        Some(Choice::None {}) => (ToolChoice::Mode(Mode::None), None),
    };
    (Some(choice), if alone == Some(true) { Calls::One } else { Calls::Several })
}

/// Whether the template is told to think; without a word it does as it likes.
fn thinking(thinking: Option<Thinking>) -> Map<String, Value> {
    let flag = match thinking {
        None | Some(Thinking::Adaptive {}) => return Map::new(),
        Some(Thinking::Enabled { .. }) => true,
        Some(Thinking::Disabled {}) => false,
    };
    Map::from_iter([("enable_thinking".to_string(), Value::Bool(flag))])
}

/// Tokens that may be thought.
fn budget(thinking: Option<Thinking>) -> Result<Option<(usize, &'static str)>, Refusal> {
    match thinking {
        Some(Thinking::Enabled { budget_tokens: Some(0) }) => {
            let message = "a budget of 0 leaves no thinking; send 'thinking' of type 'disabled' instead";
            Err(Refusal::field(BUDGET, message))
        }
        Some(Thinking::Enabled { budget_tokens }) => Ok(order::count(budget_tokens).map(|n| (n, BUDGET))),
        _ => Ok(None),
    }
}

const BUDGET: &str = "thinking.budget_tokens";
