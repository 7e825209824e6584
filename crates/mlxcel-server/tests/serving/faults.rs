//! Faults at the seam: only what is concerned fails, and everything is given back.

use std::io::Read as _;
use std::sync::atomic::Ordering;
use std::thread;

use serde_json::{Value, json};

use crate::house::{House, Plan, wait};

const CHAT: &str = "/v1/chat/completions";

fn endless(stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": "5"}], "stream": stream})
}

#[test]
fn an_engine_that_fails_fails_its_requests_only() {
    let house = House::new();
    house.faults.fails.store(true, Ordering::SeqCst);
    let answer = house.chat("A");
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert_eq!(answer.json()["error"]["type"], "server_error");
    house.assert_sound();
    assert_eq!(house.faults.engines_made.load(Ordering::SeqCst), 1, "an error is no reason to start anew");
}

#[test]
fn an_engine_that_panics_is_started_anew() {
    let house = House::new();
    house.faults.panics.store(true, Ordering::SeqCst);
    let answer = house.chat("A");
    assert_eq!(answer.status, 500, "{}", answer.text());
    house.assert_sound();
    assert_eq!(house.faults.engines_made.load(Ordering::SeqCst), 2);
    assert_eq!(house.metric("mlxcel_engine_restarts_total{model=\"script\"}"), 1.0);
}

#[test]
fn an_engine_that_loses_its_state_is_started_anew() {
    let house = House::new();
    house.faults.loses.store(true, Ordering::SeqCst);
    let answer = house.chat("A");
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(answer.text().contains("a test"), "the step's own error is told: {}", answer.text());
    house.assert_sound();
    assert_eq!(house.faults.engines_made.load(Ordering::SeqCst), 2);
    assert_eq!(house.metric("mlxcel_engine_restarts_total{model=\"script\"}"), 1.0);
}

#[test]
fn readiness_is_red_while_there_is_no_engine() {
    let house = House::new();
    assert_eq!(house.client.get("/ready").status, 200);
    house.faults.cannot_start.store(true, Ordering::SeqCst);
    house.faults.panics.store(true, Ordering::SeqCst);
    assert_eq!(house.chat("A").status, 500);
    wait(|| house.client.get("/ready").status == 503, || "readiness goes red".to_string());
    assert_eq!(house.client.get("/health").status, 200, "the process is alive");
    let answer = house.chat("A");
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("the device is lost"), "{}", answer.text());
    house.faults.cannot_start.store(false, Ordering::SeqCst);
    house.assert_sound();
    assert_eq!(house.client.get("/ready").status, 200);
}

#[test]
fn an_error_after_the_beginning_is_an_event() {
    let house = House::new();
    for fault in [&house.faults.panics, &house.faults.fails] {
        house.faults.let_pass(5);
        let mut stream = house.client.begin_post(CHAT, &endless(true));
        let mut seen = String::new();
        let mut buffer = [0; 4096];
        while !seen.contains("\"content\":\"6") {
            let n = stream.read(&mut buffer).expect("the stream goes on");
            assert!(n > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
        fault.store(true, Ordering::SeqCst);
        house.faults.open_gate();
        let _ = stream.read_to_string(&mut seen);
        let error = seen.split("event: error\ndata: ").nth(1).unwrap_or_else(|| panic!("an event in {seen}"));
        assert!(error.starts_with("{\"error\":{\"message\":\"the engine"), "{error}");
        assert!(!seen.contains("[DONE]"), "an answer that broke off is not done");
        house.assert_sound();
    }
}

#[test]
fn a_model_that_computes_nan_is_reported() {
    let house = House::new();
    house.faults.computes_nan.store(true, Ordering::SeqCst);
    let answer = house.chat("A");
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("NaN"), "{}", answer.text());
    house.faults.computes_nan.store(false, Ordering::SeqCst);
    house.assert_sound();
}

#[test]
fn a_burst_is_answered_or_told_to_come_back() {
    let mut plan = Plan::default();
    plan.limits.sequences_max = 2;
    plan.limits.queue_max = 4;
    let house = House::build(plan);
    house.faults.close_gate();
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let client = house.client.clone();
            let body = json!({"messages": [{"role": "user", "content": "A"}]});
            thread::spawn(move || client.post(CHAT, &body))
        })
        .collect();
    wait(|| clients.iter().filter(|c| c.is_finished()).count() >= 30, || "most are turned away".to_string());
    house.faults.open_gate();
    let answers: Vec<_> = clients.into_iter().map(|c| c.join().unwrap()).collect();
    let served = answers.iter().filter(|a| a.status == 200).count();
    assert!((4..=10).contains(&served), "{served}");
    for answer in answers.iter().filter(|a| a.status != 200) {
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert_eq!(answer.headers["retry-after"], "1");
    }
    house.assert_sound();
}

