//! Fields with values that make no sense, and fields that are not understood: refused by name, never dropped.

use serde_json::{Value, json};

use crate::house::House;

const CHAT: &str = "/v1/chat/completions";

fn with(field: &str, value: &str) -> String {
    format!(r#"{{"messages": [{{"role": "user", "content": "A"}}], "max_tokens": 2, "{field}": {value}}}"#)
        .replace(if field == "max_tokens" { "\"max_tokens\": 2, " } else { "\u{0}" }, "")
}

/// Posts a chat with one more field, written as it stands.
fn refused(house: &House, field: &str, value: &str) {
    let answer = house.client.post_bytes(CHAT, with(field, value).as_bytes());
    let shown: String = value.chars().take(60).collect();
    assert_eq!(answer.status, 400, "{field}: {shown}: {}", answer.text());
    let error = &answer.json()["error"];
    let names = |text: &Value| text.as_str().is_some_and(|text| text.contains(field));
    assert!(names(&error["param"]) || names(&error["message"]), "{field}: {shown}: {error}");
}

fn accepted(house: &House, field: &str, value: &str) {
    let answer = house.client.post_bytes(CHAT, with(field, value).as_bytes());
    assert_eq!(answer.status, 200, "{field}: {value}: {}", answer.text());
}

#[test]
fn a_field_that_is_not_supported_is_refused_by_name() {
    let house = House::new();
    for field in
        ["audio", "functions", "function_call", "prediction", "web_search_options", "verbosity", "xyz"]
    {
        refused(&house, field, "null");
        refused(&house, field, "{}");
    }
    refused(&house, "store", "true");
    refused(&house, "service_tier", "\"flex\"");
    refused(&house, "modalities", "[\"audio\"]");
    accepted(&house, "store", "false");
    accepted(&house, "modalities", "[\"text\"]");
    accepted(&house, "user", "\"somebody\"");
}

#[test]
fn counts_are_whole_numbers_that_make_sense() {
    let house = House::new();
    for value in ["0", "-1", "1.5", "\"7\"", "18446744073709551616", "1e3", "[]", "true"] {
        refused(&house, "max_tokens", value);
    }
    // More than there is room for is a bound that is not reached.
    for value in ["1", "2147483648", "9223372036854775808", "null"] {
        accepted(&house, "max_tokens", value);
    }
    for value in ["0", "-1", "1000000", "129", "1.5"] {
        refused(&house, "n", value);
    }
    for value in ["264", "21", "-1"] {
        refused(&house, "top_logprobs", value);
    }
    refused(&house, "min_tokens", "1000000");
    refused(&house, "min_tokens", "-1");
    house.assert_sound();
}

#[test]
fn numbers_of_sampling_are_in_their_range() {
    let house = House::new();
    for (field, wrong) in [
        ("temperature", &["-0.1", "101", "1e39", "\"1\"", "NaN", "Infinity", "1e400"][..]),
        ("top_p", &["-0.1", "1.1", "-1e308"]),
        ("top_k", &["-1", "2147483648", "1.5"]),
        ("min_p", &["-0.1", "1.1"]),
        ("typical_p", &["-1", "2"]),
        ("frequency_penalty", &["-2.1", "2.1"]),
        ("presence_penalty", &["-3", "3"]),
        ("repetition_penalty", &["0", "-1", "1e9"]),
        ("repeat_last_n", &["-2", "1e30"]),
        ("xtc_probability", &["-1", "2"]),
        ("dry_base", &["0.5"]),
        ("dry_multiplier", &["-1"]),
        ("dry_allowed_length", &["-1"]),
        ("dry_sequence_breakers", &["[\"\"]", "\"x\""]),
        ("mirostat", &["1", "3", "-1"]),
        ("seed", &["1.5", "\"x\"", "9223372036854775808"]),
        ("stop_token_ids", &["[264]", "[-1]", "7"]),
        ("priority", &["1.5", "\"high\""]),
    ] {
        wrong.iter().for_each(|value| refused_somehow(&house, field, value));
    }
    for (field, value) in
        [("temperature", "0"), ("top_p", "0"), ("top_k", "0"), ("seed", "-7"), ("mirostat", "2")]
    {
        accepted(&house, field, value);
    }
    house.assert_sound();
}

/// Numbers that JSON does not have are refused as no JSON at all.
fn refused_somehow(house: &House, field: &str, value: &str) {
    match value {
        "NaN" | "Infinity" | "1e400" => {
            let answer = house.client.post_bytes(CHAT, with(field, value).as_bytes());
            assert_eq!(answer.status, 400, "{field}: {value}");
        }
        _ => refused(house, field, value),
    }
}

#[test]
fn biases_are_of_tokens_that_exist() {
    let house = House::new();
    let many: Value =
        (0..300_000).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into();
    for value in
        ["{\"264\": 1}", "{\"x\": 1}", "{\"-1\": 1}", "{\"1\": \"x\"}", "[[264, 1]]", "7", "{\"1\": 1e30}"]
    {
        refused(&house, "logit_bias", value);
    }
    refused(&house, "logit_bias", &many.to_string());
    // B would come next; without it the next likeliest does.
    accepted(&house, "logit_bias", "{\"66\": -100}");
    let all: Value = (0..264).map(|id| json!([id, false])).collect();
    let answer = house.client.post_bytes(CHAT, with("logit_bias", &all.to_string()).as_bytes());
    assert_eq!(answer.status, 400, "every token is forbidden: {}", answer.text());
    house.assert_sound();
}

#[test]
fn stop_strings_are_few_short_and_not_empty() {
    let house = House::new();
    let many = Value::from(vec!["x"; 10_000]).to_string();
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    for value in ["\"\"", "[\"a\", \"\"]", "7", "[7]", "{}", &many, &long] {
        refused(&house, "stop", value);
    }
    accepted(&house, "stop", "[]");
    accepted(&house, "stop", "null");
    house.assert_sound();
}

#[test]
fn messages_are_messages() {
    let house = House::new();
    let many = json!({"messages": vec![json!({"role": "user", "content": "A"}); 100_000]});
    for body in [
        json!({}),
        json!({"messages": null}),
        json!({"messages": []}),
        json!({"messages": "A"}),
        json!({"messages": {"role": "user", "content": "A"}}),
        json!({"messages": ["A"]}),
        json!({"messages": [{"role": "wizard", "content": "A"}]}),
        json!({"messages": [{"role": "user", "content": null}]}),
        json!({"messages": [{"role": "user", "content": "A", "audio": {}}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        json!({"messages": [{"role": "tool", "content": "A"}]}),
        many,
    ] {
        let answer = house.client.post(CHAT, &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let error = answer.json()["error"].to_string();
        assert!(error.contains("messages"), "{error}");
    }
    house.assert_sound();
}

#[test]
fn variables_of_the_template_cannot_take_reserved_names() {
    let house = House::new();
    for name in ["messages", "tools", "add_generation_prompt", "bos_token", "raise_exception"] {
        let body = with("chat_template_kwargs", &json!({name: "x"}).to_string());
        let answer = house.client.post_bytes(CHAT, body.as_bytes());
        assert_eq!(answer.status, 400, "{name}");
        assert!(answer.text().contains(name) || name == "bos_token", "{}", answer.text());
    }
    accepted(&house, "chat_template_kwargs", "{\"enable_thinking\": false}");
    refused(&house, "chat_template_kwargs", "[]");
}

#[test]
fn keys_that_occur_twice_are_refused() {
    let house = House::new();
    let answer = house.client.post_bytes(CHAT, with("max_tokens", "1, \"max_tokens\": 2").as_bytes());
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("max_tokens"), "{}", answer.text());
}
