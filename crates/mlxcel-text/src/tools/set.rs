//! The tools of a request: their names and what their arguments look like.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    /// The JSON schema of the arguments.
    pub parameters: Value,
}

/// The tools of a request, each name once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolSet {
    tools: Vec<Tool>,
}

/// A request with more is a mistake: no prompt has room for them.
const TOOLS_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 128;

impl ToolSet {
    /// Reads the `tools` of an OpenAI request: `{"type": "function", "function": {"name", "parameters"}}`.
    pub fn from_openai(tools: &[Value]) -> Result<Self> {
        let functions = tools.iter().enumerate().map(|(index, tool)| {
            let invalid = |problem| Error::ToolInvalid { index, problem };
            let is_function = tool.get("type").is_none_or(|kind| kind == "function");
            let function = tool.get("function").filter(|_| is_function);
            let function =
                function.ok_or_else(|| invalid("must have `type` \"function\" and a `function`"))?;
            let name = function.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| invalid("has no `name` that is a text"))?;
            let parameters = function.get("parameters").filter(|value| !value.is_null()).cloned();
            Ok(Tool { name: name.to_owned(), parameters: parameters.unwrap_or_else(|| json!({})) })
        });
        Self::new(functions.collect::<Result<_>>()?)
    }

    pub fn new(tools: Vec<Tool>) -> Result<Self> {
        if tools.len() > TOOLS_MAX {
            return Err(Error::TooManyTools { found: tools.len(), limit: TOOLS_MAX });
        }
        for (index, tool) in tools.iter().enumerate() {
            check(index, tool)?;
            if tools[..index].iter().any(|other| other.name == tool.name) {
                return Err(Error::DuplicateTool { name: tool.name.clone() });
            }
        }
        Ok(Self { tools })
    }

    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter()
    }

    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// An argument that a form wrote without quotes: a text where the schema says so, else JSON if it is JSON.
    pub(super) fn typed(&self, tool: &str, argument: &str, written: &str) -> Value {
        let text = || Value::String(written.to_owned());
        let schema = self.get(tool).and_then(|tool| tool.parameters.get("properties")?.get(argument));
        let kind = schema.and_then(|schema| schema.get("type"));
        let is_text = kind.is_some_and(|kind| kind == "string");
        if is_text { text() } else { serde_json::from_str(written.trim()).unwrap_or_else(|_| text()) }
    }
}

fn check(index: usize, tool: &Tool) -> Result<()> {
    let invalid = |problem| Err(Error::ToolInvalid { index, problem });
    if tool.name.len() > NAME_BYTES_MAX {
        return invalid("has a name of more than 128 bytes");
    }
    if !super::cursor::is_name(&tool.name) {
        return invalid("has a name that is empty or has blanks, quotes or brackets");
    }
    match &tool.parameters {
        Value::Object(schema) if describes_an_object(schema) => Ok(()),
        _ => invalid("has `parameters` that are no JSON schema of an object"),
    }
}

fn describes_an_object(schema: &Map<String, Value>) -> bool {
    let properties_fit = schema.get("properties").is_none_or(Value::is_object);
    properties_fit && schema.get("type").is_none_or(|kind| kind == "object")
}
