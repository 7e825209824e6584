//! The messages of a chat as clients write them, and as templates read them. Text only: a message with an image or a
//! sound is refused, since no model here sees or hears.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::conversation::DeveloperRole;
use crate::refusal::Refusal;
use crate::wire::TextOr;

/// Messages of one request.
const MESSAGES_MAX: usize = 10_000;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    System {
        content: TextOr<Part>,
        name: Option<String>,
    },
    Developer {
        content: TextOr<Part>,
        name: Option<String>,
    },
    User {
        content: TextOr<Part>,
        name: Option<String>,
    },
    Assistant {
        content: Option<TextOr<Part>>,
        name: Option<String>,
        refusal: Option<String>,
        reasoning_content: Option<String>,
        tool_calls: Option<Vec<Call>>,
    },
    Tool {
        content: TextOr<Part>,
        tool_call_id: String,
        name: Option<String>,
    },
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Part {
    Text {
        text: String,
    },
    Refusal {
        refusal: String,
    },
    ImageUrl {
        #[serde(rename = "image_url")]
        _image_url: Value,
    },
    InputAudio {
        #[serde(rename = "input_audio")]
        _input_audio: Value,
    },
    File {
        #[serde(rename = "file")]
        _file: Value,
    },
}

/// A call that the model made earlier.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: Option<CallKind>,
    pub function: CalledFunction,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    Function,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CalledFunction {
    pub name: String,
    /// JSON, as text.
    pub arguments: String,
}

/// The messages as templates read them.
pub fn for_template(messages: Vec<Message>, knows_developer: DeveloperRole) -> Result<Vec<Value>, Refusal> {
    if messages.is_empty() {
        return Err(Refusal::field("messages", "there are no messages; send one at least"));
    }
    if messages.len() > MESSAGES_MAX {
        let message = format!("{} messages are more than the {MESSAGES_MAX} that are taken", messages.len());
        return Err(Refusal::field("messages", message));
    }
    let convert = |(index, message)| one(index, message, knows_developer);
    messages.into_iter().enumerate().map(convert).collect()
}

fn one(index: usize, message: Message, developer: DeveloperRole) -> Result<Value, Refusal> {
    let text = |content: TextOr<Part>| text_of(content, &format!("messages[{index}].content"));
    let said = |role: &str, content: TextOr<Part>, name: Option<String>| {
        Ok(with_name(json!({"role": role, "content": text(content)?}), name))
    };
    match message {
        Message::System { content, name } => said("system", content, name),
        Message::Developer { content, name } if developer == DeveloperRole::Known => {
            said("developer", content, name)
        }
        Message::Developer { content, name } => said("system", content, name),
        Message::User { content, name } => said("user", content, name),
        Message::Tool { content, tool_call_id, name } => {
            let content = text(content)?;
            Ok(with_name(json!({"role": "tool", "content": content, "tool_call_id": tool_call_id}), name))
        }
        Message::Assistant { content, name, refusal, reasoning_content, tool_calls } => {
            let content = content.map(text).transpose()?.or(refusal);
            let mut message = Map::new();
            message.insert("role".to_string(), "assistant".into());
            message.insert("content".to_string(), content.unwrap_or_default().into());
            if let Some(reasoning) = reasoning_content {
                message.insert("reasoning_content".to_string(), reasoning.into());
            }
            if let Some(calls) = tool_calls.filter(|calls| !calls.is_empty()) {
                message.insert("tool_calls".to_string(), calls.into_iter().map(call).collect());
            }
            Ok(with_name(Value::Object(message), name))
        }
    }
}

fn with_name(mut message: Value, name: Option<String>) -> Value {
    if let (Some(name), Value::Object(fields)) = (name, &mut message) {
        fields.insert("name".to_string(), name.into());
    }
    message
}

/// Templates write arguments as JSON themselves, so they are given as an object where they are one.
fn call(call: Call) -> Value {
    let Call { id, function: CalledFunction { name, arguments }, .. } = call;
    let arguments = match serde_json::from_str(&arguments) {
        Ok(Value::Object(object)) => Value::Object(object),
        _ => Value::String(arguments),
    };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// The text of a content; several parts are one text.
fn text_of(content: TextOr<Part>, place: &str) -> Result<String, Refusal> {
    let parts = match content {
        TextOr::Text(text) => return Ok(text),
        TextOr::Items(parts) => parts,
    };
    let mut whole = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        match part {
            Part::Text { text } => whole.push_str(&text),
            Part::Refusal { refusal } => whole.push_str(&refusal),
            Part::ImageUrl { .. } | Part::InputAudio { .. } | Part::File { .. } => {
                let message = "the model takes text only; leave out images, sounds and files";
                return Err(Refusal::field(format!("{place}[{index}]"), message));
            }
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(messages: Value) -> Result<Vec<Value>, Refusal> {
        for_template(crate::strict::typed(messages)?, DeveloperRole::AsSystem)
    }

    #[test]
    fn parts_become_one_text_and_arguments_an_object() {
        let messages = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "7"},
        ]);
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
            {"role": "tool", "content": "7", "tool_call_id": "c1"},
        ]);
        assert_eq!(Value::Array(converted(messages).unwrap()), expected);
    }

    #[test]
    fn messages_that_cannot_be_read_are_refused() {
        for messages in [
            json!([]),
            json!(null),
            json!("hello"),
            json!([{"role": "wizard", "content": "a"}]),
            json!([{"role": "user"}]),
            json!([{"role": "user", "content": 1}]),
            json!([{"role": "user", "content": "a", "surprise": 1}]),
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            json!(vec![json!({"role": "user", "content": "a"}); 100_000]),
        ] {
            assert!(converted(messages.clone()).is_err(), "{}", messages.to_string().split_at(2).0);
        }
    }
}
