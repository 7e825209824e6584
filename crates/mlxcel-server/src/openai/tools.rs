//! Tools that a model may call, and whether it must.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::refusal::Refusal;

/// Tools of one request.
const TOOLS_MAX: usize = 128;
const NAME_MAX: usize = 64;

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Tool {
    Function { function: Function },
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    #[schemars(regex(pattern = r"^[a-zA-Z0-9_.-]{1,64}$"))]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether tools are called, and which.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\", or an object that names a function"
)]
pub enum ToolChoice {
    Mode(Mode),
    Named(Named),
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    None,
    Auto,
    Required,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Named {
    Function { function: FunctionName },
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct FunctionName {
    pub name: String,
}

/// Valid tools, and what is to be done with them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    pub functions: Vec<Function>,
    pub must: Must,
}

/// Whether a tool is called.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Must {
    /// As the model likes.
    #[default]
    May,
    /// Tools are not offered.
    Not,
    /// Some tool is called.
    Any,
    /// This tool is called.
    Named(String),
}

impl Tools {
    pub fn new(tools: Option<Vec<Tool>>, choice: Option<ToolChoice>) -> Result<Self, Refusal> {
        let functions: Vec<Function> =
            tools.unwrap_or_default().into_iter().map(|Tool::Function { function }| function).collect();
        Self::checked(functions, choice)
    }

    fn checked(functions: Vec<Function>, choice: Option<ToolChoice>) -> Result<Self, Refusal> {
        if functions.len() > TOOLS_MAX {
            let message = format!("{} tools are more than the {TOOLS_MAX} that are taken", functions.len());
            return Err(Refusal::field("tools", message));
        }
        let mut names = BTreeSet::new();
        for (index, function) in functions.iter().enumerate() {
            check(index, function)?;
            if !names.insert(function.name.as_str()) {
                let message = format!("two tools are named '{}'; give each its own name", function.name);
                return Err(Refusal::field(format!("tools[{index}].function.name"), message));
            }
        }
        let must = must(choice, &names)?;
        Ok(Tools { functions, must })
    }

    /// The tools as templates see them; `None` where none are offered.
    pub fn offered(&self) -> Option<Vec<Value>> {
        let is_offered = !self.functions.is_empty() && self.must != Must::Not;
        is_offered
            .then(|| self.functions.iter().map(|f| json!({"type": "function", "function": f})).collect())
    }
}

fn must(choice: Option<ToolChoice>, names: &BTreeSet<&str>) -> Result<Must, Refusal> {
    let refused = |message: String| Err(Refusal::field("tool_choice", message));
    match choice {
        None | Some(ToolChoice::Mode(Mode::Auto)) => Ok(Must::May),
        Some(ToolChoice::Mode(Mode::None)) => Ok(Must::Not),
        Some(_) if names.is_empty() => {
            refused("'tool_choice' asks for a tool, but there are none".to_string())
        }
        Some(ToolChoice::Mode(Mode::Required)) => Ok(Must::Any),
        Some(ToolChoice::Named(Named::Function { function })) => {
            if names.contains(function.name.as_str()) {
                return Ok(Must::Named(function.name));
            }
            let shown: String = function.name.chars().take(NAME_MAX).collect();
            refused(format!("there is no tool named '{shown}'; name one of the tools"))
        }
    }
}

fn check(index: usize, function: &Function) -> Result<(), Refusal> {
    let place = |field: &str| format!("tools[{index}].function.{field}");
    let name = &function.name;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_plain) {
        let message = format!("a tool's name has 1 to {NAME_MAX} letters, digits, '_', '-' or '.'");
        return Err(Refusal::field(place("name"), message));
    }
    match &function.parameters {
        None | Some(Value::Object(_)) => Ok(()),
        Some(_) => Err(Refusal::field(place("parameters"), "the parameters must be a JSON schema object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Tool {
        let function = Function { name: name.to_string(), description: None, parameters: None, strict: None };
        Tool::Function { function }
    }

    fn refused(tools: Vec<Tool>, choice: Option<Value>) -> Refusal {
        let choice = choice.map(|choice| serde_json::from_value(choice).unwrap());
        Tools::new(Some(tools), choice).expect_err("bad tools")
    }

    #[test]
    fn tools_that_make_no_sense_are_refused_by_place() {
        let param = |refusal: Refusal| refusal.param.unwrap();
        assert_eq!(param(refused(vec![function("")], None)), "tools[0].function.name");
        assert_eq!(param(refused(vec![function("a b")], None)), "tools[0].function.name");
        assert_eq!(param(refused(vec![function("a"), function("a")], None)), "tools[1].function.name");
        assert_eq!(param(refused(vec![function("a"); 5000], None)), "tools");
        assert_eq!(param(refused(vec![], Some(json!("required")))), "tool_choice");
        let missing = json!({"type": "function", "function": {"name": "b"}});
        assert_eq!(param(refused(vec![function("a")], Some(missing))), "tool_choice");
    }

    #[test]
    fn a_choice_of_none_offers_no_tools() {
        let tools = |choice: Value| {
            Tools::new(Some(vec![function("a")]), Some(serde_json::from_value(choice).unwrap())).unwrap()
        };
        assert_eq!(tools(json!("none")).offered(), None);
        assert_eq!(tools(json!("auto")).offered().map(|tools| tools.len()), Some(1));
        assert_eq!(tools(json!("required")).must, Must::Any);
    }
}
