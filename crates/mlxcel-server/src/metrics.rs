//! What the server counts, in the text form of Prometheus. Labels come from fixed lists and from the models that are
//! loaded, so the number of series is bounded whatever clients send.

mod histogram;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use histogram::Histogram;

/// Models that have series of their own; requests to further ones are counted under `other`.
const MODELS_MAX: usize = 64;

/// All counters of a server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// By route and status; both are from fixed lists.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    models: Mutex<BTreeMap<String, Arc<ModelMetrics>>>,
    pub connections: Gauge,
    pub connections_refused: Gauge,
}

/// A number that goes up and down, or up only.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn subtract(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is counted for one model.
#[derive(Debug, Default)]
pub struct ModelMetrics {
    pub is_ready: Gauge,
    pub waiting: Gauge,
    pub running: Gauge,
    pub blocks: Gauge,
    pub blocks_used: Gauge,
    pub blocks_cached: Gauge,
    pub prompt_tokens: Gauge,
    pub cached_tokens: Gauge,
    pub generated_tokens: Gauge,
    pub batch_sequences: Gauge,
    pub batch_tokens: Gauge,
    pub steps: Gauge,
    pub preemptions: Gauge,
    pub restarts: Gauge,
    pub cancelled: Gauge,
    pub failed: Gauge,
    pub refused: Gauge,
    pub first_token: Histogram,
    pub between_tokens: Histogram,
    pub whole: Histogram,
}

impl Metrics {
    /// The counters of a model. Past a number of models they share one set.
    pub fn model(&self, name: &str) -> Arc<ModelMetrics> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let known = models.contains_key(name) || models.len() < MODELS_MAX;
        let name = if known { name } else { "other" };
        Arc::clone(models.entry(name.to_string()).or_default())
    }

    /// Counts an answered request.
    pub fn answered(&self, route: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route, status)).or_default() += 1;
    }

    /// The page that Prometheus reads.
    pub fn render(&self) -> String {
        let mut out = String::new();
        header(&mut out, "http_requests_total", "counter", "Answered requests.");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        for ((route, status), count) in requests.iter() {
            let _ =
                writeln!(out, "mlxcel_http_requests_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        drop(requests);
        header(&mut out, "http_connections", "gauge", "Open connections.");
        let _ = writeln!(out, "mlxcel_http_connections {}", self.connections.get());
        header(&mut out, "http_connections_refused_total", "counter", "Connections beyond the limit.");
        let _ = writeln!(out, "mlxcel_http_connections_refused_total {}", self.connections_refused.get());
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        render_models(&mut out, &models);
        out
    }
}

type Read = fn(&ModelMetrics) -> &Gauge;

/// Name, type and meaning of every number that a model has.
const NUMBERS: &[(&str, &str, &str, Read)] = &[
    ("model_ready", "gauge", "Whether the model takes requests.", |m| &m.is_ready),
    ("requests_waiting", "gauge", "Requests in the queue.", |m| &m.waiting),
    ("requests_running", "gauge", "Requests that are being computed.", |m| &m.running),
    ("kv_blocks", "gauge", "Blocks of the KV cache.", |m| &m.blocks),
    ("kv_blocks_used", "gauge", "Blocks that requests hold.", |m| &m.blocks_used),
    ("kv_blocks_cached", "gauge", "Blocks kept for prompts that begin alike.", |m| &m.blocks_cached),
    ("prompt_tokens_total", "counter", "Tokens of prompts.", |m| &m.prompt_tokens),
    ("cached_prompt_tokens_total", "counter", "Tokens of prompts found in the cache.", |m| &m.cached_tokens),
    ("generated_tokens_total", "counter", "Tokens made.", |m| &m.generated_tokens),
    ("batch_sequences", "gauge", "Sequences in the last step.", |m| &m.batch_sequences),
    ("batch_tokens", "gauge", "Tokens in the last step.", |m| &m.batch_tokens),
    ("steps_total", "counter", "Steps of the engine.", |m| &m.steps),
    ("preemptions_total", "counter", "Requests set back for want of blocks.", |m| &m.preemptions),
    ("engine_restarts_total", "counter", "Engines started anew after a failure.", |m| &m.restarts),
    ("requests_cancelled_total", "counter", "Requests whose client went away.", |m| &m.cancelled),
    ("requests_failed_total", "counter", "Requests that the engine failed.", |m| &m.failed),
    ("requests_refused_total", "counter", "Requests refused because the queue was full.", |m| &m.refused),
];

type ReadHistogram = fn(&ModelMetrics) -> &Histogram;

const HISTOGRAMS: &[(&str, &str, ReadHistogram)] = &[
    ("time_to_first_token_seconds", "From a request to its first token.", |m| &m.first_token),
    ("inter_token_seconds", "From a token to the next one.", |m| &m.between_tokens),
    ("request_seconds", "From a request to its end.", |m| &m.whole),
];

fn render_models(out: &mut String, models: &BTreeMap<String, Arc<ModelMetrics>>) {
    for (name, kind, help, read) in NUMBERS {
        header(out, name, kind, help);
        for (model, metrics) in models {
            let _ = writeln!(out, "mlxcel_{name}{{model=\"{}\"}} {}", escape(model), read(metrics).get());
        }
    }
    for (name, help, read) in HISTOGRAMS {
        header(out, name, "histogram", help);
        for (model, metrics) in models {
            read(metrics).render(out, &format!("mlxcel_{name}"), &format!("model=\"{}\"", escape(model)));
        }
    }
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP mlxcel_{name} {help}\n# TYPE mlxcel_{name} {kind}");
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Seconds with microseconds, for logs and answers.
pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_bounded_whatever_models_are_asked_for() {
        let metrics = Metrics::default();
        for i in 0..1000 {
            metrics.model(&format!("model {i}")).generated_tokens.add(1);
        }
        let page = metrics.render();
        let series = page.lines().filter(|line| line.starts_with("mlxcel_generated_tokens_total{"));
        assert_eq!(series.clone().count(), MODELS_MAX + 1);
        assert!(page.contains("mlxcel_generated_tokens_total{model=\"other\"} 936\n"));
    }

    #[test]
    fn labels_are_escaped() {
        let metrics = Metrics::default();
        metrics.model("a\"b\\c\nd").steps.add(3);
        assert!(metrics.render().contains(r#"mlxcel_steps_total{model="a\"b\\c\nd"} 3"#));
    }
}
