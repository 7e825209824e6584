//! What was measured, as markdown or JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::failure::said;
use super::summary::{Spread, Summary};
use crate::table::{self, Align};

/// The columns of the first table; in the second one the first column keeps left as well.
const COUNTS: [&str; 9] =
    ["load", "requests", "cancelled", "failed", "req/s", "output tok/s", "prompt tokens", "cached", "good"];
const TIMES: [&str; 8] = ["load", "time in ms", "mean", "p50", "p90", "p95", "p99", "max"];

#[derive(Debug, Serialize)]
pub struct Report<'a> {
    pub url: String,
    pub model: &'a str,
    pub seed: u64,
    pub input_words: usize,
    pub shared_words: usize,
    pub max_tokens: u32,
    pub is_streamed: bool,
    pub runs: Vec<Summary>,
}

impl Report<'_> {
    /// How often, how long, and what went wrong.
    pub fn to_markdown(&self) -> String {
        let counts: Vec<_> = self.runs.iter().map(counts).collect();
        let times: Vec<_> = self.runs.iter().flat_map(times).collect();
        let mut text = markdown(1, COUNTS, counts);
        if !times.is_empty() {
            text = format!("{text}\n{}", markdown(2, TIMES, times));
        }
        for run in &self.runs {
            for error in &run.errors {
                let _ = write!(text, "\n{}: {} × {}: {}", run.load, error.count, error.kind, error.first);
            }
        }
        if self.runs.iter().any(|run| !run.errors.is_empty()) {
            text.push('\n');
        }
        let streamed = if self.is_streamed { "streamed" } else { "not streamed" };
        let _ = writeln!(
            text,
            "\n{} at {}: prompts of {} words and {} shared by all, answers of {} tokens at most, {streamed}, seed {}",
            said(self.model),
            self.url,
            self.input_words,
            self.shared_words,
            self.max_tokens,
            self.seed
        );
        text
    }
}

fn counts(run: &Summary) -> [String; COUNTS.len()] {
    let good =
        run.goodput.map(|good| format!("{:.1} % ({:.2} req/s)", good.share * 100.0, good.requests_per_s));
    [
        run.load.clone(),
        run.requests.to_string(),
        run.cancelled.to_string(),
        run.failed.to_string(),
        format!("{:.2}", run.requests_per_s),
        format!("{:.1}", run.output_tokens_per_s),
        run.prompt_tokens.to_string(),
        run.cached_tokens.to_string(),
        good.unwrap_or_else(|| "-".to_string()),
    ]
}

fn times(run: &Summary) -> Vec<[String; TIMES.len()]> {
    let all = [
        ("first token", run.first_token_ms),
        ("between tokens", run.between_tokens_ms),
        ("per token", run.per_token_ms),
        ("whole answer", run.total_ms),
    ];
    let row = |(name, spread): (&str, Option<Spread>)| {
        let Spread { mean, p50, p90, p95, p99, max } = spread?;
        let [mean, p50, p90, p95, p99, max] = [mean, p50, p90, p95, p99, max].map(|ms| format!("{ms:.2}"));
        Some([run.load.clone(), name.to_string(), mean, p50, p90, p95, p99, max])
    };
    all.into_iter().filter_map(row).collect()
}

/// A table whose first `left` columns keep left.
fn markdown<const N: usize>(left: usize, names: [&str; N], rows: Vec<[String; N]>) -> String {
    let align = std::array::from_fn(|column| if column < left { Align::Left } else { Align::Right });
    let rule = align.map(|align| if align == Align::Right { "---:" } else { "---" }.to_string());
    let rows: Vec<_> = [names.map(str::to_string), rule].into_iter().chain(rows).collect();
    table::columns(align, &rows).iter().map(|line| format!("| {} |\n", line.join(" | "))).collect()
}
