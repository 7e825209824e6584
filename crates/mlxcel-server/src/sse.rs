//! Server-sent events: a body that is written as the answer comes. An error after the beginning is an `error` event,
//! never a silent end. What the events say is each interface's business.

use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep};

use crate::generate::{Generation, Shown};
use crate::refusal::{Dialect, Refusal};

/// How long a failure may take to be told by a status rather than by an event.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A comment is sent so often while there is nothing to say, so that nobody between takes the connection for dead.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Writes an answer as events.
pub trait Script: Send + Unpin + 'static {
    const DIALECT: Dialect;

    fn begin(&mut self, generation: &Generation, events: &mut Events);

    fn show(&mut self, shown: Shown, generation: &Generation, events: &mut Events);

    /// After the last piece.
    fn end(&mut self, generation: &Generation, events: &mut Events);

    /// Instead of the end.
    fn fail(&mut self, refusal: &Refusal, events: &mut Events) {
        events.event("error", &refusal.body(Self::DIALECT));
    }
}

/// Events that are not sent yet.
#[derive(Debug, Default)]
pub struct Events(String);

impl Events {
    /// An event without a name.
    pub fn data(&mut self, value: &impl Serialize) {
        self.0.push_str("data: ");
        self.json(value);
    }

    pub fn event(&mut self, name: &str, value: &impl Serialize) {
        self.0.extend(["event: ", name, "\ndata: "]);
        self.json(value);
    }

    /// An event without a name, by a template.
    pub fn templated(&mut self, template: &Template, text: &str) {
        let Template { before, after } = template;
        self.0.reserve(before.len() + text.len() + after.len() + 16);
        self.0.push_str(before);
        self.quoted(text);
        self.0.push_str(after);
    }

    /// The word that ends a stream of OpenAI's.
    pub fn done(&mut self) {
        self.0.push_str("data: [DONE]\n\n");
    }

    fn json(&mut self, value: &impl Serialize) {
        // JSON of our own types has string keys and no line breaks.
        let text = serde_json::to_string(value).expect("answers are plain data");
        self.0.extend([text.as_str(), "\n\n"]);
    }

    fn quoted(&mut self, text: &str) {
        let is_plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
        if text.bytes().all(is_plain) {
            self.0.extend(["\"", text, "\""]);
        } else {
            self.0.push_str(&serde_json::to_string(text).expect("a text is plain data"));
        }
    }

    fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.0))
    }
}

/// An event of which all but one text is always the same. A stream has one for every token, and writing it this way
/// takes a small part of the time.
#[derive(Clone, Debug)]
pub struct Template {
    before: String,
    after: String,
}

impl Template {
    /// What stands in an example for the text to come.
    pub const BLANK: &'static str = "\0";

    /// By an example in which [`BLANK`](Self::BLANK) stands for the text.
    pub fn new(example: &impl Serialize) -> Self {
        let mut events = Events::default();
        events.data(example);
        let (before, after) = events.0.rsplit_once(r#""\u0000""#).expect("the example holds the blank");
        Template { before: before.to_string(), after: after.to_string() }
    }
}

/// Where a stream stands.
struct Telling<S> {
    generation: Generation,
    script: S,
    events: Events,
    phase: Phase,
    /// When the next sign of life is due, unless something was said since.
    alarm: Pin<Box<Sleep>>,
    said: Instant,
}

enum Phase {
    Beginning,
    Telling,
    Over,
}

/// The response that tells a generation. What fails before there is anything to tell fails with a status.
pub async fn respond<S: Script>(mut generation: Generation, script: S) -> Result<Response, Refusal> {
    generation.begun(PATIENCE).await?;
    let mut response = Response::new(Body::new(Telling {
        generation,
        script,
        events: Events::default(),
        phase: Phase::Beginning,
        alarm: Box::pin(tokio::time::sleep(SIGN_OF_LIFE)),
        said: Instant::now(),
    }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that would collect the answer let it through.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

impl<S: Script> http_body::Body for Telling<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.get_mut().poll(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl<S: Script> Telling<S> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.phase {
            Phase::Over => return Poll::Ready(None),
            Phase::Beginning => {
                self.script.begin(&self.generation, &mut self.events);
                self.phase = Phase::Telling;
            }
            Phase::Telling => match self.generation.poll_next(context) {
                Poll::Pending => return self.poll_alarm(context),
                Poll::Ready(Some(Ok(shown))) => {
                    let Telling { generation, script, events, .. } = self;
                    shown.into_iter().for_each(|shown| script.show(shown, generation, events));
                }
                Poll::Ready(Some(Err(refusal))) => {
                    tracing::error!(error = %refusal, "an answer broke off");
                    self.script.fail(&refusal, &mut self.events);
                    self.phase = Phase::Over;
                }
                Poll::Ready(None) => {}
            },
        }
        if matches!(self.phase, Phase::Telling) && self.generation.is_over() {
            self.script.end(&self.generation, &mut self.events);
            self.phase = Phase::Over;
        }
        self.said = Instant::now();
        Poll::Ready(Some(self.events.take()))
    }

    /// A comment, where nothing was said for long. The alarm is set anew only when it rings, not with every token.
    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        while self.alarm.as_mut().poll(context).is_ready() {
            let due = self.said + SIGN_OF_LIFE;
            if due <= Instant::now() {
                self.said = Instant::now();
                return Poll::Ready(Some(Bytes::from_static(b": still here\n\n")));
            }
            self.alarm.as_mut().reset(due);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_that_end_with_an_empty_one() {
        let mut events = Events::default();
        events.data(&serde_json::json!({"text": "a\nb"}));
        events.event("error", &1);
        events.done();
        let sent = String::from_utf8(events.take().to_vec()).unwrap();
        assert_eq!(sent, "data: {\"text\":\"a\\nb\"}\n\nevent: error\ndata: 1\n\ndata: [DONE]\n\n");
    }

    #[test]
    fn a_template_writes_what_serialising_would() {
        #[derive(Serialize)]
        struct Event<'a> {
            id: &'a str,
            text: &'a str,
            end: Option<u8>,
        }
        let event = |text| Event { id: "\0", text, end: None };
        let template = Template::new(&event(Template::BLANK));
        for text in ["", "plain", "字 🛑", "\"quoted\" \\ \n \u{1} \u{7f} \0"] {
            let (mut templated, mut serialised) = (Events::default(), Events::default());
            templated.templated(&template, text);
            serialised.data(&event(text));
            assert_eq!(templated.0, serialised.0);
        }
    }
}
