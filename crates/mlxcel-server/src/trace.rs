//! Traces of requests, where a collector was named: one span for a request, and below it one for its prompt and one for
//! its answer. A request that brings a `traceparent` (W3C Trace Context) goes on in that trace. How spans are sent is
//! `export`'s business.

mod export;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, Method};

pub use export::Exporter;

tokio::task_local! {
    /// The span of the request that a task answers, so that not every function on the way has to hand it on.
    static CURRENT: Arc<Span>;
}

/// The span of the request that is being answered, if requests are traced.
pub fn current() -> Option<Arc<Span>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Runs what answers a request within its span.
pub async fn within<T>(span: Option<Arc<Span>>, answering: impl Future<Output = T>) -> T {
    match span {
        Some(span) => CURRENT.scope(span, answering).await,
        None => answering.await,
    }
}

/// Where a span belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub trace: u128,
    /// The span that this one is part of; 0 for none.
    pub parent: u64,
}

/// One request from its first byte to the last of its answer. It is sent when nobody holds it any more.
pub struct Span {
    exporter: Arc<Exporter>,
    place: Place,
    id: u64,
    name: String,
    started: SystemTime,
    clock: Instant,
    facts: Mutex<Facts>,
}

#[derive(Debug, Default)]
struct Facts {
    attributes: Vec<(&'static str, Value)>,
    is_failed: bool,
    parts: Vec<Record>,
}

/// What is known of a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Number(u64),
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub struct Record {
    pub place: Place,
    pub id: u64,
    pub name: String,
    pub kind: Kind,
    pub from: SystemTime,
    pub to: SystemTime,
    pub attributes: Vec<(&'static str, Value)>,
    pub is_failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Internal,
    Server,
}

/// What came of a generation.
pub struct Made<'a> {
    pub model: &'a str,
    pub started: Instant,
    pub first_token: Option<Instant>,
    pub ended: Instant,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub new_tokens: usize,
}

impl Span {
    /// Begins a span for a request; `None` where its sender does not want it traced.
    pub fn begin(
        exporter: &Arc<Exporter>,
        method: &Method,
        route: &'static str,
        headers: &HeaderMap,
    ) -> Option<Arc<Self>> {
        let place = match headers.get("traceparent").and_then(|value| traceparent(value.to_str().ok()?)) {
            Some((_, Sampled::No)) => return None,
            Some((place, Sampled::Yes)) => place,
            None => Place { trace: new_trace(), parent: 0 },
        };
        let attributes = vec![
            ("http.request.method", Value::Text(method.to_string())),
            ("http.route", Value::Text(route.to_string())),
        ];
        Some(Arc::new(Span {
            exporter: Arc::clone(exporter),
            place,
            id: new_id(),
            name: format!("{method} {route}"),
            started: SystemTime::now(),
            clock: Instant::now(),
            facts: Mutex::new(Facts { attributes, ..Facts::default() }),
        }))
    }

    pub fn answered(&self, status: u16, request_id: &str) {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.attributes.push(("http.response.status_code", Value::Number(status.into())));
        facts.attributes.push(("mlxcel.request_id", Value::Text(request_id.to_string())));
        facts.is_failed |= status >= 500;
    }

    /// An answer that broke off after its status was sent.
    pub fn fail(&self) {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).is_failed = true;
    }

    pub fn made(&self, made: &Made<'_>) {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |n: usize| Value::Number(n as u64);
        facts.attributes.extend([
            ("gen_ai.request.model", Value::Text(made.model.to_string())),
            ("gen_ai.usage.input_tokens", number(made.prompt_tokens)),
            ("gen_ai.usage.output_tokens", number(made.new_tokens)),
        ]);
        let first = made.first_token.unwrap_or(made.ended);
        let cached = vec![("mlxcel.cached_tokens", number(made.cached_tokens))];
        facts.parts.push(self.part("prompt", made.started, first, cached));
        if made.first_token.is_some() {
            facts.parts.push(self.part("answer", first, made.ended, Vec::new()));
        }
    }

    fn part(&self, name: &str, from: Instant, to: Instant, attributes: Vec<(&'static str, Value)>) -> Record {
        Record {
            place: Place { trace: self.place.trace, parent: self.id },
            id: new_id(),
            name: name.to_string(),
            kind: Kind::Internal,
            from: self.time(from),
            to: self.time(to),
            attributes,
            is_failed: false,
        }
    }

    /// By the steady clock, so that a span never ends before it began.
    fn time(&self, at: Instant) -> SystemTime {
        self.started + at.saturating_duration_since(self.clock)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let facts = std::mem::take(self.facts.get_mut().unwrap_or_else(PoisonError::into_inner));
        let record = Record {
            place: self.place,
            id: self.id,
            name: std::mem::take(&mut self.name),
            kind: Kind::Server,
            from: self.started,
            to: self.time(Instant::now()),
            attributes: facts.attributes,
            is_failed: facts.is_failed,
        };
        facts.parts.into_iter().chain([record]).for_each(|record| self.exporter.send(record));
    }
}

/// Whether the sender of a request wants it traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sampled {
    Yes,
    No,
}

/// Version, trace, parent and flags in lower-case hexadecimal digits; later versions may have more parts.
fn traceparent(header: &str) -> Option<(Place, Sampled)> {
    let mut parts = header.split('-');
    let mut digits = |count: usize| {
        let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        parts.next().filter(|part| part.len() == count && part.bytes().all(is_digit))
    };
    let version = digits(2)?;
    let (trace, parent, flags) = (digits(32)?, digits(16)?, digits(2)?);
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
    let parent = u64::from_str_radix(parent, 16).ok().filter(|parent| *parent != 0)?;
    let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
    Some((Place { trace, parent }, if is_sampled { Sampled::Yes } else { Sampled::No }))
}

fn new_trace() -> u128 {
    (u128::from(new_id()) << 64) | u128::from(new_id())
}

/// All zeros would mean none.
fn new_id() -> u64 {
    crate::ids::random().max(1)
}

/// Since 1970.
fn nanoseconds(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_as_the_standard_has_it() {
        let place = Place { trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, parent: 0x00f0_67aa_0ba9_02b7 };
        let read = |flags: &str| {
            traceparent(&format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}"))
        };
        assert_eq!(read("01"), Some((place, Sampled::Yes)));
        assert_eq!(read("00"), Some((place, Sampled::No)));
        assert_eq!(read("03"), Some((place, Sampled::Yes)));
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-will-be-like";
        assert_eq!(traceparent(later), Some((place, Sampled::Yes)));
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        ] {
            assert_eq!(traceparent(bad), None, "{bad}");
        }
    }
}
