//! `response_format`: free text, any JSON object, or JSON by a schema.

use mlxcel_text::GrammarSource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::refusal::Refusal;

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResponseFormat {
    Text {},
    JsonObject {},
    JsonSchema { json_schema: NamedSchema },
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSchema {
    pub name: Option<String>,
    pub description: Option<String>,
    pub schema: Option<Value>,
    /// Schemas are always followed, whatever this says.
    pub strict: Option<bool>,
}

impl ResponseFormat {
    /// What the answer must follow.
    pub fn grammar(&self) -> Result<Option<GrammarSource>, Refusal> {
        match self {
            ResponseFormat::Text {} => Ok(None),
            ResponseFormat::JsonObject {} => Ok(Some(GrammarSource::JsonObject)),
            ResponseFormat::JsonSchema { json_schema } => {
                let schema = json_schema.schema.clone().filter(|schema| !schema.is_null());
                let missing = "the field 'response_format.json_schema.schema' is missing";
                let schema =
                    schema.ok_or_else(|| Refusal::field("response_format.json_schema.schema", missing))?;
                Ok(Some(GrammarSource::JsonSchema(schema)))
            }
        }
    }
}
