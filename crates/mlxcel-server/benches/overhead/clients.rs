//! Clients that stream an answer each, all at once, on connections of their own.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// New tokens of every answer.
pub const TOKENS: usize = 50;

/// Streams so many answers side by side.
pub fn round(address: &str, streams: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let address = address.trim_start_matches("http://");
        let clients: Vec<_> = (0..streams).map(|i| tokio::spawn(stream(address.to_string(), i))).collect();
        for client in clients {
            client.await.expect("every stream is whole");
        }
    });
}

async fn stream(address: String, index: usize) {
    let prompt = format!("Question {index}: what comes after this!");
    let body = json!({
        "messages": [{"role": "user", "content": prompt}],
        "stream": true, "max_tokens": TOKENS, "ignore_eos": true, "temperature": 0,
    });
    let body = body.to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(&address).await.expect("a connection");
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("the request is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the answer is read");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("data: [DONE]"), "{answer}");
    let text: String = answer.lines().filter_map(content).collect();
    assert_eq!(text.len(), TOKENS, "every token is a letter");
}

fn content(line: &str) -> Option<String> {
    let chunk: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
    Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_string())
}
