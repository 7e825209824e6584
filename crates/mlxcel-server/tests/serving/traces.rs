//! Traces: what a collector gets, as OTLP has it in JSON.
//! <https://github.com/open-telemetry/opentelemetry-proto/blob/main/docs/specification.md#json-protobuf-encoding>

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use mlxcel_server::{Config, Otlp, ServerError};
use serde_json::{Value, json};

use crate::house::{House, PATIENCE, Plan, wait};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector that takes everything: head and body of each message.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = Vec::new();
            let (head, body) = loop {
                let mut buffer = [0; 4096];
                let n = stream.read(&mut buffer).unwrap();
                assert!(n > 0, "a whole message");
                bytes.extend(&buffer[..n]);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                if let Some((head, body)) = text.split_once("\r\n\r\n")
                    && let Ok(body) = serde_json::from_str(body)
                {
                    break (head.to_ascii_lowercase(), body);
                }
            };
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").unwrap();
            if sender.send((head, body)).is_err() {
                return;
            }
        }
    });
    (address, received)
}

fn house(endpoint: String) -> House {
    let plan = Plan::default();
    let otlp = Some(Otlp { endpoint, service: "a test".to_string() });
    House::build(Plan { config: Config { otlp, ..plan.config }, ..plan })
}

/// Spans of a trace as they come, until there are so many.
fn spans(received: &Receiver<(String, Value)>, trace: &str, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    while found.len() < count {
        let (head, message) = received.recv_timeout(PATIENCE).expect("a message comes");
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let resource = &message["resourceSpans"][0];
        let service = json!([{"key": "service.name", "value": {"stringValue": "a test"}}]);
        assert_eq!(resource["resource"]["attributes"], service);
        let scope = &resource["scopeSpans"][0];
        assert_eq!(scope["scope"]["name"], "mlxcel-server");
        for span in scope["spans"].as_array().unwrap() {
            assert_shape(span);
            if span["traceId"] == trace {
                found.push(span.clone());
            }
        }
    }
    found
}

/// Ids are hexadecimal, times are decimal texts, kinds are numbers, values say their type.
fn assert_shape(span: &Value) {
    let is_hex = |value: &Value, digits: usize| {
        let text = value.as_str().unwrap();
        text.len() == digits
            && text.bytes().all(|b| b"0123456789abcdef".contains(&b))
            && text.bytes().any(|b| b != b'0')
    };
    assert!(is_hex(&span["traceId"], 32) && is_hex(&span["spanId"], 16), "{span}");
    assert!(span.get("parentSpanId").is_none_or(|parent| is_hex(parent, 16)), "{span}");
    let time = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(time("startTimeUnixNano") > 1_600_000_000_000_000_000);
    assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
    assert!([1, 2].contains(&span["kind"].as_u64().unwrap()));
    for attribute in span["attributes"].as_array().unwrap() {
        assert!(attribute["key"].is_string());
        let value = attribute["value"].as_object().unwrap();
        assert_eq!(value.len(), 1);
        assert!(value.values().all(Value::is_string), "64-bit numbers are texts: {span}");
    }
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|a| a["key"] == key);
    &found.unwrap_or_else(|| panic!("{key} in {span}"))["value"]
}

#[test]
fn a_request_is_traced_below_its_parent_with_prompt_and_answer() {
    for stream in [true, false] {
        let (endpoint, received) = collector();
        let house = house(endpoint);
        let parent = format!("00-{TRACE}-{PARENT}-01");
        let headers =
            [("content-type", "application/json"), ("traceparent", &parent), ("x-request-id", "mine")];
        let body = json!({"messages": [{"role": "user", "content": "A"}], "max_tokens": 5, "stream": stream});
        let answer =
            house.client.request("POST", "/v1/chat/completions", &headers, body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let spans = spans(&received, TRACE, 3);
        let named = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap();
        let request = named("POST /v1/chat/completions");
        assert_eq!((&request["parentSpanId"], &request["kind"]), (&json!(PARENT), &json!(2)));
        assert_eq!(request["status"], json!({}));
        assert_eq!(attribute(request, "http.response.status_code")["intValue"], "200");
        assert_eq!(attribute(request, "mlxcel.request_id")["stringValue"], "mine");
        assert_eq!(attribute(request, "gen_ai.request.model")["stringValue"], "script");
        assert_eq!(attribute(request, "gen_ai.usage.output_tokens")["intValue"], "5");
        let (prompt, written) = (named("prompt"), named("answer"));
        assert!([prompt, written].iter().all(|part| part["parentSpanId"] == request["spanId"]));
        assert_eq!(attribute(prompt, "mlxcel.cached_tokens")["intValue"], "0");
        assert_eq!(prompt["endTimeUnixNano"], written["startTimeUnixNano"]);
        assert_ne!(prompt["spanId"], written["spanId"]);
    }
}

#[test]
fn a_request_that_fails_is_marked_and_one_that_is_not_sampled_is_not_sent() {
    let (endpoint, received) = collector();
    let house = house(endpoint);
    let ask = |flags: &str| {
        let parent = format!("00-{TRACE}-{PARENT}-{flags}");
        let headers = [("content-type", "application/json"), ("traceparent", parent.as_str())];
        house.client.request(
            "POST",
            "/v1/chat/completions",
            &headers,
            br#"{"messages": [{"role": "user", "content": "A"}]}"#,
        )
    };
    assert_eq!(ask("00").status, 200);
    house.faults.fails.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(ask("01").status, 500);
    let spans = spans(&received, TRACE, 2);
    let request = spans.iter().find(|span| span["kind"] == 2).unwrap();
    assert_eq!(request["status"], json!({"code": 2}));
    assert_eq!(attribute(request, "http.response.status_code")["intValue"], "500");
    assert!(spans.len() <= 2, "the first request is not among them: {spans:?}");
}

#[test]
fn a_collector_that_is_gone_costs_nobody_anything() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let house = house(endpoint);
    house.assert_sound();
    wait(|| house.chat("A").status == 200, || "it answers".to_string());
}

#[test]
fn an_endpoint_that_is_no_address_is_told() {
    let otlp = Some(Otlp { endpoint: "collector:4318".to_string(), service: "a test".to_string() });
    let error = crate::life::bind(Config { otlp, ..Plan::default().config }).err().unwrap();
    assert!(matches!(error, ServerError::OtlpEndpoint { .. }), "{error}");
}
