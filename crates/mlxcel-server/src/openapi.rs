//! The OpenAPI document, made from the table of routes and the types that requests are parsed into.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::routes::{self, Access, Route};
use crate::wire::SamplingFields;

/// Makes the schema of one type.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What a route is sent and what it sends, for the document.
pub struct Described {
    pub request: Option<SchemaOf>,
    pub response: Reply,
}

#[derive(Clone, Copy)]
pub enum Reply {
    Json(SchemaOf),
    /// JSON, or events where the request asks for a stream.
    JsonOrEvents(SchemaOf),
    Text(&'static str),
}

/// A type by reference.
pub fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A type whose object also holds the fields of sampling.
pub fn schema_with_sampling<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut own = T::json_schema(generator);
    let mut shared = SamplingFields::json_schema(generator);
    if let (Some(Value::Object(own)), Some(Value::Object(shared))) =
        (own.get_mut("properties"), shared.get_mut("properties"))
    {
        own.extend(std::mem::take(shared));
    }
    own
}

/// The whole document.
pub fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = SchemaGenerator::new(settings.clone());
    let mut answers = SchemaGenerator::new(settings.for_serialize());
    let mut paths = Map::new();
    for (path, routes) in routes::by_path() {
        let operations = routes.into_iter().map(|route| {
            let method = route.method.as_str().to_lowercase();
            (method, operation(route, path, &mut generator, &mut answers))
        });
        // The page is for people.
        let operations: Map<String, Value> = operations.collect();
        if routes::access_of_path(path) == Access::Keyed {
            paths.insert(path.replace("{*", "{"), Value::Object(operations));
        }
    }
    let mut schemas = generator.take_definitions(true);
    schemas.extend(answers.take_definitions(true));
    schemas.insert("Error".to_string(), json!({"type": "object"}));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "mlxcel",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The OpenAI, Anthropic and llama-server interfaces of mlxcel.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    })
}

fn operation(
    route: &Route,
    path: &str,
    requests: &mut SchemaGenerator,
    answers: &mut SchemaGenerator,
) -> Value {
    let mut operation = json!({"summary": route.summary, "operationId": operation_id(route, path)});
    if let Some(request) = route.described.request {
        let schema = request(requests);
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = names
        .map(|name| {
            let name = name.trim_start_matches('*');
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
        })
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    let content = match route.described.response {
        Reply::Json(schema) => json!({"application/json": {"schema": schema(answers)}}),
        Reply::JsonOrEvents(schema) => json!({
            "application/json": {"schema": schema(answers)},
            "text/event-stream": {},
        }),
        Reply::Text(kind) => json!({kind: {"schema": {"type": "string"}}}),
    };
    let refused = json!({"description": "Refused; the body says why, in the shape of the interface.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}});
    operation["responses"] =
        json!({"200": {"description": "The answer.", "content": content}, "default": refused});
    operation
}

fn operation_id(route: &Route, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    format!("{}_{}", route.method.as_str().to_lowercase(), words.join("_"))
}
