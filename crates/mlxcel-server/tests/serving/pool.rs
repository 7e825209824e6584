//! Several models: loaded on demand by one load, dropped when others need the room or nobody asks.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::client::Answer;
use crate::house::{House, Plan, wait};

fn chat(house: &House, model: &str) -> Answer {
    let body = json!({"model": model, "messages": [{"role": "user", "content": "A"}], "max_tokens": 1});
    house.client.post("/v1/chat/completions", &body)
}

fn statuses(house: &House) -> Vec<String> {
    let json = house.client.get("/v1/models").json();
    json["data"].as_array().unwrap().iter().map(|m| m["status"].as_str().unwrap().to_string()).collect()
}

fn three(models_max: usize) -> Plan {
    let mut plan = Plan { models: vec!["a", "b", "c"], ..Plan::default() };
    plan.config.keeping.models = models_max;
    plan
}

#[test]
fn a_hundred_clients_load_a_cold_model_once() {
    let house = House::cold(three(2));
    let door = house.rooms.door.lock().unwrap();
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let client = house.client.clone();
            let body = json!({"model": "b", "messages": [{"role": "user", "content": "A"}], "max_tokens": 1});
            thread::spawn(move || client.post("/v1/chat/completions", &body).status)
        })
        .collect();
    wait(|| house.metric("mlxcel_http_connections") >= 100.0, || "all are here".to_string());
    assert_eq!(statuses(&house)[1], "loading");
    drop(door);
    let answered = clients.into_iter().map(|c| c.join().unwrap()).filter(|s| [200, 429].contains(s)).count();
    assert_eq!((answered, house.rooms.loads.load(Ordering::SeqCst)), (100, 1));
}

#[test]
fn a_request_during_a_load_waits_only_as_long_as_an_answer_may_take() {
    let mut plan = three(2);
    plan.config.limits.request_time = Some(Duration::from_millis(100));
    let house = House::cold(plan);
    let door = house.rooms.door.lock().unwrap();
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/completion", "/v1/embeddings"] {
        let messages = json!([{"role": "user", "content": "A"}]);
        let body = match path {
            "/v1/chat/completions" => json!({"messages": messages}),
            "/v1/messages" => json!({"model": "a", "max_tokens": 2, "messages": messages}),
            "/completion" => json!({"prompt": "A"}),
            _ => json!({"input": "A"}),
        };
        let answer = house.client.post(path, &body);
        assert_eq!(answer.status, 504, "{path}: {}", answer.text());
    }
    assert_eq!(house.client.get("/health").status, 200, "the process answers meanwhile");
    drop(door);
    wait(|| chat(&house, "a").status == 200, || "the load ends".to_string());
}

#[test]
fn the_model_that_was_unused_longest_makes_room() {
    let house = House::cold(three(2));
    for model in ["a", "b", "a", "c"] {
        assert_eq!(chat(&house, model).status, 200, "{model}");
    }
    assert_eq!(statuses(&house), ["ready", "unloaded", "ready"]);
}

#[test]
fn a_model_in_use_is_not_dropped() {
    let house = House::cold(three(1));
    assert_eq!(chat(&house, "a").status, 200);
    house.faults.let_pass(1);
    let client = house.client.clone();
    let asked = thread::spawn(move || {
        let body = json!({"model": "a", "messages": [{"role": "user", "content": "A"}], "max_tokens": 5});
        client.post("/v1/chat/completions", &body).status
    });
    house.wait_for("mlxcel_requests_running{model=\"a\"}", 1.0);
    assert_eq!(chat(&house, "b").status, 503, "there is no room for another");
    house.faults.open_gate();
    assert_eq!(asked.join().unwrap(), 200);
    wait(|| chat(&house, "b").status == 200, || "now there is".to_string());
}

#[test]
fn a_model_that_nobody_asks_for_is_dropped_and_comes_back() {
    let mut plan = three(2);
    plan.config.keeping.idle_time = Some(Duration::from_millis(50));
    let house = House::cold(plan);
    assert_eq!(chat(&house, "a").status, 200);
    wait(|| statuses(&house)[0] == "unloaded", || "the model goes".to_string());
    assert_eq!(chat(&house, "a").status, 200);
    assert_eq!(house.rooms.loads.load(Ordering::SeqCst), 2);
}

#[test]
fn a_load_that_fails_is_told_to_all_and_tried_again() {
    let house = House::cold(three(2));
    house.rooms.refuses_to_load.store(true, Ordering::SeqCst);
    let answer = chat(&house, "a");
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("the file is damaged"), "{}", answer.text());
    house.rooms.refuses_to_load.store(false, Ordering::SeqCst);
    assert_eq!(chat(&house, "a").status, 200);
}

#[test]
fn a_client_that_goes_does_not_stop_a_load() {
    let house = House::cold(three(2));
    let door = house.rooms.door.lock().unwrap();
    let body = json!({"model": "a", "messages": [{"role": "user", "content": "A"}]});
    let client = house.client.begin_post("/v1/chat/completions", &body);
    wait(|| statuses(&house)[0] == "loading", || "the load begins".to_string());
    drop(client);
    drop(door);
    wait(|| statuses(&house)[0] == "ready", || "the load ends".to_string());
    assert_eq!(house.rooms.loads.load(Ordering::SeqCst), 1);
}
