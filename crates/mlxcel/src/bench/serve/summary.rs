//! What many requests come to: counts, rates and percentiles. It does no I/O and has no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::exchange::{Outcome, Sample};
use super::load::{Load, Measured};

/// How fast an answer has to be to be a good one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Goal {
    pub first_token_ms: Option<f64>,
    pub per_token_ms: Option<f64>,
}

/// One run, under one load.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub load: String,
    pub clients: Option<u32>,
    pub rate: Option<f64>,
    pub wall_s: f64,
    pub requests: usize,
    pub completed: usize,
    pub cancelled: usize,
    pub failed: usize,
    pub errors: Vec<ErrorCount>,
    /// Completed ones.
    pub requests_per_s: f64,
    /// The tokens below are those of all answers, cancelled ones included; prompts as far as the server counts them.
    pub output_tokens: u64,
    pub output_tokens_per_s: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// The four times are those of completed requests.
    pub first_token_ms: Option<Spread>,
    /// Between pieces of answers.
    pub between_tokens_ms: Option<Spread>,
    /// The mean of each answer.
    pub per_token_ms: Option<Spread>,
    pub total_ms: Option<Spread>,
    pub goodput: Option<Goodput>,
    pub samples: Vec<Line>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct ErrorCount {
    pub kind: String,
    pub count: usize,
    /// What the first of this kind said.
    pub first: String,
}

/// Answers that reached the goal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    pub goal: Goal,
    pub requests: usize,
    /// Of all requests that were not cancelled.
    pub share: f64,
    pub requests_per_s: f64,
}

/// One request.
#[derive(Debug, Serialize)]
pub struct Line {
    pub started_s: f64,
    pub outcome: String,
    pub first_token_ms: Option<f64>,
    pub per_token_ms: Option<f64>,
    pub total_ms: f64,
    pub output_tokens: u64,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
}

/// A distribution in a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Goal {
    fn is_any(&self) -> bool {
        self.first_token_ms.is_some() || self.per_token_ms.is_some()
    }

    /// A time that an answer does not have, since it is too short, keeps it from nothing.
    fn is_reached(&self, sample: &Sample) -> bool {
        let within = |time: Option<Duration>, limit: Option<f64>| match (time, limit) {
            (Some(time), Some(limit)) => ms(time) <= limit,
            _ => true,
        };
        sample.is_completed()
            && within(sample.first, self.first_token_ms)
            && within(sample.per_token(), self.per_token_ms)
    }
}

impl Spread {
    /// `None` of nothing.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let max = *values.last()?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let [p50, p90, p95, p99] = [0.5, 0.9, 0.95, 0.99].map(|part| quantile(&values, part));
        Some(Spread { mean, p50, p90, p95, p99, max })
    }
}

/// Of sorted values, of which there is one; between two of them in proportion, as numpy and R do by default.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Summary {
    pub fn new(measured: &Measured, goal: Goal) -> Self {
        let Measured { load, started, wall, samples } = measured;
        let wall_s = wall.as_secs_f64();
        let per_s = |count: f64| if wall_s > 0.0 { count / wall_s } else { 0.0 };
        let completed: Vec<&Sample> = samples.iter().filter(|sample| sample.is_completed()).collect();
        let cancelled = samples.iter().filter(|sample| sample.outcome == Outcome::Cancelled).count();
        let spread = |times: &dyn Fn(&Sample) -> Vec<Duration>| {
            Spread::of(completed.iter().flat_map(|sample| times(sample)).map(ms).collect())
        };
        let output_tokens = samples.iter().map(Sample::output_tokens).sum();
        let counted = |count: fn(&Line) -> Option<u64>, lines: &[Line]| lines.iter().filter_map(count).sum();
        let lines: Vec<Line> =
            samples.iter().map(|sample| Line::new(sample, sample.started - *started)).collect();
        Summary {
            load: load.to_string(),
            clients: if let Load::Clients(clients) = load { Some(*clients) } else { None },
            rate: if let Load::Rate(rate) = load { Some(*rate) } else { None },
            wall_s,
            requests: samples.len(),
            completed: completed.len(),
            cancelled,
            failed: samples.len() - completed.len() - cancelled,
            errors: errors(samples),
            requests_per_s: per_s(completed.len() as f64),
            output_tokens,
            output_tokens_per_s: per_s(output_tokens as f64),
            prompt_tokens: counted(|line| line.prompt_tokens, &lines),
            cached_tokens: counted(|line| line.cached_tokens, &lines),
            first_token_ms: spread(&|sample| sample.first.into_iter().collect()),
            between_tokens_ms: spread(&|sample| sample.gaps.clone()),
            per_token_ms: spread(&|sample| sample.per_token().into_iter().collect()),
            total_ms: spread(&|sample| vec![sample.total]),
            goodput: goal.is_any().then(|| {
                let good = samples.iter().filter(|sample| goal.is_reached(sample)).count();
                let judged = samples.len() - cancelled;
                let share = if judged > 0 { good as f64 / judged as f64 } else { 0.0 };
                Goodput { goal, requests: good, share, requests_per_s: per_s(good as f64) }
            }),
            samples: lines,
        }
    }
}

