//! Chats: whole and streamed, with stop strings, log-probabilities, choices and formats.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::house::{CONTEXT, House};

const CHAT: &str = "/v1/chat/completions";

/// A chat that ends with `text`, and further fields.
fn body(text: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text of a stream's choice, put together.
pub fn streamed(answer: &Answer, index: u64) -> String {
    let chunks = answer.chunks();
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap().clone());
    let mine = choices.filter(|choice| choice["index"] == index);
    mine.filter_map(|choice| choice["delta"]["content"].as_str().map(str::to_string)).collect()
}

#[test]
fn a_chat_is_answered_with_usage() {
    let house = House::new();
    let answer = house.client.post(CHAT, &body("hello A", json!({"model": "script", "max_tokens": 3})));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    assert_eq!(json["object"], "chat.completion");
    assert_eq!(json["model"], "script");
    assert_eq!(
        json["choices"][0]["message"],
        json!({"role": "assistant", "content": "BCD", "refusal": null})
    );
    assert_eq!(json["choices"][0]["finish_reason"], "length");
    let prompt = "|user:hello AA".len() as u64;
    assert_eq!(json["usage"]["prompt_tokens"], prompt);
    assert_eq!(json["usage"]["completion_tokens"], 3);
    assert_eq!(json["usage"]["total_tokens"], prompt + 3);
    assert_eq!(json["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(json["timings"]["predicted_n"], 3);
}

#[test]
fn the_model_ends_its_answer_and_the_end_is_not_shown() {
    let house = House::new();
    let answer = house.chat("A");
    assert_eq!(answer.content(), "BCDEFGHIJKLMNOPQRSTUVWXYZ");
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
    let all = body("Y", json!({"ignore_eos": true, "max_tokens": 3}));
    assert_eq!(house.client.post(CHAT, &all).content(), "ZA");
}

#[test]
fn a_stream_tells_what_the_whole_answer_tells() {
    let house = House::new();
    let answer = house.client.post(CHAT, &body("A", json!({"stream": true})));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.headers["content-type"].starts_with("text/event-stream"));
    assert_eq!(streamed(&answer, 0), "BCDEFGHIJKLMNOPQRSTUVWXYZ");
    let events = answer.events();
    assert_eq!(events.iter().filter(|(_, data)| data == "[DONE]").count(), 1);
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let chunks = answer.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "usage was not asked for");
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
}

#[test]
fn a_stream_tells_usage_where_it_is_asked_for() {
    let house = House::new();
    let options = json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 4});
    let chunks = house.client.post(CHAT, &body("A", options)).chunks();
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(4)));
    assert!(others.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    let answer = house.client.post(CHAT, &body("A", json!({"stream_options": {"include_usage": true}})));
    assert_eq!((answer.status, answer.json()["error"]["param"].clone()), (400, json!("stream_options")));
}

#[test]
fn a_stop_string_is_found_across_tokens_and_not_shown() {
    let house = House::new();
    for stop in [json!("FGH"), json!(["XYZ!", "FGH"])] {
        let answer = house.client.post(CHAT, &body("A", json!({"stop": stop})));
        assert_eq!(answer.content(), "BCDE");
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
        let answer = house.client.post(CHAT, &body("A", json!({"stop": stop, "stream": true})));
        assert_eq!(streamed(&answer, 0), "BCDE");
    }
    // What only began like a stop string is shown in the end.
    let held = house.client.post(CHAT, &body("A", json!({"stop": "CDEX", "max_tokens": 3})));
    assert_eq!(held.content(), "BCD");
    house.assert_sound();
}

#[test]
fn characters_of_several_tokens_are_never_shown_in_part() {
    let house = House::new();
    let answer = house.client.post(CHAT, &body("4", json!({"stream": true, "max_tokens": 7})));
    assert_eq!(streamed(&answer, 0), "é字AB");
    let stop = house.client.post(CHAT, &body("4", json!({"stop": "字"})));
    assert_eq!(stop.content(), "é");
    // A character that is cut by the length is marked as such.
    let cut = house.client.post(CHAT, &body("4", json!({"max_tokens": 4})));
    assert_eq!(cut.content(), "é\u{fffd}");
}

#[test]
fn choices_are_numbered_and_counted() {
    let house = House::new();
    let json = house.client.post(CHAT, &body("A", json!({"n": 3, "max_tokens": 2}))).json();
    let choices = json["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!((&choice["index"], &choice["message"]["content"]), (&json!(index), &json!("BC")));
    }
    assert_eq!(json["usage"]["completion_tokens"], 6);
    let answer = house.client.post(CHAT, &body("A", json!({"n": 2, "stream": true, "max_tokens": 2})));
    assert_eq!((streamed(&answer, 0), streamed(&answer, 1)), ("BC".to_string(), "BC".to_string()));
    house.assert_sound();
}

