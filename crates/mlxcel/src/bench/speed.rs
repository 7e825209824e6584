//! Speeds of repeated runs, in a few numbers.

use serde::Serialize;

/// In tokens for each second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    pub mean: f64,
    /// The standard deviation of a sample; 0 for a single run.
    pub deviation: f64,
    pub median: f64,
    pub samples: Vec<f64>,
}

impl Speed {
    /// There is at least one sample.
    pub fn new(samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a speed needs a run");
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let squares = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>();
        let deviation = if samples.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            (sorted[half - 1] + sorted[half]) / 2.0
        } else {
            sorted[half]
        };
        Speed { mean, deviation, median, samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_textbook() {
        let speed = Speed::new(vec![9.0, 2.0, 4.0, 4.0, 5.0, 4.0, 5.0, 7.0]);
        assert_eq!((speed.mean, speed.median), (5.0, 4.5));
        assert!((speed.deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        let one = Speed::new(vec![3.0]);
        assert_eq!((one.mean, one.deviation, one.median), (3.0, 0.0, 3.0));
        assert_eq!(Speed::new(vec![1.0, 100.0, 2.0]).median, 2.0);
    }
}
