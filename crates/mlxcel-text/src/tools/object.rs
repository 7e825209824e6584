//! A call, and the JSON object that many forms write it as.

use serde_json::{Map, Value};

use super::cursor::{is_name, json_len};

/// A complete, well-formed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// A JSON object as the model wrote it, so that no number or order is changed.
    pub(crate) arguments: String,
}

impl ToolCall {
    /// A call whose arguments stand alone; `None` if they are no JSON object.
    pub(crate) fn with_arguments(name: String, arguments: &str) -> Option<Self> {
        let is_object = serde_json::from_str::<Map<String, Value>>(arguments).is_ok();
        (is_object && is_name(&name)).then(|| Self { id: None, name, arguments: arguments.to_owned() })
    }

    /// A call as `{"name": …, "arguments": …}`, or with `parameters`.
    pub(super) fn from_object(text: &str) -> Option<Self> {
        let fields: Map<String, Value> = serde_json::from_str(text).ok()?;
        let fields = fields.get("function").and_then(Value::as_object).unwrap_or(&fields);
        let name = fields.get("name").and_then(Value::as_str).filter(|name| is_name(name))?;
        let id = fields.get("id").and_then(Value::as_str).map(str::to_owned);
        let arguments = match fields.get("arguments").or_else(|| fields.get("parameters")) {
            None => "{}".to_owned(),
            // Some models write the arguments as a text that is JSON itself.
            Some(Value::String(inner)) => {
                serde_json::from_str::<Map<String, Value>>(inner).ok()?;
                inner.clone()
            }
            Some(Value::Object(_)) => written_arguments(text)?.to_owned(),
            Some(_) => return None,
        };
        Some(Self { id, name: name.to_owned(), arguments })
    }
}

/// The arguments of a valid object exactly as they are written in it.
fn written_arguments(text: &str) -> Option<&str> {
    let mut rest = text.trim_start().strip_prefix('{')?;
    loop {
        rest = rest.trim_start();
        let key_len = string_len(rest)?;
        let key: String = serde_json::from_str(&rest[..key_len]).ok()?;
        rest = rest[key_len..].trim_start().strip_prefix(':')?.trim_start();
        let len = value_len(rest)?;
        match key.as_str() {
            "arguments" | "parameters" if rest.starts_with('{') => return Some(&rest[..len]),
            "function" if rest.starts_with('{') => return written_arguments(&rest[..len]),
            _ => rest = rest[len..].trim_start().strip_prefix(',')?,
        }
    }
}

fn value_len(text: &str) -> Option<usize> {
    match text.as_bytes().first()? {
        b'{' | b'[' => json_len(text),
        b'"' => string_len(text),
        _ => text.find([',', '}', ']']),
    }
}

fn string_len(text: &str) -> Option<usize> {
    let mut escaped = false;
    let inner = text.strip_prefix('"')?;
    let end = inner.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    Some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_kept_as_they_were_written() {
        let text =
            r#"{"id": "x\"}", "name":"f", "arguments" : {"n": 12345678901234567890123, "z":1.0, "a":"}"} }"#;
        let call = ToolCall::from_object(text).expect("a call");
        assert_eq!(call.arguments, r#"{"n": 12345678901234567890123, "z":1.0, "a":"}"}"#);
        assert_eq!((call.id.as_deref(), call.name.as_str()), (Some("x\"}"), "f"));
    }

    #[test]
    fn what_has_no_name_or_no_object_of_arguments_is_no_call() {
        for text in [
            "{}",
            r#"{"name": 1, "arguments": {}}"#,
            r#"{"name": "", "arguments": {}}"#,
            r#"{"name": "a b", "arguments": {}}"#,
            r#"{"name": "f", "arguments": [1]}"#,
            r#"{"name": "f", "arguments": "no"}"#,
            r#"{"name": "f", "arguments": {,}}"#,
            "[]",
        ] {
            assert_eq!(ToolCall::from_object(text), None, "{text}");
        }
    }

    #[test]
    fn arguments_in_a_text_and_missing_ones_are_understood() {
        let call = ToolCall::from_object(r#"{"name":"f","arguments":"{\"a\":1}"}"#).expect("a call");
        assert_eq!(call.arguments, r#"{"a":1}"#);
        assert_eq!(ToolCall::from_object(r#"{"name":"f"}"#).expect("a call").arguments, "{}");
    }
}
