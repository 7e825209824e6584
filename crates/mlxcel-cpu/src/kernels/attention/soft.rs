//! The softmax of attention: scores of a tile become weights relative to a running maximum, and partial results over
//! stretches of keys are joined. Loops are plain and over whole arrays, so that every level vectorises them.
#![allow(unsafe_code)]

use crate::math::decay;
use crate::simd::Simd;

/// Weights that are summed side by side; the same at every level.
const WIDE: usize = 16;

/// The running softmax of one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) top: f32,
    /// The sum of the weights is that of these.
    pub(super) sums: [f32; WIDE],
}

impl Running {
    pub(super) const EMPTY: Running = Running { top: f32::NEG_INFINITY, sums: [0.0; WIDE] };

    /// One score without a value.
    pub(super) fn sink(score: f32) -> Self {
        Self::of(score, 1.0)
    }

    /// A maximum, and a sum of weights.
    pub(super) fn of(top: f32, sum: f32) -> Self {
        let mut sums = [0.0; WIDE];
        sums[0] = sum;
        Running { top, sums }
    }

    /// The sum of the weights, always in the same order.
    pub(super) fn sum(&self) -> f32 {
        let mut v = self.sums;
        let mut half = WIDE / 2;
        while half > 0 {
            for i in 0..half {
                v[i] += v[i + half];
            }
            half /= 2;
        }
        v[0]
    }
}

/// Turns scores into weights relative to the running maximum, which they may raise; gives the factor by which what
/// was summed before fades. Scores are a whole number of [`WIDE`]; those that are not seen are −∞.
#[inline(always)]
pub(super) fn soften<S: Simd>(scores: &mut [f32], running: &mut Running) -> f32 {
    let (groups, _) = scores.as_chunks_mut::<WIDE>();
    let fade = raise::<S>(groups, running);
    let top = running.top;
    if top == f32::NEG_INFINITY && !groups.as_flattened().iter().any(|x| x.is_nan()) {
        // Nothing was seen so far, and masks hide all of this tile.
        groups.as_flattened_mut().fill(0.0);
        return 1.0;
    }
    for group in groups.iter_mut() {
        for i in 0..WIDE {
            group[i] = decay::<S>(group[i] - top);
        }
    }
    add::<S>(groups, &mut running.sums);
    fade
}

/// Adds weights to the sums, in vectors: as numbers of an array each addition would wait for memory.
#[inline(always)]
fn add<S: Simd>(groups: &[[f32; WIDE]], sums: &mut [f32; WIDE]) {
    for lane in (0..WIDE).step_by(S::LANES) {
        // SAFETY: groups and sums have whole vectors.
        unsafe {
            let mut sum = S::load(sums[lane..].as_ptr());
            for group in groups {
                sum = S::add(sum, S::load(group[lane..].as_ptr()));
            }
            S::store(sums[lane..].as_mut_ptr(), sum);
        }
    }
}

/// Raises the maximum to that of the scores, and fades what was summed before accordingly.
#[inline(always)]
fn raise<S: Simd>(groups: &[[f32; WIDE]], running: &mut Running) -> f32 {
    let mut most = [running.top; WIDE];
    for group in groups {
        for i in 0..WIDE {
            most[i] = if group[i] > most[i] { group[i] } else { most[i] };
        }
    }
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for i in 0..8 {
        eight[i] = if most[i] > most[i + 8] { most[i] } else { most[i + 8] };
    }
    for i in 0..4 {
        four[i] = if eight[i] > eight[i + 4] { eight[i] } else { eight[i + 4] };
    }
    let low = if four[0] > four[1] { four[0] } else { four[1] };
    let high = if four[2] > four[3] { four[2] } else { four[3] };
    let top = if low > high { low } else { high };
    if top == running.top {
        return 1.0;
    }
    if running.top == f32::NEG_INFINITY {
        // Nothing was summed before.
        running.top = top;
        return 0.0;
    }
    let fade = decay::<S>(running.top - top);
    running.top = top;
    for sum in &mut running.sums {
        *sum *= fade;
    }
    fade
}

