//! A server that speaks just enough of the protocol to be measured, and that misbehaves as it is told. Each connection
//! has a thread.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Nothing in these tests takes so long; a test that waits for it has failed.
const FOREVER: Duration = Duration::from_secs(60);

/// What is done with a chat request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Behaviour {
    /// Pieces, the end, the usage and `[DONE]`.
    Answers {
        pieces: usize,
    },
    /// As above, but the connection ends with it.
    AnswersAndCloses {
        pieces: usize,
    },
    /// Once so many clients have left, sends pieces and then waits for this one to leave.
    WaitsForLeaving {
        departures: usize,
        pieces: usize,
    },
    /// Answers only when so many requests are waiting.
    WaitsForCompany {
        requests: usize,
    },
    Refuses {
        status: u16,
        message: &'static str,
    },
    CutsAfter {
        pieces: usize,
    },
    EndsEarly {
        pieces: usize,
    },
    ForgetsDone,
    ReportsAnError,
    SaysNonsense,
    SaysNothing,
}

#[derive(Debug, Default)]
pub struct Seen {
    pub connections: usize,
    pub bodies: Vec<Value>,
    pub keys: Vec<Option<String>>,
    /// Answers under way, now and at most.
    pub now: usize,
    pub most: usize,
    /// Clients that closed the connection in the middle of an answer.
    pub departures: usize,
}

pub struct Server {
    pub url: String,
    state: Arc<State>,
}

struct State {
    seen: Mutex<Seen>,
    changed: Condvar,
    /// By the number of the chat request; the first one is the trial.
    behaviour: Box<dyn Fn(usize) -> Behaviour + Send + Sync>,
    key: Option<&'static str>,
}

impl Server {
    pub fn new(behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static) -> Self {
        Self::with_key(None, behaviour)
    }

    pub fn with_key(
        key: Option<&'static str>,
        behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (seen, changed) = Default::default();
        let state = Arc::new(State { seen, changed, behaviour: Box::new(behaviour), key });
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.unwrap(), shared.clone());
                state.change(|seen| seen.connections += 1);
                // A client that leaves ends its thread by an error.
                thread::spawn(move || drop(state.serve(stream)));
            }
        });
        Server { url, state }
    }

    /// Looks once `is_reached`.
    pub fn wait_until(&self, is_reached: impl Fn(&Seen) -> bool) -> Seen {
        self.state.wait(|seen| is_reached(seen));
        std::mem::take(&mut *self.state.seen.lock().unwrap())
    }

    pub fn seen(&self) -> Seen {
        self.wait_until(|_| true)
    }
}

