//! Sends spans to a collector, by OTLP over HTTP in its JSON form, from a thread of its own. A collector that is slow or
//! gone costs spans, never requests.
//! <https://opentelemetry.io/docs/specs/otlp/>

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::{Kind, Record, Value, nanoseconds};
use crate::config::Otlp;
use crate::error::ServerError;

/// Spans that wait to be sent; further ones are lost.
const WAITING_MAX: usize = 8192;
/// Spans of one message.
const BATCH_MAX: usize = 512;
/// How long a span waits for company.
const BATCH_TIME: Duration = Duration::from_secs(2);
/// How long a collector may take.
const SEND_TIME: Duration = Duration::from_secs(5);

/// Takes spans and sends them by and by. Dropping it sends what is left.
pub struct Exporter {
    records: Mutex<Option<SyncSender<Record>>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    pub fn start(otlp: &Otlp) -> Result<Self, ServerError> {
        let url = format!("{}/v1/traces", otlp.endpoint.trim_end_matches('/'));
        let is_url = url.starts_with("http://") || url.starts_with("https://");
        if !is_url || url.parse::<axum::http::Uri>().is_err() {
            return Err(ServerError::OtlpEndpoint { endpoint: otlp.endpoint.clone() });
        }
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let service = otlp.service.clone();
        let thread = std::thread::Builder::new().name("traces".to_string());
        let thread = thread.spawn(move || export(&receiver, &url, &service));
        let thread = thread.map_err(|source| ServerError::Threads { source })?;
        Ok(Exporter { records: Mutex::new(Some(sender)), thread: Some(thread) })
    }

    pub fn send(&self, record: Record) {
        let records = self.records.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(records) = &*records {
            // One that does not fit is lost: a request must not wait for a collector.
            let _ = records.try_send(record);
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        *self.records.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
        if let Some(thread) = self.thread.take() {
            // It ends after one more message at most for what waits, each within its time.
            let _ = thread.join();
        }
    }
}

fn export(records: &Receiver<Record>, url: &str, service: &str) {
    let config = ureq::Agent::config_builder().timeout_global(Some(SEND_TIME)).max_redirects(0).build();
    let agent = ureq::Agent::new_with_config(config);
    let mut is_over = false;
    while !is_over {
        let Ok(first) = records.recv() else { return };
        let (mut batch, until) = (vec![first], Instant::now() + BATCH_TIME);
        while batch.len() < BATCH_MAX {
            match records.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(record) => batch.push(record),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    is_over = true;
                    break;
                }
            }
        }
        let body = message(&batch, service).to_string();
        let sent = agent.post(url).header("content-type", "application/json").send(body);
        if let Err(error) = sent {
            tracing::warn!(%error, spans = batch.len(), "the collector of traces did not take them");
        }
    }
}

/// An `ExportTraceServiceRequest`.
fn message(batch: &[Record], service: &str) -> Json {
    let spans: Vec<Json> = batch.iter().map(span).collect();
    let scope = json!({"name": "mlxcel-server", "version": env!("CARGO_PKG_VERSION")});
    let resource = json!({"attributes": [attribute(("service.name", Value::Text(service.to_string())))]});
    json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]})
}

/// Ids are hexadecimal, and 64-bit numbers are texts, as OTLP has them in JSON.
fn span(record: &Record) -> Json {
    let kind = match record.kind {
        Kind::Internal => 1,
        Kind::Server => 2,
    };
    let mut span = json!({
        "traceId": format!("{:032x}", record.place.trace),
        "spanId": format!("{:016x}", record.id),
        "name": record.name,
        "kind": kind,
        "startTimeUnixNano": nanoseconds(record.from).to_string(),
        "endTimeUnixNano": nanoseconds(record.to).to_string(),
        "attributes": record.attributes.iter().cloned().map(attribute).collect::<Vec<_>>(),
        "status": if record.is_failed { json!({"code": 2}) } else { json!({}) },
    });
    if record.place.parent != 0 {
        span["parentSpanId"] = format!("{:016x}", record.place.parent).into();
    }
    span
}

fn attribute((key, value): (&'static str, Value)) -> Json {
    match value {
        Value::Text(text) => json!({"key": key, "value": {"stringValue": text}}),
        Value::Number(number) => json!({"key": key, "value": {"intValue": number.to_string()}}),
    }
}
