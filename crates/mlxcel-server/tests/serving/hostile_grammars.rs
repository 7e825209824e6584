//! Schemas and patterns made to hang or to fill memory: each is followed or refused with a 400, and meanwhile and
//! afterwards others are answered.

use serde_json::{Value, json};

use crate::house::House;

/// The status of an answer by a schema. One that is not answered is blamed on the field.
fn status(house: &House, schema: &Value) -> u16 {
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let body = json!({
        "messages": [{"role": "user", "content": "A"}], "max_tokens": 2, "response_format": format,
    });
    let answer = house.client.post("/v1/chat/completions", &body);
    if answer.status != 200 {
        assert_eq!(answer.json()["error"]["param"], "response_format", "{}", answer.text());
    }
    answer.status
}

#[test]
fn hostile_patterns_are_followed_or_refused() {
    let house = House::new();
    let nested = "(".repeat(60_000) + "a" + &")".repeat(60_000);
    for (pattern, expected) in [
        ("^(a+)+$", &[200][..]),
        ("^(a*)*b$", &[200]),
        ("^a{1,100000}$", &[200, 400]),
        ("^(a{1,1000}){1,1000}$", &[200, 400]),
        (nested.as_str(), &[400]),
        ("(", &[400]),
    ] {
        let got = status(&house, &json!({"type": "string", "pattern": pattern}));
        assert!(expected.contains(&got), "{}: {got}", &pattern[..pattern.len().min(40)]);
        house.assert_sound();
    }
}

#[test]
fn hostile_schemas_are_followed_or_refused() {
    let house = House::new();
    let tree = json!({
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}},
    });
    let many: Vec<Value> = (0..10_000).map(|i| json!({"const": format!("a{i}")})).collect();
    for (what, schema, expected) in [
        ("recursive", tree, &[200][..]),
        ("a circle", json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}), &[400]),
        ("remote", json!({"$ref": "http://169.254.169.254/latest/meta-data"}), &[400]),
        ("a file", json!({"$ref": "file:///etc/passwd"}), &[400]),
        ("10k anyOf", json!({"anyOf": many}), &[200, 400]),
        ("1M enum", json!({"enum": (0..1_000_000).collect::<Vec<u32>>()}), &[200, 400]),
        ("unsatisfiable", json!({"type": "integer", "minimum": 2, "maximum": 1}), &[400]),
        ("false", json!(false), &[400]),
    ] {
        let got = status(&house, &schema);
        assert!(expected.contains(&got), "{what}: {got}");
        house.assert_sound();
    }
}

/// Whatever comes first ends the answer: the grammar, a stop string or the length.
#[test]
fn a_grammar_with_a_stop_string_and_a_length_ends_cleanly() {
    let house = House::new();
    let schema = json!({"const": "aaaaaaaaaa"});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    for (stop, max_tokens, reason) in [("b", 64, "stop"), ("aaa", 64, "stop"), ("b", 1, "length")] {
        let body = json!({
            "messages": [{"role": "user", "content": "A"}],
            "max_tokens": max_tokens, "stop": [stop], "response_format": format,
        });
        let answer = house.client.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let choice = &answer.json()["choices"][0];
        assert_eq!(choice["finish_reason"], reason, "{choice}");
        let text = choice["message"]["content"].as_str().unwrap_or_default();
        assert!("\"aaaaaaaaaa\"".starts_with(text) && !text.contains(stop), "{choice}");
        assert_eq!(text.len() == 12, stop == "b" && reason == "stop", "{choice}");
        house.assert_sound();
    }
}

#[test]
fn others_are_answered_while_a_large_grammar_is_compiled() {
    let house = House::new();
    std::thread::scope(|scope| {
        let client = house.client.clone();
        let large = scope.spawn(move || {
            let options: Vec<Value> =
                (0..3000).map(|i| json!({"const": format!("option number {i}")})).collect();
            let schema = json!({"type": "array", "items": {"anyOf": options}, "maxItems": 50});
            let body = json!({"prompt": "A", "n_predict": 2, "json_schema": schema});
            client.post("/completion", &body).status
        });
        let mut answered = 0;
        while !large.is_finished() || answered == 0 {
            let answer = house.client.post("/v1/completions", &json!({"prompt": "A", "max_tokens": 3}));
            assert_eq!(answer.json()["choices"][0]["text"], "BCD");
            answered += 1;
        }
        assert!([200, 400].contains(&large.join().unwrap()));
    });
    house.assert_sound();
}