impl Line {
    fn new(sample: &Sample, started: Duration) -> Self {
        let outcome = match &sample.outcome {
            Outcome::Completed => "completed".to_string(),
            Outcome::Cancelled => "cancelled".to_string(),
            Outcome::Failed(failure) => failure.kind(),
        };
        let usage = sample.usage.as_ref();
        Line {
            started_s: started.as_secs_f64(),
            outcome,
            first_token_ms: sample.first.map(ms),
            per_token_ms: sample.per_token().map(ms),
            total_ms: ms(sample.total),
            output_tokens: sample.output_tokens(),
            prompt_tokens: usage.map(|usage| usage.prompt_tokens),
            cached_tokens: usage
                .and_then(|usage| usage.prompt_tokens_details.as_ref())
                .and_then(|details| details.cached_tokens),
        }
    }
}

/// The kinds of failures, by name.
fn errors(samples: &[Sample]) -> Vec<ErrorCount> {
    let mut kinds: BTreeMap<String, ErrorCount> = BTreeMap::new();
    for sample in samples {
        let Outcome::Failed(failure) = &sample.outcome else { continue };
        let kind = failure.kind();
        let entry = kinds.entry(kind.clone());
        entry.or_insert(ErrorCount { kind, count: 0, first: failure.to_string() }).count += 1;
    }
    kinds.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::failure::Failure;
    use super::super::stream::Usage;
    use super::*;

    /// numpy.percentile of the same values.
    #[test]
    fn percentiles_are_those_of_numpy() {
        let spread = Spread::of(vec![15.0, 20.0, 35.0, 40.0, 50.0, 3.5, 8.0]).expect("there are values");
        let got = [spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max];
        let expected = [24.5, 20.0, 44.0, 47.0, 49.4, 50.0];
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?}");
        let one = Spread::of(vec![2.0]).expect("there is a value");
        assert_eq!([one.mean, one.p50, one.p99, one.max], [2.0; 4]);
        assert_eq!(Spread::of(vec![]), None);
    }

    fn millis(times: &[u64]) -> Vec<Duration> {
        times.iter().copied().map(Duration::from_millis).collect()
    }

    fn sample(outcome: Outcome, first: u64, gaps: &[u64], tokens: u64) -> Sample {
        let gaps = millis(gaps);
        let first = Duration::from_millis(first);
        let usage =
            (tokens > 0).then(|| Usage { completion_tokens: tokens, prompt_tokens: 10, ..Usage::default() });
        Sample {
            started: Instant::now(),
            outcome,
            first: Some(first),
            total: first + gaps.iter().sum::<Duration>(),
            pieces: 1 + gaps.len() as u64,
            gaps,
            usage,
        }
    }

    /// Two that are completed, one that is cancelled after two pieces, one that failed; in two seconds.
    fn measured() -> Measured {
        let started = Instant::now();
        let samples = vec![
            sample(Outcome::Completed, 100, &[10, 30], 5),
            sample(Outcome::Completed, 300, &[40, 40], 3),
            sample(Outcome::Cancelled, 5000, &[1], 0),
            sample(Outcome::Failed(Failure::NoDone), 7000, &[], 0),
        ];
        Measured { load: Load::Clients(2), started, wall: Duration::from_secs(2), samples }
    }

    #[test]
    fn a_summary_is_what_one_reckons_by_hand() {
        let run = Summary::new(&measured(), Goal::default());
        assert_eq!((run.requests, run.completed, run.cancelled, run.failed), (4, 2, 1, 1));
        assert_eq!(
            (run.requests_per_s, run.output_tokens, run.output_tokens_per_s),
            (1.0, 5 + 3 + 2 + 1, 5.5)
        );
        assert_eq!(run.prompt_tokens, 20);
        let max = |spread: Option<Spread>| spread.map(|spread| spread.max.round());
        assert_eq!(max(run.first_token_ms), Some(300.0), "neither what was cancelled nor what failed");
        assert_eq!(run.between_tokens_ms.map(|spread| spread.mean.round()), Some(30.0));
        // 40 ms for the four tokens after the first, 80 ms for two.
        assert_eq!(max(run.per_token_ms), Some(40.0));
        assert_eq!(run.per_token_ms.map(|spread| spread.mean.round()), Some(25.0));
        assert_eq!(max(run.total_ms), Some(380.0));
        let error = ErrorCount {
            kind: "no [DONE]".into(),
            count: 1,
            first: "the stream ended without [DONE]".into(),
        };
        assert_eq!(run.errors, [error]);
        assert_eq!(run.goodput, None);
    }

    #[test]
    fn goodput_counts_answers_within_both_limits_among_all_that_were_not_cancelled() {
        let good = |first_token_ms, per_token_ms| {
            let goodput = Summary::new(&measured(), Goal { first_token_ms, per_token_ms }).goodput;
            goodput.map(|good| (good.requests, good.share, good.requests_per_s))
        };
        assert_eq!(good(Some(300.0), None), Some((2, 2.0 / 3.0, 1.0)));
        assert_eq!(good(Some(299.0), None), Some((1, 1.0 / 3.0, 0.5)));
        assert_eq!(good(Some(1000.0), Some(20.0)), Some((1, 1.0 / 3.0, 0.5)));
        assert_eq!(good(None, Some(9.0)), Some((0, 0.0, 0.0)));
    }
}
