//! Calls of tools, and reasoning: told apart from the answer, whole and streamed.

use serde_json::{Value, json};

use crate::house::{House, Plan};

const CHAT: &str = "/v1/chat/completions";

fn weather() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}},
                            "required": ["city"], "additionalProperties": false});
    json!({"type": "function", "function": {"name": "weather", "parameters": parameters}})
}

fn body(text: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "tools": [weather()]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_call_is_told_apart() {
    let house = House::new();
    let json = house.client.post(CHAT, &body("1", json!({}))).json();
    let choice = &json["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{json}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("weather")));
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Bern"}));
}

#[test]
fn a_streamed_call_is_the_same_call() {
    let house = House::new();
    let chunks = house.client.post(CHAT, &body("1", json!({"stream": true}))).chunks();
    let calls: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array())
        .flat_map(|calls| calls.clone())
        .collect();
    assert_eq!(calls[0]["function"]["name"], "weather");
    assert!(calls[1..].iter().all(|call| call.get("id").is_none() && call["index"] == 0));
    let arguments: String =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({"city": "Bern"}));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// A call that the grammar spells letter by letter.
#[test]
fn arguments_are_streamed_as_they_come() {
    // Among equals the script writes blanks for long.
    let house = House::build(Plan { context: 4096, ..Plan::default() });
    for path in [CHAT, "/v1/messages", "/v1/responses"] {
        let blanks = json!({"9": -1, "10": -1, "13": -1, "32": -1});
        let function = &weather()["function"];
        let fields = match path {
            CHAT => json!({"tool_choice": "required", "stream": true, "parallel_tool_calls": false,
                           "logit_bias": blanks}),
            "/v1/messages" => json!({"model": "script", "max_tokens": 3000, "stream": true,
                "tools": [{"name": "weather", "input_schema": function["parameters"]}],
                "tool_choice": {"type": "any", "disable_parallel_tool_use": true}}),
            _ => {
                json!({"input": "3", "stream": true, "parallel_tool_calls": false, "tool_choice": "required", "max_output_tokens": 3000,
                "tools": [{"type": "function", "name": "weather", "parameters": function["parameters"]}]})
            }
        };
        // The model thinks, and would then answer in words.
        let mut body = body("3", fields);
        if path == "/v1/responses" {
            body.as_object_mut().unwrap().remove("messages");
        }
        let answer = house.client.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let part = |chunk: &Value| {
            let parts = [
                &chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"],
                &chunk["delta"]["partial_json"],
                if chunk["type"] == "response.function_call_arguments.delta" {
                    &chunk["delta"]
                } else {
                    &Value::Null
                },
            ];
            parts.iter().find_map(|part| part.as_str().filter(|text| !text.is_empty()).map(str::to_string))
        };
        let parts: Vec<String> = answer.chunks().iter().filter_map(part).collect();
        assert!(parts.len() > 3, "{path}: {parts:?}");
        let arguments: Value =
            serde_json::from_str(&parts.concat()).unwrap_or_else(|e| panic!("{path} {e}: {parts:?}"));
        assert!(arguments["city"].is_string(), "{path}: {arguments}");
        house.assert_sound();
    }
}

#[test]
fn an_answer_is_a_call_or_follows_its_format() {
    let house = House::new();
    let schema = json!({"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"],
                        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let call = house.client.post(CHAT, &body("1", json!({"response_format": format}))).json();
    let message = &call["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["name"], "weather", "{call}");
    assert_eq!(message["content"], Value::Null);
    // The script would say something else, and may neither call nor write blanks.
    let bias = json!({"9": -1, "10": -1, "13": -1, "32": -1, "60": -100, "258": -100});
    let fields = json!({"response_format": format, "logit_bias": bias});
    let answer = house.client.post(CHAT, &body("A", fields)).json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(serde_json::from_str::<Value>(content).unwrap(), json!({"n": 7}));
    let required =
        json!({"response_format": format, "tool_choice": "required", "parallel_tool_calls": false});
    let required = house.client.post(CHAT, &body("1", required)).json();
    assert_eq!(required["choices"][0]["finish_reason"], "tool_calls", "{required}");
    let bad =
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": false}}});
    let refused = house.client.post(CHAT, &body("A", bad));
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("response_format")));
    house.assert_sound();
}

#[test]
fn a_malformed_call_is_text() {
    let house = House::new();
    let json = house.client.post(CHAT, &body("2", json!({}))).json();
    let message = &json["choices"][0]["message"];
    assert!(message["content"].as_str().unwrap().contains("{broken"), "{json}");
    assert!(message.get("tool_calls").is_none());
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
}

#[test]
fn without_tools_nothing_is_taken_for_a_call() {
    let house = House::new();
    for fields in [json!({"tool_choice": "none"}), json!({"tools": []})] {
        let json = house.client.post(CHAT, &body("1", fields)).json();
        assert!(json["choices"][0]["message"]["content"].as_str().unwrap().contains("weather"), "{json}");
    }
}

#[test]
fn a_required_call_is_made_whatever_the_model_would_say() {
    let house = House::new();
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for choice in [json!("required"), named] {
        // Among equals the script would write blanks for long.
        let blanks = json!({"9": -1, "10": -1, "13": -1, "32": -1});
        let fields = json!({"tool_choice": choice, "parallel_tool_calls": false, "logit_bias": blanks});
        // The model thinks, and would then answer in words.
        let json = house.client.post(CHAT, &body("3", fields)).json();
        let calls =
            json["choices"][0]["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{json}"));
        assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")));
        let arguments: Value =
            serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["city"].is_string(), "{arguments}");
    }
    house.assert_sound();
}

