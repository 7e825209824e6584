//! What is asked: the body of each request by its number, and which clients leave before the end.

use anyhow::{Result, anyhow};
use bytes::Bytes;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use std::time::Duration;

use super::exchange::{Exchange, Sample};
use super::load::Source;
use super::prompts::{Prompts, Purpose, Random};

/// What all requests of a run have in common.
#[derive(Clone, Debug)]
pub struct Shape {
    pub model: String,
    pub input_words: usize,
    pub shared_words: usize,
    pub max_tokens: u32,
    pub is_streamed: bool,
    /// The part of the clients that leave.
    pub cancel: f64,
    /// Fields that every request gets besides.
    pub extra: Map<String, Value>,
    pub timeout: Duration,
}

pub struct Requests {
    shape: Shape,
    prompts: Prompts,
    seed: u64,
    progress: ProgressBar,
}

impl Requests {
    pub fn new(shape: Shape, seed: u64, progress: ProgressBar) -> Self {
        let prompts = Prompts::new(seed, shape.shared_words, shape.input_words);
        Requests { shape, prompts, seed, progress }
    }

    /// A request of one token, which shows whether the server answers at all.
    pub fn trial(shape: &Shape) -> Exchange {
        let prompt = Prompts::new(0, 0, 8).prompt(0);
        Exchange { leaves_after: None, ..shape.exchange(&prompt, 1) }
    }
}

impl Shape {
    fn exchange(&self, prompt: &str, max_tokens: u32) -> Exchange {
        let mut body = json!({
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "stream": self.is_streamed,
        });
        let fields = body.as_object_mut().expect("it was written as an object");
        if self.is_streamed {
            fields.insert("stream_options".to_string(), json!({"include_usage": true}));
        }
        fields.extend(self.extra.clone());
        Exchange {
            body: Bytes::from(body.to_string()),
            is_streamed: self.is_streamed,
            leaves_after: None,
            timeout: self.timeout,
        }
    }
}

impl Source for Requests {
    fn exchange(&self, index: u64) -> Exchange {
        let mut random = Random::new(self.seed, Purpose::Cancel, index);
        let leaves = random.fraction() < self.shape.cancel;
        // Anywhere in the first half, since an answer may be shorter than it could be.
        let half = u64::from(self.shape.max_tokens / 2).max(1);
        let leaves_after = leaves.then(|| 1 + random.below(half));
        let exchange = self.shape.exchange(&self.prompts.prompt(index), self.shape.max_tokens);
        Exchange { leaves_after, ..exchange }
    }

    fn ended(&self, _: &Sample) {
        self.progress.inc(1);
    }
}

/// Fields as a JSON object, of which none is one that decides how an answer is read.
pub fn parse_extra(text: &str) -> Result<Map<String, Value>> {
    let fields: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| anyhow!("expected a JSON object: {error}"))?;
    match ["stream", "stream_options", "messages"].into_iter().find(|name| fields.contains_key(*name)) {
        Some(name) => Err(anyhow!("'{name}' is decided by the other flags")),
        None => Ok(fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            model: "m".to_string(),
            input_words: 3,
            shared_words: 2,
            max_tokens: 10,
            is_streamed: true,
            cancel: 0.25,
            extra: parse_extra(r#"{"temperature":0,"max_tokens":5}"#).unwrap(),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_body_has_what_the_interface_needs_and_what_the_user_added() {
        let requests = Requests::new(shape(), 1, ProgressBar::hidden());
        let body: Value = serde_json::from_slice(&requests.exchange(0).body).unwrap();
        assert_eq!(body["model"], "m");
        assert_eq!(body["stream"], true);
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!((&body["temperature"], &body["max_tokens"]), (&json!(0), &json!(5)));
        assert_eq!(body["messages"][0]["content"].as_str().unwrap().split(' ').count(), 5);
        let whole = Requests::new(Shape { is_streamed: false, ..shape() }, 1, ProgressBar::hidden());
        let body: Value = serde_json::from_slice(&whole.exchange(0).body).unwrap();
        assert_eq!((&body["stream"], body.get("stream_options")), (&json!(false), None));
    }

    #[test]
    fn as_many_clients_leave_as_asked_in_the_first_half_of_answers() {
        let requests = Requests::new(shape(), 1, ProgressBar::hidden());
        let leaving: Vec<u64> = (0..4000).filter_map(|i| requests.exchange(i).leaves_after).collect();
        assert!((900..1100).contains(&leaving.len()), "{}", leaving.len());
        assert!(leaving.iter().all(|pieces| (1..=5).contains(pieces)));
        assert!((1..=5).all(|pieces| leaving.contains(&pieces)));
        for (cancel, count) in [(0.0, 0), (1.0, 100)] {
            let requests = Requests::new(Shape { cancel, ..shape() }, 1, ProgressBar::hidden());
            assert_eq!((0..100).filter_map(|i| requests.exchange(i).leaves_after).count(), count);
        }
    }

    #[test]
    fn fields_that_other_flags_decide_are_refused() {
        for text in ["[]", "{", "1", r#"{"stream":false}"#, r#"{"messages":[]}"#] {
            assert!(parse_extra(text).is_err(), "{text}");
        }
    }
}
