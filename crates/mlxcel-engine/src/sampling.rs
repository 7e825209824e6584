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
    // Few tokens have nearly all of the weight, so few are put in order at first.
    let mut order = largest(logits, keep.min(FIRST_ORDERED));
    let draw = Draw::new(logits, p, keep, &order);
    loop {
        if let Some(token) = draw.among(&order, uniform(p.seed, step), order.len() == keep) {
            return token;
        }
        order = largest(logits, keep.min(order.len() * 16));
    }
}

/// Tokens that are put in order before it is known that more are needed.
const FIRST_ORDERED: usize = 256;

/// A draw from the `keep` likeliest tokens of a row.
struct Draw<'a> {
    logits: &'a [f32],
    p: &'a SamplingParams,
    top: f32,
    /// The weight of all that are kept; the likeliest has 1.
    total: f32,
}

impl<'a> Draw<'a> {
    /// `order` are the likeliest of those that are kept, or all.
    fn new(logits: &'a [f32], p: &'a SamplingParams, keep: usize, order: &[u32]) -> Self {
        let top = logits[order[0] as usize] / p.temperature;
        let mut draw = Draw { logits, p, top, total: 0.0 };
        let weight_of = |tokens: &[u32]| tokens.iter().map(|&t| draw.weight(t)).sum();
        draw.total = match keep {
            _ if keep == order.len() => weight_of(order),
            _ if keep < logits.len() => weight_of(&largest(logits, keep)),
            _ => draw.weight_of_all(),
        };
        draw
    }

    fn weight(&self, token: u32) -> f32 {
        exp(self.logits[token as usize] / self.p.temperature - self.top)
    }

    /// Eight sums side by side, which the compiler makes vectors of.
    fn weight_of_all(&self) -> f32 {
        let mut sums = [0f32; 8];
        let (whole, rest) = self.logits.as_chunks::<8>();
        for chunk in whole {
            for (sum, logit) in sums.iter_mut().zip(chunk) {
                *sum += exp(logit / self.p.temperature - self.top);
            }
        }
        let rest = rest.iter().map(|logit| exp(logit / self.p.temperature - self.top));
        sums.into_iter().chain(rest).sum()
    }

    /// The token that is drawn, if the likeliest of the kept ones, in order, are enough to tell.
    fn among(&self, order: &[u32], uniform: f32, is_all: bool) -> Option<u32> {
        let (mut sum, mut kept) = (0.0, 0);
        for (rank, &token) in order.iter().enumerate() {
            let weight = self.weight(token);
            let is_within = self.p.top_p >= 1.0 || sum < self.p.top_p * self.total;
            if rank > 0 && !(is_within && weight >= self.p.min_p && weight > 0.0) {
                break;
            }
            sum += weight;
            kept = rank + 1;
        }
        let is_cut = kept < order.len() || is_all;
        let has_filters = self.p.top_p < 1.0 || self.p.min_p > 0.0;
        if has_filters && !is_cut {
            return None;
        }
        let target = uniform * if is_cut { sum } else { self.total };
        let mut sum = 0.0;
        let drawn = order[..kept].iter().find(|&&token| {
            sum += self.weight(token);
            sum > target
        });
        drawn.or(order[..kept].last().filter(|_| is_cut)).copied()
    }
}

/// The exponential of a number that is not positive, within two units of the last place; 1 for 0, and 0 where it would
/// be less than any normal number. The compiler makes vectors of it, which it does not of the library's.
fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 · 2^23 rounds to the nearest whole number.
    const ROUND: f32 = 12_582_912.0;
    let n = (x.max(-87.0) * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts, the first of which has zeros at its end, so that its product is exact.
    let r = (x.max(-87.0) - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let series = 1.0 / 720.0;
    let series = series * r + 1.0 / 120.0;
    let series = series * r + 1.0 / 24.0;
    let series = series * r + 1.0 / 6.0;
    let series = series * r + 0.5;
    let series = series * r + 1.0;
    let series = series * r + 1.0;
    let power = f32::from_bits(((n as i32 + 127) << 23) as u32);
    let normal = if x < -87.0 { 0.0 } else { series * power };
    // NaN stays NaN, so that it is seen.
    if x.is_nan() { x } else { normal }
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
        // Not every time, so that choosing among them costs no more than finding them.
        if found.len() >= 2 * keep.max(BLOCK) {
            found.select_nth_unstable_by(keep - 1, by);
            found.truncate(keep);
            least = Some(logits[found[keep - 1] as usize]);
        }
    }
    if found.len() > keep {
        found.select_nth_unstable_by(keep - 1, by);
        found.truncate(keep);
    }
    found.sort_unstable_by(by);
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
    fn weights_are_exponentials() {
        for i in 0..200_000 {
            let x = -90.0 * i as f32 / 200_000.0;
            let expected = if x < -87.0 { 0.0 } else { f64::from(x).exp() };
            assert!((f64::from(exp(x)) - expected).abs() <= 3e-7 * expected, "{x}: {} {expected}", exp(x));
        }
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY)), (1.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }

    /// By the definition: everything in order, then each filter, then the place in the sum; in f64.
    fn by_definition(logits: &[f32], p: &SamplingParams, uniform: f64) -> u32 {
        let keep = if p.top_k == 0 { logits.len() } else { p.top_k as usize };
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|a, b| descending(logits[*a as usize], logits[*b as usize]));
        order.truncate(keep);
        let top = f64::from(logits[order[0] as usize]);
        let weight = |t: &u32| ((f64::from(logits[*t as usize]) - top) / f64::from(p.temperature)).exp();
        let total: f64 = order.iter().map(weight).sum();
        let mut before = 0.0;
        order.retain(|t| {
            let kept =
                before == 0.0 || before < f64::from(p.top_p) * total && weight(t) >= f64::from(p.min_p);
            before += weight(t);
            kept
        });
        let target = uniform * order.iter().map(weight).sum::<f64>();
        let mut sum = 0.0;
        let place = order.iter().position(|t| {
            sum += weight(t);
            sum > target
        });
        order[place.unwrap_or(order.len() - 1)]
    }

    #[test]
    fn a_draw_that_orders_few_tokens_is_that_of_the_definition() {
        let mut differ = 0;
        for n in 0..600u32 {
            let spread = [0.0, 1.0, 6.0, 30.0][n as usize % 4];
            let mut logits: Vec<f32> = (0..3001).map(|t| spread * uniform(n, t)).collect();
            // Where most tokens are impossible, as under a grammar.
            if n % 5 == 0 {
                logits
                    .iter_mut()
                    .enumerate()
                    .filter(|(t, _)| t % 7 > 0)
                    .for_each(|(_, l)| *l = f32::NEG_INFINITY);
            }
            let p = SamplingParams {
                temperature: 0.3 + uniform(n, 4001),
                top_k: [0, 0, 40, 1000][n as usize / 4 % 4],
                top_p: [1.0, 0.9, 1.0, 0.99][n as usize / 16 % 4],
                min_p: [0.0, 0.0, 0.01][n as usize / 64 % 3],
                seed: n,
            };
            let expected = by_definition(&logits, &p, f64::from(uniform(n, 9)));
            differ += usize::from(sample(&logits, &p, 9) != expected);
            let logit = logits[sample(&logits, &p, 9) as usize];
            assert!(logit > f32::NEG_INFINITY, "{p:?}");
        }
        // Rounding may move a draw to the neighbour where thousands of tokens are equally likely.
        assert!(differ <= 6, "{differ} of 600 differ");
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