#[test]
fn too_little_cache_sets_requests_back_and_loses_nothing() {
    let mut plan = Plan::default();
    // Room for one and a half of the four answers.
    plan.limits.blocks = 8;
    let house = House::build(plan);
    house.faults.close_gate();
    let body = json!({"messages": [{"role": "user", "content": "5"}], "max_tokens": 60});
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (client, body) = (house.client.clone(), body.clone());
            thread::spawn(move || client.post(CHAT, &body))
        })
        .collect();
    wait(|| house.metric("mlxcel_http_connections") >= 4.0, || "all are here".to_string());
    house.faults.open_gate();
    for client in clients {
        assert_eq!(client.join().unwrap().content(), "6".repeat(60));
    }
    assert!(house.metric("mlxcel_preemptions_total{") > 0.0);
    house.assert_sound();
}

#[test]
fn requests_are_computed_together() {
    let house = House::new();
    house.faults.close_gate();
    let clients: Vec<_> = (0..8)
        .map(|i| {
            let client = house.client.clone();
            let letter = char::from(b'A' + i);
            let body =
                json!({"messages": [{"role": "user", "content": letter.to_string()}], "max_tokens": 5});
            thread::spawn(move || (letter, client.post(CHAT, &body)))
        })
        .collect();
    wait(|| house.metric("mlxcel_http_connections") >= 8.0, || "all are here".to_string());
    house.faults.open_gate();
    for client in clients {
        let (letter, answer) = client.join().unwrap();
        let expected: String = (1..=5).map(|i| char::from(letter as u8 + i)).collect();
        assert_eq!(answer.content(), expected);
    }
    assert!(house.faults.rows_max.load(Ordering::SeqCst) > 1);
    house.assert_sound();
}

#[test]
fn an_answer_may_take_only_so_long() {
    let mut plan = Plan::default();
    plan.config.limits.request_time = Some(std::time::Duration::from_millis(100));
    let house = House::build(plan);
    house.faults.close_gate();
    let answer = house.chat("5");
    assert_eq!(answer.status, 504, "{}", answer.text());
    house.faults.open_gate();
    house.assert_sound();
}

/// A slow engine gets short steps, after each of which clients who went give back what they held.
#[test]
fn a_slow_engine_is_asked_for_short_steps() {
    let mut plan = Plan { context: 2048, ..Plan::default() };
    plan.limits.batch_tokens_max = 1024;
    let house = House::build(plan);
    let ask = |letter: &str| {
        let answer = house.chat(&(letter.repeat(700) + "Y"));
        assert_eq!(answer.content(), "Z", "{}", answer.text());
        house.faults.tokens_max.swap(0, Ordering::SeqCst)
    };
    ask("x");
    assert!(ask("y") > 500, "a fast one gets long ones");
    house.faults.token_ms.store(4, Ordering::SeqCst);
    ask("z");
    let most = ask("w");
    assert!(most <= 130, "{most} tokens of 4 ms are more than half a second");
    house.faults.token_ms.store(0, Ordering::SeqCst);
    house.assert_sound();
}
