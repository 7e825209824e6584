//! Clients that go while they wait, while their prompt is computed, and in the middle of their answer. What they held is
//! free again, as `/metrics` tells.

use std::net::TcpStream;

use serde_json::{Value, json};

use crate::house::{House, Plan, wait};

const CHAT: &str = "/v1/chat/completions";

fn body(text: String, stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "stream": stream, "max_tokens": 400})
}

/// A server whose steps wait, with a prompt of several steps and an answer of many.
fn house(sequences_max: usize) -> House {
    let mut plan = Plan { context: 2048, ..Plan::default() };
    plan.limits.sequences_max = sequences_max;
    let house = House::build(plan);
    house.faults.close_gate();
    house
}

impl House {
    fn running(&self) -> f64 {
        self.metric("mlxcel_requests_running{")
    }

    /// Lets steps pass one by one until something is so. A step tells the metrics.
    fn step_until(&self, is_so: impl Fn() -> bool) {
        let step_and_look = || {
            self.faults.let_pass(1);
            is_so()
        };
        wait(step_and_look, || self.client.get("/metrics").text());
    }

    /// Closes the connections; then their requests are cancelled within a few steps, and nothing is held.
    fn assert_given_back(&self, clients: Vec<TcpStream>) {
        let gone = clients.len() as f64;
        drop(clients);
        let steps_before = self.metric("mlxcel_steps_total{");
        self.step_until(|| self.metric("mlxcel_requests_cancelled_total{") == gone);
        self.faults.open_gate();
        self.wait_for("mlxcel_requests_running{", 0.0);
        self.wait_for("mlxcel_requests_waiting{", 0.0);
        self.wait_for("mlxcel_kv_blocks_used{", 0.0);
        let steps = self.metric("mlxcel_steps_total{") - steps_before;
        assert!(steps < 350.0, "{steps} steps: the answers were not computed to their end");
        self.assert_sound();
    }
}

#[test]
fn a_client_that_goes_while_it_waits_gives_everything_back() {
    for stream in [true, false] {
        let house = house(1);
        let first = house.client.begin_post(CHAT, &body("5".to_string(), stream));
        house.step_until(|| house.running() == 1.0);
        let clients: Vec<_> =
            (0..5).map(|_| house.client.begin_post(CHAT, &body("5".to_string(), stream))).collect();
        house.step_until(|| house.metric("mlxcel_requests_waiting{") == 5.0);
        drop(clients);
        house.step_until(|| house.metric("mlxcel_requests_cancelled_total{") == 5.0);
        house.step_until(|| house.metric("mlxcel_requests_waiting{") == 0.0);
        assert_eq!(house.running(), 1.0, "the one that is computed goes on");
        drop(first);
        house.step_until(|| house.metric("mlxcel_requests_cancelled_total{") == 6.0);
        house.faults.open_gate();
        house.wait_for("mlxcel_kv_blocks_used{", 0.0);
        house.assert_sound();
    }
}

#[test]
fn a_client_that_goes_in_the_middle_of_its_prompt_gives_everything_back() {
    for stream in [true, false] {
        let house = house(16);
        // Eight steps of 256 tokens and fewer are needed before the first token.
        let client = house.client.begin_post(CHAT, &body("x".repeat(2000) + "5", stream));
        house.step_until(|| house.running() == 1.0);
        assert!(house.metric("mlxcel_kv_blocks_used{") > 0.0);
        assert_eq!(house.metric("mlxcel_prompt_tokens_total{"), 0.0, "the prompt is not done");
        drop(client);
        wait(|| house.metric("mlxcel_http_connections") == 1.0, || "the connection is closed".to_string());
        house.step_until(|| house.metric("mlxcel_requests_cancelled_total{") == 1.0);
        assert_eq!(house.metric("mlxcel_prompt_tokens_total{"), 0.0, "nor was it done afterwards");
        assert_eq!(house.metric("mlxcel_generated_tokens_total{"), 0.0);
        house.faults.open_gate();
        house.wait_for("mlxcel_kv_blocks_used{", 0.0);
        house.assert_sound();
    }
}

#[test]
fn a_client_that_goes_in_the_middle_of_its_answer_gives_everything_back() {
    for stream in [true, false] {
        let house = house(16);
        let clients: Vec<_> =
            (0..4).map(|_| house.client.begin_post(CHAT, &body("5".to_string(), stream))).collect();
        house.step_until(|| house.running() == 4.0 && house.metric("mlxcel_generated_tokens_total{") > 8.0);
        assert!(house.metric("mlxcel_kv_blocks_used{") > 0.0);
        house.assert_given_back(clients);
    }
}
