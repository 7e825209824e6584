//! A client that can also be rude: plain sockets, one request on each.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::house::PATIENCE;

#[derive(Clone, Debug)]
pub struct Client {
    pub address: String,
    pub key: Option<String>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {}", self.text()))
    }

    /// The text of a chat's first choice.
    pub fn content(&self) -> String {
        self.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_string()
    }

    /// The events of a stream: name and data.
    pub fn events(&self) -> Vec<(String, String)> {
        let text = self.text();
        let mut events = Vec::new();
        for block in text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':')) {
            let line =
                |name: &str| block.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("").to_string();
            events.push((line("event: "), line("data: ")));
        }
        events
    }

    /// The data of a stream's events, `[DONE]` left out.
    pub fn chunks(&self) -> Vec<Value> {
        let data = self.events().into_iter().map(|(_, data)| data).filter(|data| data != "[DONE]");
        data.map(|data| serde_json::from_str(&data).unwrap_or_else(|e| panic!("{e}: {data}"))).collect()
    }
}

impl Client {
    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        self.request("POST", path, &[("content-type", "application/json")], body)
    }

    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.begin(method, path, headers, body.len());
        let _ = stream.write_all(body);
        read_answer(&mut stream)
    }

    /// Sends a request's head; its body and its answer are the caller's business.
    pub fn begin(&self, method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> TcpStream {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        if let Some(key) = &self.key {
            head.push_str(&format!("authorization: Bearer {key}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if length > 0 || method == "POST" {
            head.push_str(&format!("content-length: {length}\r\n"));
        }
        self.raw(format!("{head}\r\n").as_bytes())
    }

    /// Opens a connection and sends some bytes.
    pub fn raw(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // A server may have closed the connection before it has read everything.
        let _ = stream.write_all(bytes);
        stream
    }

    /// Begins a request and does not wait for its answer.
    pub fn begin_post(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let mut stream = self.begin("POST", path, &[("content-type", "application/json")], body.len());
        stream.write_all(body.as_bytes()).expect("the body is sent");
        stream
    }
}

/// Reads to the end of the connection.
pub fn read_answer(stream: &mut impl Read) -> Answer {
    let mut bytes = Vec::new();
    // A connection that is reset has said what it had to say.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or(bytes.len());
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_string()))
        .collect();
    let rest = bytes.get(end + 4..).unwrap_or_default();
    let is_chunked = headers.get("transfer-encoding").is_some_and(|e| e == "chunked");
    let body = if is_chunked { unchunk(rest) } else { rest.to_vec() };
    Answer { status, headers, body }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&rest[..at]).ok().and_then(|s| usize::from_str_radix(s, 16).ok());
        let Some(size) = size.filter(|size| *size > 0) else { break };
        let data = rest.get(at + 2..).unwrap_or_default();
        body.extend(&data[..size.min(data.len())]);
        rest = data.get(size + 2..).unwrap_or_default();
    }
    body
}
