//! What is no proper request: bytes, sizes, slowness, and crowds.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use serde_json::json;

use crate::client::read_answer;
use crate::house::{House, Plan, wait};

const CHAT: &str = "/v1/chat/completions";

/// A house that soon loses its patience.
fn hurried() -> House {
    let mut plan = Plan::default();
    plan.config.limits.header_time = Duration::from_millis(200);
    plan.config.limits.body_time = Duration::from_millis(200);
    plan.config.limits.send_time = Duration::from_millis(300);
    plan.config.limits.body_bytes = 1 << 20;
    plan.config.limits.connections = 32;
    House::build(plan)
}

#[test]
fn bytes_that_are_no_json_are_refused() {
    let house = House::new();
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let utf16: Vec<u8> = "{\"messages\": []}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let bodies: [&[u8]; 12] = [
        b"",
        b"null",
        b"[]",
        b"\"A\"",
        b"hello",
        b"{\"messages\": [",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}",
        b"\xef\xbb\xbf{}",
        b"{\"temperature\": 1e400}",
        deep.as_bytes(),
        &utf16,
    ];
    for body in bodies {
        for path in [CHAT, "/v1/completions", "/v1/embeddings"] {
            let answer = house.client.post_bytes(path, body);
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert_eq!(answer.status, 400, "{path} {shown}: {}", answer.text());
            assert!(answer.json()["error"]["message"].is_string());
        }
    }
    let nul = house.client.post_bytes(CHAT, br#"{"messages": [{"role": "user", "content": "a\u0000A"}]}"#);
    assert_eq!(nul.status, 200, "a NUL is a character like others");
    house.assert_sound();
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let house = hurried();
    let mut stream = house.client.begin("POST", CHAT, &[("content-type", "application/json")], 1 << 40);
    assert_eq!(read_answer(&mut stream).status, 413);
    let chunked = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                   content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut stream = house.client.raw(chunked.as_bytes());
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..40 {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    // The server may reset a connection whose client goes on writing.
    assert!([413, 0].contains(&read_answer(&mut stream).status));
    house.assert_sound();
}

#[test]
fn headers_are_bounded() {
    let house = House::new();
    let status = |head: String| {
        let request = format!("GET {head}connection: close\r\n\r\n");
        read_answer(&mut house.client.raw(request.as_bytes())).status
    };
    let long = "x".repeat(10 << 20);
    assert!([431, 0].contains(&status(format!("/health HTTP/1.1\r\nhost: localhost\r\nx: {long}\r\n"))));
    let many: String = (0..10_000).map(|i| format!("x{i}: y\r\n")).collect();
    assert!([431, 0].contains(&status(format!("/health HTTP/1.1\r\nhost: localhost\r\n{many}"))));
    let url = format!("/{} HTTP/1.1\r\nhost: localhost\r\n", "x".repeat(1 << 20));
    assert!([414, 431, 0].contains(&status(url)));
    assert_eq!(status(format!("/{} HTTP/1.1\r\nhost: localhost\r\n", "x".repeat(10_000))), 404);
    house.assert_sound();
}

#[test]
fn who_dawdles_is_cut_off() {
    let house = hurried();
    // Headers that never end.
    let mut slow = house.client.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-");
    assert!([408, 0].contains(&read_answer(&mut slow).status));
    // A body that never ends.
    let mut slow = house.client.begin("POST", CHAT, &[("content-type", "application/json")], 100);
    slow.write_all(b"{").unwrap();
    assert_eq!(read_answer(&mut slow).status, 408);
    house.assert_sound();
}

#[test]
fn a_stream_that_nobody_reads_is_given_up() {
    let mut plan = Plan::default();
    plan.config.limits.send_time = Duration::from_millis(300);
    plan.config.limits.connections = 4;
    let house = House::build(plan);
    // Each token is told in a chunk of some hundred bytes: more than the sockets' buffers hold.
    let body = json!({"messages": [{"role": "user", "content": "5"}], "stream": true, "n": 128});
    let stalled = house.client.begin_post(CHAT, &body);
    house.wait_for("mlxcel_requests_running{model=\"script\"}", 0.0);
    wait(|| house.metric("mlxcel_http_connections") <= 1.0, || "the connection is given up".to_string());
    drop(stalled);
    house.assert_sound();
}

#[test]
fn a_crowd_of_idle_connections_is_turned_away_and_goes() {
    let house = hurried();
    let idle: Vec<_> = (0..200).map(|_| house.client.raw(b"")).collect();
    wait(|| house.client.get("/health").status == 200, || "the idle ones time out".to_string());
    assert!(house.metric("mlxcel_http_connections_refused_total") > 0.0);
    drop(idle);
    house.assert_sound();
}

#[test]
fn other_protocols_and_smuggled_requests_do_no_harm() {
    let house = hurried();
    // HTTP/2 with prior knowledge, then streams that are reset at once.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
    for stream in 0..1000u32 {
        bytes.extend([0, 0, 1, 1, 4]);
        bytes.extend((2 * stream + 1).to_be_bytes());
        bytes.extend([0x82, 0, 0, 4, 3, 0]);
        bytes.extend((2 * stream + 1).to_be_bytes());
        bytes.extend([0, 0, 0, 8]);
    }
    assert!([400, 505, 0].contains(&read_answer(&mut house.client.raw(&bytes)).status));
    // TLS to a plain port.
    assert!([400, 0].contains(
        &read_answer(&mut house.client.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")).status
    ));
    // Two lengths at once: one of them must not become a second request.
    let smuggled = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                    content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n";
    let mut stream = house.client.raw(smuggled.as_bytes());
    let mut answers = String::new();
    let _ = stream.read_to_string(&mut answers);
    assert!(!answers.contains("mlxcel_http"), "{answers}");
    house.assert_sound();
}
