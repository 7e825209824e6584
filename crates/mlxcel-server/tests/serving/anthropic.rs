//! Anthropic's messages, whole and streamed.

use serde_json::{Value, json};

use crate::house::House;

const MESSAGES: &str = "/v1/messages";

fn body(text: &str, more: Value) -> Value {
    let mut body =
        json!({"model": "script", "max_tokens": 100, "messages": [{"role": "user", "content": text}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn weather() -> Value {
    json!([{"name": "weather", "description": "Tells the weather.",
            "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}])
}

#[test]
fn a_message_is_answered() {
    let house = House::new();
    let json =
        house.client.post(MESSAGES, &body("A", json!({"max_tokens": 3, "system": "Be brief."}))).json();
    assert_eq!((&json["type"], &json["role"]), (&json!("message"), &json!("assistant")), "{json}");
    assert_eq!(json["content"], json!([{"type": "text", "text": "BCD"}]));
    assert_eq!((&json["stop_reason"], &json["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    assert_eq!(json["usage"]["output_tokens"], 3);
    let json = house.client.post(MESSAGES, &body("A", json!({"stop_sequences": ["FG"]}))).json();
    assert_eq!((&json["stop_reason"], &json["stop_sequence"]), (&json!("stop_sequence"), &json!("FG")));
    let json = house.client.post(MESSAGES, &body("A", json!({}))).json();
    assert_eq!(json["stop_reason"], "end_turn");
}

#[test]
fn what_was_cached_is_counted_apart() {
    let house = House::new();
    let long = format!("{}A", "x".repeat(200));
    let first = house.client.post(MESSAGES, &body(&long, json!({}))).json()["usage"].clone();
    let again = house.client.post(MESSAGES, &body(&long, json!({}))).json()["usage"].clone();
    assert_eq!(first["cache_read_input_tokens"], 0);
    let read = again["cache_read_input_tokens"].as_u64().unwrap();
    assert!(read > 100);
    assert_eq!(again["input_tokens"].as_u64().unwrap() + read, first["input_tokens"].as_u64().unwrap());
    let count = json!({"model": "script", "messages": [{"role": "user", "content": long}]});
    let counted = house.client.post("/v1/messages/count_tokens", &count).json();
    assert_eq!(counted, json!({"input_tokens": first["input_tokens"]}));
}

#[test]
fn a_stream_is_blocks_that_begin_grow_and_end() {
    let house = House::new();
    let answer = house.client.post(MESSAGES, &body("3", json!({"stream": true})));
    let events = answer.events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        (names[0], names[names.len() - 2], names[names.len() - 1]),
        ("message_start", "message_delta", "message_stop")
    );
    let chunks = answer.chunks();
    assert!(chunks.iter().zip(&names).all(|(chunk, name)| chunk["type"] == *name));
    let text = |kind: &str, field: &str| -> String {
        let deltas = chunks.iter().filter(|chunk| chunk["delta"]["type"] == kind);
        deltas.map(|chunk| chunk["delta"][field].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(text("thinking_delta", "thinking"), "let me see");
    assert_eq!(text("text_delta", "text"), "the answer");
    assert_eq!(names.iter().filter(|n| **n == "content_block_start").count(), 2);
    assert_eq!(names.iter().filter(|n| **n == "content_block_stop").count(), 2);
    assert_eq!(chunks[names.len() - 2]["delta"]["stop_reason"], "end_turn");
    assert!(!answer.text().contains("[DONE]"));
}

#[test]
fn a_tool_is_used_whole_and_streamed() {
    let house = House::new();
    let json = house.client.post(MESSAGES, &body("1", json!({"tools": weather()}))).json();
    let block = &json["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("weather")), "{json}");
    assert_eq!(block["input"], json!({"city": "Bern"}));
    assert_eq!(json["stop_reason"], "tool_use");
    let answer = house.client.post(MESSAGES, &body("1", json!({"tools": weather(), "stream": true})));
    let chunks = answer.chunks();
    let parts = chunks.iter().filter(|chunk| chunk["delta"]["type"] == "input_json_delta");
    let input: String = parts.map(|chunk| chunk["delta"]["partial_json"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), json!({"city": "Bern"}));
}

#[test]
fn results_of_tools_are_rendered() {
    let house = House::new();
    let messages = json!([
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "text", "text": "and A", "cache_control": {"type": "ephemeral"}}]},
    ]);
    let json = house.client.post(MESSAGES, &body("", json!({"messages": messages, "max_tokens": 1}))).json();
    assert_eq!(json["content"][0]["text"], "B", "{json}");
}

#[test]
fn what_cannot_be_honoured_is_refused_in_the_right_shape() {
    let house = House::new();
    for fields in [
        json!({"max_tokens": 0}),
        json!({"max_tokens": -1}),
        json!({"messages": []}),
        json!({"messages": [{"role": "system", "content": "A"}]}),
        json!({"messages": [{"role": "assistant", "content": ""}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 0}}),
        json!({"thinking": {"type": "enabled", "budget_tokens": -1}}),
        json!({"temperature": 101}),
        json!({"stop_sequences": [""]}),
        json!({"container": "x"}),
        json!({"tool_choice": {"type": "any"}}),
        json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ] {
        let answer = house.client.post(MESSAGES, &body("A", fields.clone()));
        assert_eq!(answer.status, 400, "{fields}: {}", answer.text());
        let json = answer.json();
        assert_eq!(
            (&json["type"], &json["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
    }
    let missing = house.client.post(MESSAGES, &json!({"messages": [{"role": "user", "content": "A"}]}));
    assert_eq!(missing.status, 400);
    let unknown = house.client.post(MESSAGES, &body("A", json!({"model": "claude"})));
    assert_eq!((unknown.status, &unknown.json()["error"]["type"]), (404, &json!("not_found_error")));
    house.assert_sound();
}

/// The prompt has opened the thoughts, which the script would fill with one character after the other.
#[test]
fn thoughts_end_when_their_budget_is_spent() {
    let house = House::new();
    let messages = json!([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think> "}]);
    for (budget, thoughts) in [(1, "!"), (5, "!\"#$%"), (16, "!\"#$%&'()*+,-./0")] {
        let fields = json!({"messages": messages, "max_tokens": 100,
                            "thinking": {"type": "enabled", "budget_tokens": budget}});
        let json = house.client.post(MESSAGES, &body("", fields)).json();
        assert_eq!(json["content"][0]["thinking"], thoughts, "{json}");
        assert_eq!(json["content"][1]["text"], "the answer", "{json}");
    }
    // Thoughts that end by themselves, and none at all, are as they are.
    for (text, blocks) in [("3", 2), ("A", 1)] {
        let fields = json!({"max_tokens": 100, "thinking": {"type": "enabled", "budget_tokens": 50}});
        let with = house.client.post(MESSAGES, &body(text, fields)).json();
        let without = house.client.post(MESSAGES, &body(text, json!({"max_tokens": 100}))).json();
        assert_eq!(with["content"], without["content"]);
        assert_eq!(with["content"].as_array().unwrap().len(), blocks, "{with}");
    }
    house.assert_sound();
}
