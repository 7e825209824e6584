//! What is said about a finished answer: the line on stderr, and the JSON object.

use std::time::Duration;

use mlxcel_engine::Caps;
use serde::Serialize;

use crate::session::{Outcome, Token};

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    pub model: &'a str,
    pub engine: &'a str,
    pub device: &'a str,
    pub seed: u32,
    pub prompt_tokens: &'a [u32],
    pub tokens: Vec<u32>,
    /// `None` for a model without a tokenizer.
    pub text: Option<&'a str>,
    /// `stop`, `length` or `interrupted`.
    pub finish_reason: &'a str,
    /// One entry for each token, if they were asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    pub timings: Timings,
}

#[derive(Debug, Serialize)]
pub struct TokenLogprob {
    token: u32,
    logprob: f32,
    top: Vec<Alternative>,
}

#[derive(Debug, Serialize)]
struct Alternative {
    token: u32,
    logprob: f32,
}

/// Speeds are `None` where nothing was computed.
#[derive(Debug, Serialize)]
pub struct Timings {
    pub load_s: f64,
    pub prompt_s: f64,
    pub prompt_tok_per_s: Option<f64>,
    pub decode_s: f64,
    pub decode_tok_per_s: Option<f64>,
    /// Since the process started.
    pub first_token_s: Option<f64>,
    pub peak_memory_bytes: Option<u64>,
}

/// Numbers of tokens, and when the first new one was there.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub prompt: usize,
    pub answer: usize,
    pub load_time: Duration,
    pub first_token: Option<Duration>,
}

impl Timings {
    pub fn new(progress: Progress, outcome: &Outcome, peak_memory_bytes: Option<u64>) -> Self {
        // The first new token comes out of the prompt's last step, so decoding made one less.
        let decoded = progress.answer.saturating_sub(1);
        Timings {
            load_s: progress.load_time.as_secs_f64(),
            prompt_s: outcome.prompt_time.as_secs_f64(),
            prompt_tok_per_s: speed(progress.prompt, outcome.prompt_time),
            decode_s: outcome.decode_time.as_secs_f64(),
            decode_tok_per_s: speed(decoded, outcome.decode_time),
            first_token_s: progress.first_token.map(|t| t.as_secs_f64()),
            peak_memory_bytes,
        }
    }

    /// The line that follows every answer.
    pub fn summary(&self, progress: Progress, caps: &Caps) -> String {
        let speed = |s: Option<f64>| s.map_or("-".to_string(), |s| format!("{s:.1}"));
        let peak = self.peak_memory_bytes.map_or("unknown".to_string(), |bytes| in_words(bytes, "B"));
        format!(
            "prompt {} tokens, {} tok/s | answer {} tokens, {} tok/s | peak memory {peak} | {} engine on {}",
            progress.prompt,
            speed(self.prompt_tok_per_s),
            progress.answer,
            speed(self.decode_tok_per_s),
            caps.name,
            caps.device,
        )
    }
}

fn speed(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// The entries of the tokens that have one; `None` if nobody asked for any.
pub fn logprobs(tokens: &[Token], wanted: Option<usize>) -> Option<Vec<TokenLogprob>> {
    wanted?;
    let entry = |token: &Token| {
        let logprobs = token.logprobs.as_ref()?;
        let top = logprobs.top.iter().map(|&(token, logprob)| Alternative { token, logprob }).collect();
        Some(TokenLogprob { token: token.id, logprob: logprobs.chosen, top })
    };
    Some(tokens.iter().filter_map(entry).collect())
}

/// A large number with three digits or more and a decimal prefix: `98.4 MB`.
pub fn in_words(number: u64, unit: &str) -> String {
    const PREFIXES: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    let mut scaled = number as f64;
    let mut prefix = "";
    for next in PREFIXES {
        // What would round to four digits takes the next prefix.
        if scaled < 999.95 {
            break;
        }
        scaled /= 1000.0;
        prefix = next;
    }
    let digits = usize::from(!prefix.is_empty());
    format!("{scaled:.digits$} {prefix}{unit}").trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Finish;

    #[test]
    fn large_numbers_are_said_with_a_prefix() {
        let said =
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (999_960, "1.0 MB")];
        for (number, words) in said {
            assert_eq!(in_words(number, "B"), words);
        }
        assert_eq!(in_words(134_515_008, ""), "134.5 M");
        assert_eq!(in_words(u64::MAX, "B"), "18.4 EB");
    }

    #[test]
    fn the_first_token_counts_towards_the_prompt() {
        let second = Duration::from_secs(1);
        let outcome =
            Outcome { finish: Finish::Length, reused: 0, prompt_time: second, decode_time: 2 * second };
        let progress = Progress { prompt: 10, answer: 5, load_time: second, first_token: Some(3 * second) };
        let timings = Timings::new(progress, &outcome, Some(5_000_000));
        assert_eq!((timings.prompt_tok_per_s, timings.decode_tok_per_s), (Some(10.0), Some(2.0)));
        let caps = Caps {
            name: "null",
            device: "nothing".to_string(),
            block_size: 1,
            threads: 1,
            prefers_16_bits: false,
            step_tokens: Caps::STEP_TOKENS,
            exact_rows: true,
        };
        assert_eq!(
            timings.summary(progress, &caps),
            "prompt 10 tokens, 10.0 tok/s | answer 5 tokens, 2.0 tok/s | peak memory 5.0 MB | null engine on nothing"
        );
        let nothing = Progress { answer: 0, first_token: None, ..progress };
        let outcome = Outcome { decode_time: Duration::ZERO, ..outcome };
        let line = Timings::new(nothing, &outcome, None).summary(nothing, &caps);
        assert!(line.contains("answer 0 tokens, - tok/s | peak memory unknown"), "{line}");
    }
}
