//! Rows of reproducible noise: every number is a function of a key and of its own place, so that rows can be made in any
//! order, on any core, and never need be kept.

use super::Rows;

/// About normally distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomRows {
    /// Two tensors with the same key are equal.
    pub key: u64,
    pub cols: usize,
    pub mean: f32,
    pub deviation: f32,
}

impl RandomRows {
    /// A key for the tensor `name` under `seed`.
    pub fn key(seed: u64, name: &str) -> u64 {
        name.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte)))
    }
}

impl Rows for RandomRows {
    fn fill(&self, first: usize, out: &mut [f32]) {
        // The sum of four uniform numbers of 16 bits has this mean and deviation.
        const MEAN: f32 = 2.0 * 65535.0;
        const DEVIATION: f32 = 37_837.2;
        let scale = self.deviation / DEVIATION;
        let start = (first * self.cols) as u64;
        for (place, value) in (start..).zip(out) {
            let bits = mix(self.key.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
            *value = self.mean + scale * (sum as u32 as f32 - MEAN);
        }
    }
}

/// The finaliser of SplitMix64 (<https://doi.org/10.1145/2660193.2660195>): every bit of the input reaches every bit of
/// the output.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(rows: RandomRows, first: usize, count: usize) -> Vec<f32> {
        let mut out = vec![0.0; count * rows.cols];
        rows.fill(first, &mut out);
        out
    }

    #[test]
    fn rows_do_not_depend_on_where_making_them_starts() {
        let rows = RandomRows { key: RandomRows::key(7, "a"), cols: 5, mean: 0.0, deviation: 1.0 };
        let all = draw(rows, 0, 40);
        assert_eq!(draw(rows, 13, 3), all[13 * 5..16 * 5]);
        let other = RandomRows { key: RandomRows::key(7, "b"), ..rows };
        assert_ne!(draw(other, 0, 40), all);
    }

    #[test]
    fn mean_and_deviation_are_those_asked_for() {
        let rows = RandomRows { key: RandomRows::key(1, "x"), cols: 1000, mean: 0.5, deviation: 0.02 };
        let values: Vec<f64> = draw(rows, 0, 1000).into_iter().map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!((mean - 0.5).abs() < 1e-4, "{mean}");
        assert!((variance.sqrt() - 0.02).abs() < 1e-4, "{}", variance.sqrt());
    }
}