#[test]
fn log_probabilities_go_with_their_tokens() {
    let house = House::new();
    let fields = json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 2});
    let json = house.client.post(CHAT, &body("A", fields)).json();
    let content = json["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 2);
    for (entry, letter) in content.iter().zip(["B", "C"]) {
        assert_eq!((&entry["token"], &entry["bytes"]), (&json!(letter), &json!([letter.as_bytes()[0]])));
        // One logit of 20 beside 263 of 0.
        let expected = -(263.0 * (-20.0f64).exp()).ln_1p();
        assert!((entry["logprob"].as_f64().unwrap() - expected).abs() < 1e-6, "{entry}");
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(entry["top_logprobs"][0]["token"], letter);
    }
    let fields = json!({"logprobs": true, "stop": "DE", "stream": true});
    let chunks = house.client.post(CHAT, &body("A", fields)).chunks();
    let told = chunks.iter().flat_map(|c| c["choices"][0]["logprobs"]["content"].as_array().cloned());
    let tokens: Vec<Value> = told.flatten().map(|entry| entry["token"].clone()).collect();
    assert_eq!(tokens, ["B", "C"], "tokens of a stop string are not told");
}

#[test]
fn a_prompt_that_begins_alike_is_found_computed() {
    let house = House::new();
    let long = format!("{} A", "x".repeat(200));
    assert_eq!(house.chat(&long).json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let again = house.chat(&long).json();
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 192 && cached.is_multiple_of(16), "{cached}");
    let other = body(&long, json!({"prompt_cache_key": "somebody else"}));
    let other = house.client.post(CHAT, &other).json();
    assert_eq!(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "keys do not share");
    assert_eq!(again["choices"], house.chat(&long).json()["choices"]);
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_counts() {
    let house = House::new();
    let around = "|user:".len() + 1;
    let status =
        |content: usize| house.client.post(CHAT, &body(&"A".repeat(content), json!({"max_tokens": 1})));
    assert_eq!(status(CONTEXT - around - 1).status, 200, "room for one token");
    for content in [CONTEXT - around, CONTEXT - around + 1, 100 * CONTEXT] {
        let answer = status(content);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&(content + around).to_string()), "{message}");
        assert!(message.contains(&CONTEXT.to_string()), "{message}");
    }
    house.assert_sound();
}

#[test]
fn control_tokens_in_a_message_are_plain_text() {
    let house = House::new();
    let count = |text: &str| house.chat(text).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(count("<|start|>A"), count("<xstartx>A"), "byte by byte");
}

#[test]
fn an_answer_follows_a_schema() {
    let house = House::new();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 7, "maximum": 7}},
                        "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let answer = house.client.post(CHAT, &body("A", json!({"response_format": format})));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let content: Value = serde_json::from_str(&answer.content()).expect("JSON");
    assert_eq!(content, json!({"n": 7}));
    let object = json!({"response_format": {"type": "json_object"}, "max_tokens": 200});
    let answer = house.client.post(CHAT, &body("A", object));
    assert!(answer.content().starts_with('{'), "{}", answer.text());
    house.assert_sound();
}

#[test]
fn a_schema_that_does_not_compile_is_the_clients_fault() {
    let house = House::new();
    for schema in [
        json!({"type": "no such type"}),
        json!({"$ref": "https://example.org/schema.json"}),
        json!({"$ref": "#/nowhere"}),
        json!(false),
        json!(7),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let answer = house.client.post(CHAT, &body("A", json!({"response_format": format})));
        assert_eq!(answer.status, 400, "{schema}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], "response_format");
    }
    house.assert_sound();
}

#[test]
fn another_model_is_not_quietly_replaced() {
    let house = House::new();
    for name in ["gpt-4", "", "../script", "script\u{0}", "SCRIPT"] {
        let answer = house.client.post(CHAT, &body("A", json!({"model": name})));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (404, &json!("model_not_found")), "{name}");
    }
    assert_eq!(house.client.post(CHAT, &body("A", json!({"model": "script-alias"}))).status, 200);
}

#[test]
fn an_answer_goes_on_from_what_the_assistant_has_begun() {
    let house = House::new();
    let messages = json!([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "so: GH"}]);
    let ask = |extra: Value| {
        let mut body = json!({"messages": messages, "max_tokens": 3});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        house.client.post("/v1/chat/completions", &body)
    };
    let begun = ask(json!({}));
    assert_eq!(begun.content(), "IJK", "only what is new is told: {}", begun.text());
    let prompt = |answer: &crate::client::Answer| answer.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let same = ask(json!({"continue_final_message": true, "add_generation_prompt": false}));
    assert_eq!((prompt(&same), same.content()), (prompt(&begun), "IJK".to_string()));
    // The template opens an answer with one more token.
    for extra in [json!({"add_generation_prompt": true}), json!({"continue_final_message": false})] {
        assert_eq!(prompt(&ask(extra)), prompt(&begun) + 1);
    }
    let template = house.client.post("/apply-template", &json!({"messages": messages}));
    assert_eq!(template.json()["prompt"], "<|start|>user:Q<|start|>assistant:so: GH");
    let both = ask(json!({"continue_final_message": true, "add_generation_prompt": true}));
    assert_eq!((both.status, both.json()["error"]["param"].as_str()), (400, Some("continue_final_message")));
    let user = json!({"messages": [{"role": "user", "content": "A"}], "continue_final_message": true});
    let user = house.client.post("/v1/chat/completions", &user);
    assert_eq!((user.status, user.json()["error"]["param"].as_str()), (400, Some("continue_final_message")));
    let message = json!({"model": "script", "max_tokens": 3, "messages": messages});
    let message = house.client.post("/v1/messages", &message);
    assert_eq!(message.json()["content"], json!([{"type": "text", "text": "IJK"}]), "{}", message.text());
}
