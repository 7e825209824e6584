//! Server-sent events: a body that is written as the answer comes. An error after the beginning is an `error` event,
//! never a silent end. What the events say is each interface's business.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;

use crate::generate::{Generation, Shown};
use crate::refusal::{Dialect, Refusal};

/// How long a failure may take to be told by a status rather than by an event.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A comment is sent so often while there is nothing to say, so that nobody between takes the connection for dead.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Writes an answer as events.
pub trait Script: Send + 'static {
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

    /// The word that ends a stream of OpenAI's.
    pub fn done(&mut self) {
        self.0.push_str("data: [DONE]\n\n");
    }

    fn json(&mut self, value: &impl Serialize) {
        // JSON of our own types has string keys and no line breaks.
        let text = serde_json::to_string(value).expect("answers are plain data");
        self.0.extend([text.as_str(), "\n\n"]);
    }

    fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.0))
    }
}

/// Where a stream stands.
struct Telling<S> {
    generation: Generation,
    script: S,
    events: Events,
    phase: Phase,
}

enum Phase {
    Beginning,
    Telling,
    Over,
}

/// The response that tells a generation. What fails before there is anything to tell fails with a status.
pub async fn respond<S: Script>(mut generation: Generation, script: S) -> Result<Response, Refusal> {
    generation.begun(PATIENCE).await?;
    let telling = Telling { generation, script, events: Events::default(), phase: Phase::Beginning };
    let body = Body::from_stream(stream::unfold(telling, |mut telling| async move {
        let bytes = telling.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), telling))
    }));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that would collect the answer let it through.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

impl<S: Script> Telling<S> {
    async fn next(&mut self) -> Option<Bytes> {
        match self.phase {
            Phase::Over => return None,
            Phase::Beginning => {
                self.script.begin(&self.generation, &mut self.events);
                self.phase = Phase::Telling;
            }
            Phase::Telling => match tokio::time::timeout(SIGN_OF_LIFE, self.generation.next()).await {
                Err(_) => return Some(Bytes::from_static(b": still here\n\n")),
                Ok(Some(Ok(shown))) => {
                    let Telling { generation, script, events, .. } = self;
                    shown.into_iter().for_each(|shown| script.show(shown, generation, events));
                }
                Ok(Some(Err(refusal))) => {
                    tracing::error!(error = %refusal, "an answer broke off");
                    self.script.fail(&refusal, &mut self.events);
                    self.phase = Phase::Over;
                }
                Ok(None) => {}
            },
        }
        if matches!(self.phase, Phase::Telling) && self.generation.is_over() {
            self.script.end(&self.generation, &mut self.events);
            self.phase = Phase::Over;
        }
        Some(self.events.take())
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
}
