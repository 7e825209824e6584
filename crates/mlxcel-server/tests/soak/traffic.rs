//! Requests of every kind: whole and streamed answers, clients that go, errors, long prompts, tools, grammars.

use std::io::Read as _;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::client::Client;
use crate::engine::Faults;

const CHAT: &str = "/v1/chat/completions";

/// Numbers that look random and are the same every time.
pub struct Choice(u64);

impl Choice {
    pub fn new(seed: u64) -> Self {
        Choice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        // Knuth's generator; its high bits are good enough for a choice.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn chat(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "max_tokens": 40})
}

fn with(mut body: Value, fields: Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// One request. What is answered is looked at elsewhere; here it must not be a failure of the server, unless one was
/// asked for.
pub fn ask(client: &Client, faults: &Faults, choice: &mut Choice) {
    let status = match choice.below(16) {
        0 => client.post(CHAT, &chat("A")).status,
        1 => client.post(CHAT, &with(chat("5"), json!({"stream": true}))).status,
        2 => return leave(client, &with(chat("5"), json!({"stream": true})), choice),
        3 => return leave(client, &chat(&("x".repeat(1500) + "5")), choice),
        4 => {
            let odd: [&[u8]; 4] = [b"{", b"\xff\xfe", b"[1,", b"nonsense"];
            client.post_bytes(CHAT, odd[choice.below(4) as usize]).status
        }
        5 => client.post(CHAT, &with(chat("A"), json!({"surprise": 1}))).status,
        6 => client.post(CHAT, &chat(&"y".repeat(1000 + choice.below(900) as usize))).status,
        7 => client.post(CHAT, &chat(&"z".repeat(3000))).status,
        8 => client.post(CHAT, &with(chat("1"), tools())).status,
        9 => client.post(CHAT, &with(chat("2"), with(tools(), json!({"stream": true})))).status,
        10 => client.post(CHAT, &with(chat("A"), format(choice.below(1000)))).status,
        11 => {
            client.post(CHAT, &with(chat("A"), json!({"n": 3, "logprobs": true, "top_logprobs": 3}))).status
        }
        12 => client.post("/v1/responses", &json!({"input": "A", "store": true})).status,
        13 => {
            let messages = json!([{"role": "user", "content": "3"}]);
            let body = json!({"model": "script", "max_tokens": 20, "stream": true, "messages": messages});
            client.post("/v1/messages", &body).status
        }
        14 => {
            client
                .post(CHAT, &with(chat("A"), json!({"model": format!("no such {}", choice.below(99))})))
                .status
        }
        _ => return fail(client, faults, choice),
    };
    // The failure that another client asked for may meet this one, too.
    assert!((200..=500).contains(&status), "{status}");
}

fn tools() -> Value {
    json!({"tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]})
}

/// Many schemas, more than are kept.
fn format(number: u64) -> Value {
    let schema = json!({"type": "object", "properties": {"n": {"const": number}}, "required": ["n"]});
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}})
}

/// Goes at once, or after a part of the answer.
fn leave(client: &Client, body: &Value, choice: &mut Choice) {
    let mut stream = client.begin_post(CHAT, body);
    if choice.below(2) == 0 {
        let _ = stream.read(&mut [0; 300]);
    }
}

/// Lets a step fail now and then; whoever was in it may be told so.
fn fail(client: &Client, faults: &Faults, choice: &mut Choice) {
    if choice.below(4) == 0 {
        faults.computes_nan.store(true, Ordering::SeqCst);
        let _ = client.post(CHAT, &chat("A"));
        faults.computes_nan.store(false, Ordering::SeqCst);
    } else {
        assert_eq!(client.get("/metrics").status, 200);
    }
}
