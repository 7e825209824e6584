//! Choosing a token from logits on the host. The same arithmetic as the `sample` op, so a token does not depend on
//! where it was drawn.

/// How one row is sampled. Zero or one neutralises each filter.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    pub seed: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// The token for a row of logits; `step` numbers the draw within its sequence.
pub fn sample(logits: &[f32], p: &SamplingParams, step: u32) -> u32 {
    if p.temperature <= 0.0 {
        return argmax(logits);
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    // Equal logits keep the order of their ids, as a stable sort of the whole row would.
    let rising = |a: &u32, b: &u32| descending(logits[*a as usize], logits[*b as usize]).then(a.cmp(b));
    let keep = if p.top_k == 0 { order.len() } else { (p.top_k as usize).min(order.len()) };
    if keep < order.len() {
        order.select_nth_unstable_by(keep, rising);
        order.truncate(keep);
    }
    order.sort_unstable_by(rising);
    let top = logits[order[0] as usize] / p.temperature;
    let mut weights: Vec<f32> =
        order.iter().map(|&t| (logits[t as usize] / p.temperature - top).exp()).collect();
    let total: f32 = weights.iter().sum();
    let mut before = 0.0;
    for (rank, w) in weights.iter_mut().enumerate() {
        let mass = *w;
        let kept = rank == 0 || (before < p.top_p * total && mass >= p.min_p);
        before += mass;
        if !kept {
            *w = 0.0;
        }
    }
    let target = uniform(p.seed, step) * weights.iter().sum::<f32>();
    let mut cumulative = 0.0;
    let mut chosen = 0;
    for (rank, w) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
        cumulative += w;
        chosen = rank;
        if cumulative > target {
            break;
        }
    }
    order[chosen]
}

/// NaN sorts first, so that it is seen rather than hidden.
fn descending(a: f32, b: f32) -> std::cmp::Ordering {
    b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal))
}

/// The first of the largest.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if descending(l, logits[best]).is_lt() {
            best = i;
        }
    }
    best as u32
}

/// A number in `[0, 1)` with 24 random bits from seed and step.
pub fn uniform(seed: u32, step: u32) -> f32 {
    let mixed = mix(mix(seed.wrapping_add(0x9e37_79b9)) ^ step);
    (mixed >> 8) as f32 / (1u32 << 24) as f32
}

fn mix(mut h: u32) -> u32 {
    h = (h ^ (h >> 16)).wrapping_mul(0x7feb_352d);
    h = (h ^ (h >> 15)).wrapping_mul(0x846c_a68b);
    h ^ (h >> 16)
}

/// Divides positive and multiplies negative logits of tokens that occurred, each once.
pub fn repetition_penalty(logits: &mut [f32], seen: &[u32], penalty: f32) {
    let mut done = std::collections::HashSet::new();
    for &t in seen.iter().filter(|t| done.insert(**t)) {
        if let Some(l) = logits.get_mut(t as usize) {
            *l = if *l > 0.0 { *l / penalty } else { *l * penalty };
        }
    }
}

/// The natural logarithms of the probabilities of the `k` likeliest tokens, and of `token`.
pub fn top_logprobs(logits: &[f32], token: u32, k: usize) -> (f32, Vec<(u32, f32)>) {
    let top = logits[argmax(logits) as usize] as f64;
    let sum: f64 = logits.iter().map(|&l| (l as f64 - top).exp()).sum();
    let logprob = |t: u32| (logits[t as usize] as f64 - top - sum.ln()) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| descending(logits[*a as usize], logits[*b as usize]).then(a.cmp(b)));
    (logprob(token), order.into_iter().take(k).map(|t| (t, logprob(t))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> SamplingParams {
        SamplingParams { temperature: 1.0, ..Default::default() }
    }

    #[test]
    fn zero_temperature_takes_the_first_of_the_largest() {
        assert_eq!(sample(&[1.0, 3.0, 3.0, 2.0], &SamplingParams::default(), 9), 1);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let mut counts = [0; 3];
        (0..20_000).for_each(|step| counts[sample(&logits, &params(), step) as usize] += 1);
        for (count, share) in counts.iter().zip([0.5, 0.3, 0.2]) {
            assert!((*count as f64 / 20_000.0 - share).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn filters_bound_what_can_be_drawn() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let drawn = |p: SamplingParams| -> std::collections::BTreeSet<u32> {
            (0..2000).map(|s| sample(&logits, &p, s)).collect()
        };
        assert_eq!(drawn(SamplingParams { top_k: 2, ..params() }), [0, 1].into());
        assert_eq!(drawn(SamplingParams { top_p: 0.4, ..params() }), [0].into());
        assert_eq!(drawn(SamplingParams { top_p: 0.6, ..params() }), [0, 1].into());
        assert_eq!(drawn(SamplingParams { min_p: 0.5, ..params() }), [0, 1].into());
        assert_eq!(drawn(params()), [0, 1, 2].into());
    }

    #[test]
    fn a_seed_and_step_always_draw_the_same() {
        let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32).collect();
        let p = SamplingParams { seed: 42, ..params() };
        let once: Vec<u32> = (0..20).map(|s| sample(&logits, &p, s)).collect();
        let again: Vec<u32> = (0..20).map(|s| sample(&logits, &p, s)).collect();
        assert_eq!(once, again);
        assert!(once.iter().collect::<std::collections::HashSet<_>>().len() > 5);
    }

    #[test]
    fn repetition_penalty_pushes_seen_tokens_down_once() {
        let mut logits = [2.0, -2.0, 1.0];
        repetition_penalty(&mut logits, &[0, 1, 0, 99], 2.0);
        assert_eq!(logits, [1.0, -4.0, 1.0]);
    }

    #[test]
    fn logprobs_are_the_log_of_the_softmax() {
        let (chosen, top) = top_logprobs(&[0.0, 1.0, 2.0], 1, 2);
        assert!((chosen - (-1.4076059f32)).abs() < 1e-6);
        assert_eq!(top[0].0, 2);
        assert!((top[0].1 - (-0.4076059f32)).abs() < 1e-6);
    }
}
