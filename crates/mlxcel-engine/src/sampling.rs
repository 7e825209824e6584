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
    let keep = if p.top_k == 0 { logits.len() } else { (p.top_k as usize).min(logits.len()) };
    let order = largest(logits, keep);
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
    let mut best = (f32::NEG_INFINITY, 0);
    for (b, block) in logits.chunks(BLOCK).enumerate() {
        match top(block) {
            Some(top) if top > best.0 => best = (top, b * BLOCK),
            Some(_) => {}
            None => {
                best = (f32::NAN, b * BLOCK);
                break;
            }
        }
    }
    let (top, start) = best;
    let place = logits[start..].iter().position(|l| *l == top || l.is_nan() && top.is_nan());
    (start + place.unwrap_or(0)) as u32
}

/// Logits that are looked at together.
const BLOCK: usize = 256;

/// The largest of a block, `None` if one is NaN. Eight at a time, which the compiler makes vectors of.
fn top(block: &[f32]) -> Option<f32> {
    let (mut best, mut nan) = ([f32::NEG_INFINITY; 8], [false; 8]);
    let (whole, rest) = block.as_chunks::<8>();
    for chunk in whole {
        for i in 0..8 {
            best[i] = if chunk[i] > best[i] { chunk[i] } else { best[i] };
            nan[i] |= chunk[i].is_nan();
        }
    }
    let best = best.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &l| if l > a { l } else { a });
    let is_nan = nan.contains(&true) || rest.iter().any(|l| l.is_nan());
    (!is_nan).then_some(best)
}

/// The ids of the `keep` largest logits, the largest first. Equal logits keep the order of their ids, as a stable
/// sort of the whole row would.
fn largest(logits: &[f32], keep: usize) -> Vec<u32> {
    let by = |a: &u32, b: &u32| descending(logits[*a as usize], logits[*b as usize]).then(a.cmp(b));
    let mut found: Vec<u32> = vec![];
    if keep == 0 {
        return found;
    }
    // The smallest that can still be among them, once there are `keep`: later ones must be larger.
    let mut least = None;
    for (b, block) in logits.chunks(BLOCK).enumerate() {
        if least.is_some_and(|least| top(block).is_some_and(|top| top <= least)) {
            continue;
        }
        let larger = |l: f32| least.is_none_or(|least| descending(l, least).is_lt());
        let ids = (0..block.len()).filter(|&i| larger(block[i]));
        found.extend(ids.map(|i| (b * BLOCK + i) as u32));
        if found.len() > keep {
            found.select_nth_unstable_by(keep - 1, by);
            found.truncate(keep);
            least = Some(logits[found[keep - 1] as usize]);
        }
    }
    found.sort_unstable_by(by);
    found.truncate(keep);
    found
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
    (logprob(token), largest(logits, k).into_iter().map(|t| (t, logprob(t))).collect())
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
    fn the_largest_are_those_of_a_stable_sort() {
        // Many equal logits, some NaN, and lengths that are no multiple of a block.
        for (len, spread, nan) in [(1, 1, 0), (300, 7, 0), (1000, 1 << 20, 0), (2001, 50, 97), (777, 1, 1)] {
            let number = |i: usize| match nan > 0 && i % nan == nan - 1 {
                true => f32::NAN,
                false => (mix(i as u32) % spread) as f32 - spread as f32 / 2.0,
            };
            let logits: Vec<f32> = (0..len).map(number).collect();
            let mut sorted: Vec<u32> = (0..len as u32).collect();
            sorted.sort_by(|a, b| descending(logits[*a as usize], logits[*b as usize]));
            assert_eq!(argmax(&logits), sorted[0], "{len} of {spread}");
            for keep in [1, 2, 40, 600, len] {
                let keep = keep.min(len);
                assert_eq!(largest(&logits, keep), sorted[..keep], "{keep} of {len} of {spread}");
            }
        }
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), 0);
        assert_eq!(argmax(&[-1.0, -0.0, 0.0]), 1);
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
