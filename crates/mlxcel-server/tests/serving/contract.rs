//! The document against the server: every field of every request with odd values, none of which may break it; and a
//! short soak, after which everything is as it was.

use std::thread;

use serde_json::{Map, Value, json};

use crate::house::House;

/// Values that some field of some type will not expect.
fn oddities() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(""),
        json!("\u{0}\u{202e}💥"),
        json!([]),
        json!([[[]]]),
        json!({}),
        json!({"type": "function"}),
        json!([{"role": "user", "content": "A"}]),
        json!([null, {"a": [1, {"b": null}]}]),
    ]
}

/// The smallest request that each route answers.
fn smallest(path: &str) -> Map<String, Value> {
    let messages = json!([{"role": "user", "content": "A"}]);
    let body = match path {
        "/v1/messages" => json!({"model": "script", "max_tokens": 2, "messages": messages}),
        "/v1/messages/count_tokens" => json!({"model": "script", "messages": messages}),
        "/v1/responses" => json!({"input": "A", "max_output_tokens": 2}),
        "/v1/chat/completions" | "/chat/completions" => json!({"messages": messages, "max_tokens": 2}),
        "/apply-template" => json!({"messages": messages}),
        "/completion" | "/completions" => json!({"prompt": "A", "n_predict": 2}),
        "/infill" => json!({"input_prefix": "A", "input_suffix": "B"}),
        "/detokenize" => json!({"tokens": [65]}),
        "/tokenize" => json!({"content": "A"}),
        "/v1/completions" => json!({"prompt": "A", "max_tokens": 2}),
        _ => json!({"input": "A"}),
    };
    body.as_object().unwrap().clone()
}

/// The names of a request's fields, as the document has them.
fn fields(document: &Value, operation: &Value) -> Vec<String> {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let named = schema["$ref"].as_str().map(|path| path.rsplit('/').next().unwrap());
    let schema = named.map_or(schema, |name| &document["components"]["schemas"][name]);
    schema["properties"].as_object().unwrap_or_else(|| panic!("{schema}")).keys().cloned().collect()
}

#[test]
fn no_value_of_any_documented_field_breaks_the_server() {
    let house = House::new();
    let document = house.client.get("/openapi.json").json();
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(operation) = item.get("post") else { continue };
        let fields = fields(&document, operation);
        assert!(!fields.is_empty(), "{path}");
        for field in fields {
            for odd in oddities() {
                let mut body = smallest(path);
                body.insert(field.clone(), odd.clone());
                let answer = house.client.post(path, &Value::Object(body));
                assert!((200..500).contains(&answer.status), "{path} {field} {odd}: {}", answer.text());
                asked += 1;
            }
        }
    }
    assert!(asked > 1000, "{asked}");
    house.assert_sound();
}

#[test]
fn every_reference_in_the_document_leads_somewhere() {
    let house = House::new();
    let document = house.client.get("/openapi.json").json();
    let text = document.to_string();
    let references = text.split("\"$ref\":\"#/components/schemas/").skip(1);
    let names: Vec<&str> = references.map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(names.len() > 10);
    for name in names {
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

#[test]
fn after_many_requests_of_all_kinds_everything_is_as_it_was() {
    let house = House::new();
    house.assert_sound();
    let before = house.client.get("/metrics").text().lines().count();
    for _ in 0..5 {
        let clients: Vec<_> = (0..8)
            .map(|i| {
                let client = house.client.clone();
                thread::spawn(move || {
                    let body = json!({"messages": [{"role": "user", "content": "5"}], "max_tokens": 50, "stream": i % 2 == 0});
                    match i {
                        // Goes before the answer.
                        0 | 1 => drop(client.begin_post("/v1/chat/completions", &body)),
                        2 => drop(client.post_bytes("/v1/chat/completions", b"{")),
                        _ => drop(client.post("/v1/chat/completions", &body)),
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    }
    house.assert_sound();
    house.wait_for("mlxcel_http_connections", 1.0);
    let after = house.client.get("/metrics").text().lines().count();
    assert!(after <= before + 2, "{before} lines became {after}");
}
