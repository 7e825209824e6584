//! Prompts that begin alike: what they have in common is computed once, and clients are told so.

use serde_json::json;

use crate::client::Answer;
use crate::house::{House, Plan};

const PREFIX_TOKENS: usize = 2000;

fn house() -> House {
    let mut plan = Plan { context: 4096, ..Plan::default() };
    plan.limits.blocks = 1024;
    House::build(plan)
}

impl House {
    /// A question after a long text that all questions share.
    fn ask(&self, question: &str, key: Option<&str>) -> Answer {
        let content = "p".repeat(PREFIX_TOKENS) + question;
        let mut body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4});
        if let Some(key) = key {
            body["prompt_cache_key"] = key.into();
        }
        self.client.post("/v1/chat/completions", &body)
    }

    /// Tokens of prompts that were computed.
    fn prefilled(&self) -> f64 {
        self.metric("mlxcel_prompt_tokens_total{") - self.metric("mlxcel_cached_prompt_tokens_total{")
    }
}

fn cached(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn a_long_text_that_prompts_begin_with_is_computed_once() {
    let house = house();
    let first = house.ask("A", None);
    assert_eq!((cached(&first), first.content().as_str()), (0, "BCDE"));
    let prompt = first.json()["usage"]["prompt_tokens"].as_f64().unwrap();
    let computed_first = house.prefilled();
    assert_eq!(computed_first, prompt);
    let second = house.ask("H", None);
    assert_eq!(second.content(), "IJKL", "its own answer");
    let shared = cached(&second);
    assert!(shared as usize > PREFIX_TOKENS - 16, "all but a part of a block: {shared}");
    let computed_second = house.prefilled() - computed_first;
    assert_eq!(computed_second, prompt - shared as f64);
    assert!(computed_second < computed_first / 10.0, "{computed_second} of {computed_first}");
    assert_eq!(second.json()["timings"]["prompt_n"].as_f64().unwrap(), computed_second);
}

#[test]
fn what_was_computed_under_another_key_is_not_seen() {
    let house = house();
    assert_eq!(cached(&house.ask("A", Some("mine"))), 0);
    assert_eq!(cached(&house.ask("A", Some("yours"))), 0);
    assert_eq!(cached(&house.ask("A", None)), 0);
    assert!(cached(&house.ask("A", Some("mine"))) as usize >= PREFIX_TOKENS);
}
