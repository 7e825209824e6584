//! A histogram of durations with fixed bounds, filled without a lock.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in seconds, from a fast step to a long queue.
const BOUNDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// How many durations fell below each bound.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Not cumulative; the last one is for what is above every bound.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    pub fn record(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// Appends the series of this histogram.
    pub fn render(&self, out: &mut String, name: &str, label: &str) {
        let mut total = 0;
        for (bound, count) in BOUNDS.iter().zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{label},le=\"{bound}\"}} {total}");
        }
        total += self.counts[BOUNDS.len()].load(Ordering::Relaxed);
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{{label},le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum{{{label}}} {sum}\n{name}_count{{{label}}} {total}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let histogram = Histogram::default();
        for seconds in [0.0004, 0.02, 0.02, 500.0] {
            histogram.record(Duration::from_secs_f64(seconds));
        }
        let mut out = String::new();
        histogram.render(&mut out, "t", "m=\"x\"");
        for line in [
            "t_bucket{m=\"x\",le=\"0.0005\"} 1",
            "t_bucket{m=\"x\",le=\"0.01\"} 1",
            "t_bucket{m=\"x\",le=\"0.025\"} 3",
            "t_bucket{m=\"x\",le=\"120\"} 3",
            "t_bucket{m=\"x\",le=\"+Inf\"} 4",
            "t_count{m=\"x\"} 4",
            "t_sum{m=\"x\"} 500.0404",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} in\n{out}");
        }
    }
}