/// The common maxima of lines, and from their maxima before and in a part the factors with which either is joined.
#[inline(always)]
pub(super) fn join_factors<S: Simd, const LINES: usize>(
    tops: &mut [f32; LINES],
    (old, new): (&mut [f32; LINES], &mut [f32; LINES]),
) {
    for i in 0..LINES {
        tops[i] = if new[i] > old[i] { new[i] } else { old[i] };
        // Where nothing was seen on either side, any top will do.
        let top = if tops[i] == f32::NEG_INFINITY { 0.0 } else { tops[i] };
        (old[i], new[i]) = (decay::<S>(old[i] - top), decay::<S>(new[i] - top));
    }
}

/// Joins partial results of lines to the results of all keys before them. The factors of several lines are computed side by side.
#[inline(always)]
pub(super) fn join<S: Simd>(total: (&mut [f32], &mut [Running]), part: (&[f32], &[Running])) {
    let ((out, running), (more, add)) = (total, part);
    let width = out.len() / running.len().max(1);
    for first in (0..running.len()).step_by(WIDE) {
        let count = WIDE.min(running.len() - first);
        let (mut old, mut new) = ([0.0; WIDE], [0.0; WIDE]);
        for i in 0..count {
            (old[i], new[i]) = (running[first + i].top, add[first + i].top);
        }
        let mut tops = [0.0; WIDE];
        join_factors::<S, WIDE>(&mut tops, (&mut old, &mut new));
        for i in 0..count {
            let (line, running) = (first + i, &mut running[first + i]);
            let (old, new) = (old[i], new[i]);
            let (out, more) = (&mut out[line * width..][..width], &more[line * width..][..width]);
            for c in 0..width {
                out[c] = out[c] * old + more[c] * new;
            }
            running.top = tops[i];
            for lane in 0..WIDE {
                running.sums[lane] = running.sums[lane] * old + add[line].sums[lane] * new;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::core::KEYS;
    use super::*;
    use crate::simd::{Kernel, SimdLevel};

    /// Runs a check at every level of the machine.
    fn everywhere<K: Kernel<Output = ()> + Copy>(check: K) {
        SimdLevel::available().into_iter().for_each(|level| level.dispatch(check));
    }

    #[derive(Clone, Copy)]
    struct TwoTiles;

    impl Kernel for TwoTiles {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self) {
            let scores: Vec<f32> = (0..2 * KEYS).map(|i| ((i * 37) % 101) as f32 * 0.1 - 3.0).collect();
            let (mut first, mut second) = (scores[..KEYS].to_vec(), scores[KEYS..].to_vec());
            let mut running = Running::EMPTY;
            assert_eq!(soften::<S>(&mut first, &mut running), 0.0);
            let fade = soften::<S>(&mut second, &mut running);
            let top = scores.iter().fold(f64::MIN, |a, &x| a.max(f64::from(x)));
            let sum: f64 = scores.iter().map(|&x| (f64::from(x) - top).exp()).sum();
            assert!((f64::from(running.sum()) - sum).abs() < 1e-5 * sum);
            for (i, &s) in scores.iter().enumerate() {
                let found = if i < KEYS { first[i] * fade } else { second[i - KEYS] };
                assert!((f64::from(found) - (f64::from(s) - top).exp()).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn weights_of_two_tiles_are_those_of_one_softmax() {
        everywhere(TwoTiles);
    }

    #[derive(Clone, Copy)]
    struct Nothing;

    impl Kernel for Nothing {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self) {
            let mut hidden = vec![f32::NEG_INFINITY; KEYS];
            let mut running = Running::EMPTY;
            assert_eq!(soften::<S>(&mut hidden, &mut running), 1.0);
            assert_eq!((running.top, running.sum()), (f32::NEG_INFINITY, 0.0));
            assert!(hidden.iter().all(|&p| p == 0.0));
            // Nothing behind something, something behind nothing, and nothing behind nothing.
            let mut out = [1.0, 2.0, 0.0, 0.0, 0.0, 0.0];
            let mut running = [Running::sink(0.5), Running::EMPTY, Running::EMPTY];
            let part =
                ([0.0, 0.0, 3.0, 4.0, 0.0, 0.0], [Running::EMPTY, Running::sink(-2.0), Running::EMPTY]);
            join::<S>((&mut out, &mut running), (&part.0, &part.1));
            assert_eq!(out, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
            let state = running.map(|r| (r.top, r.sum()));
            assert_eq!(state, [(0.5, 1.0), (-2.0, 1.0), (f32::NEG_INFINITY, 0.0)]);
        }
    }

    #[test]
    fn tiles_that_show_nothing_change_nothing() {
        everywhere(Nothing);
    }
}
