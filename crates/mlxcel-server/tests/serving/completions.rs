//! Completions, embeddings and the list of models.

use serde_json::json;

use crate::house::{CONTEXT, House, Plan};

const COMPLETIONS: &str = "/v1/completions";

#[test]
fn a_text_goes_on() {
    let house = House::new();
    let json = house.client.post(COMPLETIONS, &json!({"prompt": "xA", "max_tokens": 3})).json();
    assert_eq!(json["object"], "text_completion");
    assert_eq!(json["choices"][0]["text"], "BCD");
    assert_eq!(json["choices"][0]["finish_reason"], "length");
    let json = house.client.post(COMPLETIONS, &json!({"prompt": "A"})).json();
    assert_eq!(json["usage"]["completion_tokens"], 16, "as many as OpenAI makes by itself");
    let json = house.client.post(COMPLETIONS, &json!({"prompt": "xA", "max_tokens": 2, "echo": true})).json();
    assert_eq!(json["choices"][0]["text"], "xABC");
}

#[test]
fn prompts_are_texts_or_tokens_or_lists_of_either() {
    let house = House::new();
    let texts = |prompt: serde_json::Value| {
        let json = house.client.post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 2, "n": 1})).json();
        let choices = json["choices"].as_array().unwrap_or_else(|| panic!("{json}")).clone();
        choices.iter().map(|c| c["text"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(texts(json!([65])), ["BC"]);
    assert_eq!(texts(json!(["A", "F"])), ["BC", "GH"]);
    assert_eq!(texts(json!([[65], [70, 71]])), ["BC", "HI"]);
}

#[test]
fn several_prompts_have_their_choices_in_order() {
    let house = House::new();
    let json = house.client.post(COMPLETIONS, &json!({"prompt": ["A", "F"], "max_tokens": 1, "n": 2})).json();
    let texts: Vec<&str> =
        json["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["B", "B", "G", "G"]);
}

#[test]
fn prompts_that_make_no_sense_are_refused() {
    let house = House::new();
    for prompt in [
        json!(""),
        json!([]),
        json!([""]),
        json!([[]]),
        json!(null),
        json!(7),
        json!([264]),
        json!([-1]),
        json!([1.5]),
        json!([4294967296u64]),
        json!([["A"]]),
        json!([true]),
        json!(vec!["A"; 100_000]),
        json!("A".repeat(CONTEXT)),
    ] {
        let answer = house.client.post(COMPLETIONS, &json!({"prompt": prompt}));
        assert_eq!(answer.status, 400, "{} {}", prompt.to_string().get(..20).unwrap_or("?"), answer.text());
    }
    house.assert_sound();
}

#[test]
fn a_stream_of_completions_ends_once() {
    let house = House::new();
    let body =
        json!({"prompt": "A", "max_tokens": 3, "stream": true, "stream_options": {"include_usage": true}});
    let answer = house.client.post(COMPLETIONS, &body);
    let chunks = answer.chunks();
    let text: String =
        chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str().map(str::to_string)).collect();
    assert_eq!(text, "BCD");
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 3);
    assert_eq!(answer.text().matches("[DONE]").count(), 1);
}

#[test]
fn log_probabilities_are_columns() {
    let house = House::new();
    let json = house.client.post(COMPLETIONS, &json!({"prompt": "A", "max_tokens": 2, "logprobs": 1})).json();
    let logprobs = &json["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["B", "C"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1]));
    assert!(logprobs["top_logprobs"][0]["B"].as_f64().unwrap() < 0.0);
}

#[test]
fn models_are_listed_with_their_standing() {
    let house = House::build(Plan { models: vec!["script", "embedder"], ..Plan::default() });
    let json = house.client.get("/v1/models").json();
    assert_eq!(json["data"][0]["id"], "script");
    crate::house::wait(
        || house.client.get("/v1/models/script").json()["status"] == "ready",
        || "the first model is loaded at once".to_string(),
    );
    assert_eq!(json["data"][1]["status"], "unloaded");
    assert_eq!(house.client.get("/v1/models/nothing").status, 404);
    assert_eq!(house.client.get("/v1/models/a/b").status, 404);
}

#[test]
fn vectors_are_made_of_texts_and_tokens() {
    let mut plan = Plan { models: vec!["embedder"], ..Plan::default() };
    plan.config.limits.inputs = 4;
    let house = House::build(plan);
    let post = |body: serde_json::Value| house.client.post("/v1/embeddings", &body);
    let json = post(json!({"input": ["abc", "de"]})).json();
    assert_eq!(
        json["data"][1],
        json!({"object": "embedding", "index": 1, "embedding": [2.0, 3.0, 4.0, 0.0]})
    );
    assert_eq!(json["usage"], json!({"prompt_tokens": 5, "total_tokens": 5}));
    let json = post(json!({"input": [1, 2, 3], "encoding_format": "base64"})).json();
    assert_eq!(json["data"][0]["embedding"], "AABAQAAAQEAAAIBAAAAAAA==");
    let json = post(json!({"input": [[1, 2, 3]], "dimensions": 2})).json();
    let cut = json["data"][0]["embedding"].as_array().unwrap();
    assert!(cut.iter().all(|x| (x.as_f64().unwrap() - 0.5f64.sqrt()).abs() < 1e-6), "{json}");
    for (body, param) in [
        (json!({"input": []}), "input"),
        (json!({"input": ""}), "input[0]"),
        (json!({"input": ["a", 7]}), "input[1]"),
        (json!({"input": vec!["a"; 5]}), "input"),
        (json!({"input": "a".repeat(CONTEXT + 1)}), "input[0]"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 5}), "dimensions"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (json!({"input": "a", "truncate": true}), "truncate"),
    ] {
        let answer = post(body.clone());
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
    assert_eq!(house.client.post("/v1/completions", &json!({"prompt": "A"})).status, 400);
    let generating = House::new();
    assert_eq!(generating.client.post("/v1/embeddings", &json!({"input": "a"})).status, 400);
}