impl State {
    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, is_reached: impl Fn(&Seen) -> bool) {
        let seen = self.seen.lock().unwrap();
        let (_seen, result) =
            self.changed.wait_timeout_while(seen, FOREVER, |seen| !is_reached(seen)).unwrap();
        assert!(!result.timed_out(), "it was waited for in vain");
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(FOREVER))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let Some((line, key, body)) = request(&mut reader)? else { return Ok(()) };
            if key.as_deref() != self.key.map(|key| format!("Bearer {key}")).as_deref() && self.key.is_some()
            {
                whole(&stream, 401, r#"{"error":{"message":"the key is wrong"}}"#)?;
                continue;
            }
            if line.starts_with("GET /v1/models ") {
                whole(&stream, 200, r#"{"object":"list","data":[{"id":"tiny"},{"id":"other"}]}"#)?;
                continue;
            }
            assert!(line.starts_with("POST /v1/chat/completions "), "{line}");
            let mut number = 0;
            self.change(|seen| {
                number = seen.bodies.len();
                seen.bodies.push(body.clone());
                seen.keys.push(key);
                seen.now += 1;
                seen.most = seen.most.max(seen.now);
            });
            let goes_on = self.answer(&stream, &body, (self.behaviour)(number));
            self.change(|seen| seen.now -= 1);
            if !goes_on? {
                return Ok(());
            }
        }
    }

    /// Whether the connection is used again.
    fn answer(&self, stream: &TcpStream, body: &Value, behaviour: Behaviour) -> io::Result<bool> {
        let done = |pieces| [text(pieces), ending(pieces), vec!["[DONE]".to_string()]].concat();
        let is_streamed = body["stream"] == true;
        match behaviour {
            Behaviour::Answers { pieces } if !is_streamed => {
                let usage = format!(r#"{{"prompt_tokens":7,"completion_tokens":{pieces}}}"#);
                let message = r#"[{"message":{"content":"w"},"finish_reason":"length"}]"#;
                whole(stream, 200, &format!(r#"{{"choices":{message},"usage":{usage}}}"#))?;
            }
            Behaviour::Answers { pieces } => {
                head(stream, "keep-alive")?;
                events(stream, &done(pieces))?;
                end(stream)?;
            }
            Behaviour::AnswersAndCloses { pieces } => {
                head(stream, "close")?;
                events(stream, &done(pieces))?;
                end(stream)?;
                return Ok(false);
            }
            Behaviour::WaitsForCompany { requests } => {
                self.wait(|seen| seen.most >= requests);
                return self.answer(stream, body, Behaviour::Answers { pieces: 2 });
            }
            Behaviour::WaitsForLeaving { departures, pieces } => {
                self.wait(|seen| seen.departures >= departures);
                head(stream, "keep-alive")?;
                let sent = events(stream, &text(pieces));
                let is_gone = sent.is_err() || matches!((&*stream).read(&mut [0]), Ok(0)) || is_reset(stream);
                self.change(|seen| seen.departures += usize::from(is_gone));
                return Ok(false);
            }
            Behaviour::Refuses { status, message } => {
                whole(stream, status, &format!(r#"{{"error":{{"message":"{message}"}}}}"#))?;
            }
            Behaviour::CutsAfter { pieces } => {
                head(stream, "keep-alive")?;
                events(stream, &text(pieces))?;
                return Ok(false);
            }
            Behaviour::EndsEarly { pieces } => {
                head(stream, "keep-alive")?;
                events(stream, &text(pieces))?;
                end(stream)?;
            }
            Behaviour::ForgetsDone => {
                head(stream, "keep-alive")?;
                events(stream, &[text(1), ending(1)].concat())?;
                end(stream)?;
            }
            Behaviour::ReportsAnError => {
                head(stream, "keep-alive")?;
                events(
                    stream,
                    &[text(1), vec![r#"{"error":{"message":"out of blocks"}}"#.to_string()]].concat(),
                )?;
                end(stream)?;
            }
            Behaviour::SaysNonsense => {
                head(stream, "keep-alive")?;
                events(stream, &["nonsense".to_string()])?;
                end(stream)?;
            }
            Behaviour::SaysNothing => {
                drop((&*stream).read(&mut [0]));
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A connection with unread bytes is reset rather than ended; reading from one again gives an error or nothing.
fn is_reset(stream: &TcpStream) -> bool {
    match (&*stream).read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}

type Request = (String, Option<String>, Value);

fn request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let (mut length, mut key) = (0, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => key = Some(value.to_string()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((first, key, serde_json::from_slice(&body).unwrap_or_default())))
}

fn whole(mut stream: &TcpStream, status: u16, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn head(mut stream: &TcpStream, connection: &str) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: {connection}\r\n\
         transfer-encoding: chunked\r\n\r\n"
    )
}

fn events(mut stream: &TcpStream, events: &[String]) -> io::Result<()> {
    for event in events {
        let event = format!("data: {event}\n\n");
        write!(stream, "{:x}\r\n{event}\r\n", event.len())?;
    }
    Ok(())
}

fn end(mut stream: &TcpStream) -> io::Result<()> {
    write!(stream, "0\r\n\r\n")
}

fn text(pieces: usize) -> Vec<String> {
    vec![r#"{"choices":[{"delta":{"content":"w"},"finish_reason":null}]}"#.to_string(); pieces]
}

/// Every piece stands for two tokens.
fn ending(pieces: usize) -> Vec<String> {
    let usage = format!(
        r#"{{"prompt_tokens":7,"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":3}}}}"#,
        2 * pieces
    );
    vec![
        r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#.to_string(),
        format!(r#"{{"choices":[],"usage":{usage}}}"#),
    ]
}
