//! The routes of llama-server.

use serde_json::{Value, json};

use crate::house::{CONTEXT, House, Plan};

#[test]
fn a_completion_has_the_fields_of_llama_server() {
    let house = House::new();
    let json = house.client.post("/completion", &json!({"prompt": "xA", "n_predict": 3})).json();
    assert_eq!(
        (&json["content"], &json["stop"], &json["stop_type"]),
        (&json!("BCD"), &json!(true), &json!("limit"))
    );
    assert_eq!((&json["tokens_predicted"], &json["tokens_evaluated"]), (&json!(3), &json!(2)));
    assert_eq!((&json["truncated"], &json["model"]), (&json!(false), &json!("script")));
    assert_eq!(json["timings"]["predicted_n"], 3);
    let ended = house.client.post("/completion", &json!({"prompt": "A", "n_predict": -1})).json();
    assert_eq!((&ended["stop_type"], &ended["tokens_predicted"]), (&json!("eos"), &json!(26)));
    let stopped = house.client.post("/completion", &json!({"prompt": "A", "stop": ["EF"]})).json();
    assert_eq!(stopped["content"], "BCD");
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!("EF")));
    let tokens =
        house.client.post("/completion", &json!({"prompt": [65], "n_predict": 2, "return_tokens": true}));
    assert_eq!(tokens.json()["tokens"], json!([66, 67]));
}

#[test]
fn a_streamed_completion_ends_with_the_word_stop() {
    let house = House::new();
    let answer = house.client.post("/completion", &json!({"prompt": "A", "n_predict": 3, "stream": true}));
    let chunks = answer.chunks();
    let text: String = chunks.iter().map(|chunk| chunk["content"].as_str().unwrap()).collect();
    assert_eq!(text, "BCD");
    assert_eq!(chunks.iter().filter(|chunk| chunk["stop"] == true).count(), 1);
    assert_eq!(chunks.last().unwrap()["stop_type"], "limit");
}

#[test]
fn fields_that_make_no_sense_are_refused() {
    let house = House::new();
    for (field, value) in [
        ("n_predict", json!(-2)),
        ("n_predict", json!(1.5)),
        ("n_probs", json!(101)),
        ("cache_prompt", json!(false)),
        ("id_slot", json!(3)),
        ("grammar", json!("root ::= (")),
        ("json_schema", json!({"type": "no such type"})),
        ("samplers", json!(["top_k"])),
        ("n_keep", json!(7)),
        ("n_keep", json!(-2)),
        ("n_discard", json!(-1)),
        ("n_ctx", json!(-1)),
        ("id_slot", json!(-7)),
        ("repeat_last_n", json!(-5)),
        ("lora", json!([{"id": -1, "scale": 1e300}])),
        ("lora", json!("../../etc/passwd")),
        ("input_prefix", json!("a")),
    ] {
        let answer = house.client.post("/completion", &json!({"prompt": "A", field: value}));
        assert_eq!(answer.status, 400, "{field}: {}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!(400), &json!(field)), "{error}");
    }
    let answer = house.client.post("/completion", &json!({"prompt": "A".repeat(CONTEXT)}));
    assert_eq!(answer.status, 400);
    house.assert_sound();
}

#[test]
fn a_completion_follows_a_grammar() {
    let house = House::new();
    let body = json!({"prompt": "A", "grammar": "root ::= \"yes\" | \"no\"", "n_predict": 10});
    let content = house.client.post("/completion", &body).json()["content"].clone();
    assert!(content == "yes" || content == "no", "{content}");
    let body = json!({"prompt": "A", "json_schema": {"const": 7}, "n_predict": 10});
    assert_eq!(house.client.post("/completion", &body).json()["content"], "7");
}

#[test]
fn texts_become_tokens_and_tokens_texts() {
    let house = House::new();
    let post = |path: &str, body: Value| house.client.post(path, &body).json();
    assert_eq!(post("/tokenize", json!({"content": "AB"})), json!({"tokens": [65, 66]}));
    assert_eq!(post("/tokenize", json!({"content": "<|end|>"})), json!({"tokens": [256]}));
    let plain = post("/tokenize", json!({"content": "<|end|>", "parse_special": false}));
    assert_eq!(plain["tokens"].as_array().unwrap().len(), 7);
    let pieces = post("/tokenize", json!({"content": "Aé", "with_pieces": true}));
    let expected =
        json!([{"id": 65, "piece": "A"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]);
    assert_eq!(pieces["tokens"], expected);
    assert_eq!(post("/detokenize", json!({"tokens": [65, 195, 169, 256]})), json!({"content": "Aé<|end|>"}));
    assert_eq!(house.client.post("/detokenize", &json!({"tokens": [264]})).status, 400);
    assert_eq!(house.client.post("/tokenize", &json!({"content": "A", "x": 1})).status, 400);
}

#[test]
fn a_template_is_applied_without_an_answer() {
    let house = House::new();
    let body = json!({"messages": [{"role": "user", "content": "hi A"}]});
    let json = house.client.post("/apply-template", &body).json();
    assert_eq!(json, json!({"prompt": "<|start|>user:hi AA"}));
}

#[test]
fn a_model_without_marks_for_a_gap_says_so() {
    let house = House::new();
    let answer = house.client.post("/infill", &json!({"input_prefix": "a", "input_suffix": "b"}));
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("mark a gap"), "{}", answer.text());
    assert_eq!(house.client.post("/infill", &json!({"input_prefix": "a"})).status, 400);
}

#[test]
fn properties_and_slots_are_told() {
    let house = House::new();
    let props = house.client.get("/props").json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], CONTEXT);
    assert_eq!(props["total_slots"], 16);
    assert!(props["chat_template"].as_str().unwrap().contains("messages"));
    let slots = house.client.get("/slots").json();
    assert_eq!(slots.as_array().unwrap().len(), 16);
    assert_eq!(slots[0]["is_processing"], false);
}

#[test]
fn vectors_have_the_form_of_llama_server() {
    let house = House::build(Plan { models: vec!["embedder"], ..Plan::default() });
    let json = house.client.post("/embedding", &json!({"content": "abc"})).json();
    assert_eq!(json, json!([{"index": 0, "embedding": [[3.0, 3.0, 4.0, 0.0]]}]));
}

/// Nothing of a request ever becomes a path.
#[test]
fn names_that_climb_reach_no_file() {
    let house = House::new();
    for path in [
        "/slots/0?action=save",
        "/slots/0?action=restore&filename=../../../etc/passwd",
        "/slots/..%2f..%2fetc%2fpasswd",
        "/lora-adapters",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "/v1/responses/..%2f..%2fetc%2fpasswd",
        "/page/..%2f..%2fCargo.toml",
        "/page/../../Cargo.toml",
    ] {
        for (method, body) in [("GET", ""), ("POST", r#"{"filename": "../../evil"}"#)] {
            let answer =
                house.client.request(method, path, &[("content-type", "application/json")], body.as_bytes());
            assert!([400, 404, 405].contains(&answer.status), "{method} {path}: {}", answer.text());
            assert!(answer.json()["error"]["message"].is_string(), "{}", answer.text());
        }
    }
    house.assert_sound();
}