#[test]
fn tools_that_make_no_sense_are_refused() {
    let house = House::new();
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    for (fields, param) in [
        (json!({"tools": function(json!({"name": "a b"}))}), "tools[0].function.name"),
        (json!({"tools": function(json!({"name": "f", "parameters": 7}))}), "tools[0].function.parameters"),
        (json!({"tools": [weather(), weather()]}), "tools[1].function.name"),
        (json!({"tools": vec![weather(); 5000]}), "tools"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "other"}}}), "tool_choice"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (json!({"tools": [{"type": "browser"}]}), "tools[0]"),
    ] {
        let answer = house.client.post(CHAT, &body("A", fields));
        let got = answer.json()["error"]["param"].as_str().unwrap_or_default().to_string();
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(got.starts_with(param), "{got} is not {param}");
    }
    let bad = function(json!({"name": "f", "parameters": {"type": "no such type"}}));
    let answer = house.client.post(CHAT, &body("A", json!({"tools": bad, "tool_choice": "required"})));
    assert_eq!(answer.status, 400, "{}", answer.text());
    house.assert_sound();
}

#[test]
fn reasoning_is_told_apart() {
    let house = House::new();
    let message = json!({"messages": [{"role": "user", "content": "3"}]});
    let json = house.client.post(CHAT, &message).json();
    let answered = &json["choices"][0]["message"];
    assert_eq!(answered["reasoning_content"], "let me see", "{json}");
    assert_eq!(answered["content"], "the answer");
    assert!(json["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    let mut streamed = message.clone();
    streamed["stream"] = json!(true);
    let chunks = house.client.post(CHAT, &streamed).chunks();
    let told = |field: &str| -> String {
        chunks.iter().filter_map(|c| c["choices"][0]["delta"][field].as_str().map(str::to_string)).collect()
    };
    assert_eq!(
        (told("reasoning_content"), told("content")),
        ("let me see".to_string(), "the answer".to_string())
    );
}

#[test]
fn a_conversation_with_calls_is_rendered() {
    let house = House::new();
    let messages = json!([
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "sunny A"},
    ]);
    let answer =
        house.client.post(CHAT, &json!({"messages": messages, "tools": [weather()], "max_tokens": 2}));
    assert_eq!(answer.content(), "BC", "{}", answer.text());
}
