//! Tokens that may still be drawn, the likeliest first, and the filters that shorten the list. A weight is proportional
//! to a probability; filters that speak of probabilities mean those among the tokens that are left.

use mlxcel_engine::sampling::argmax;

use super::Xtc;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidates {
    pub(super) tokens: Vec<u32>,
    pub(super) weights: Vec<f32>,
}

/// Makes logits impossible that are more than `n` standard deviations below the largest. The temperature makes no
/// difference to it. <https://arxiv.org/abs/2411.07641>
pub(super) fn top_n_sigma(logits: &mut [f32], n: f32) {
    let finite = || logits.iter().filter(|l| l.is_finite()).map(|l| f64::from(*l));
    let count = finite().count().max(1) as f64;
    let mean = finite().sum::<f64>() / count;
    let deviation = (finite().map(|l| (l - mean) * (l - mean)).sum::<f64>() / count).sqrt();
    let largest = finite().fold(f64::NEG_INFINITY, f64::max);
    let least = (largest - f64::from(n) * deviation) as f32;
    logits.iter_mut().filter(|l| **l < least).for_each(|l| *l = f32::NEG_INFINITY);
}

impl Candidates {
    /// The `top_k` likeliest of what is possible, or all if it is 0. Equal logits stay in the order of their ids.
    pub(super) fn new(logits: &[f32], temperature: f32, top_k: u32) -> Self {
        let possible = |t: &u32| logits[*t as usize] > f32::NEG_INFINITY;
        let mut tokens: Vec<u32> = (0..logits.len() as u32).filter(possible).collect();
        // Penalties beyond all measure may leave none.
        if tokens.is_empty() {
            return Candidates { tokens: vec![argmax(logits)], weights: vec![1.0] };
        }
        let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let keep = if top_k == 0 { tokens.len() } else { (top_k as usize).min(tokens.len()) };
        if keep < tokens.len() {
            tokens.select_nth_unstable_by(keep, by);
            tokens.truncate(keep);
        }
        tokens.sort_unstable_by(by);
        let top = tokens.first().map_or(0.0, |t| logits[*t as usize] / temperature);
        let weight = |t: &u32| (logits[*t as usize] / temperature - top).exp();
        let weights = tokens.iter().map(weight).collect();
        Candidates { tokens, weights }
    }

    fn total(&self) -> f32 {
        self.weights.iter().sum()
    }

    fn truncate(&mut self, keep: usize) {
        self.tokens.truncate(keep.max(1));
        self.weights.truncate(keep.max(1));
    }

    /// Keeps those whose surprise is nearest to what is expected, until they are as likely as `p`.
    /// <https://arxiv.org/abs/2202.00666>
    pub(super) fn typical(&mut self, p: f32) {
        let total = self.total();
        let surprise: Vec<f32> = self.weights.iter().map(|w| -(w / total).ln()).collect();
        let share = |i: usize| self.weights[i] / total;
        let expected: f32 =
            (0..surprise.len()).filter(|&i| share(i) > 0.0).map(|i| share(i) * surprise[i]).sum();
        let mut order: Vec<usize> = (0..surprise.len()).collect();
        let distance = |i: usize| (surprise[i] - expected).abs();
        order.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
        let mut sum = 0.0;
        let enough = order.iter().position(|&i| {
            sum += share(i);
            sum > p
        });
        order.truncate(enough.map_or(order.len(), |last| last + 1));
        order.sort_unstable();
        self.tokens = order.iter().map(|&i| self.tokens[i]).collect();
        self.weights = order.iter().map(|&i| self.weights[i]).collect();
    }

    /// Keeps the likeliest until they are as likely as `p`. <https://arxiv.org/abs/1904.09751>
    pub(super) fn top_p(&mut self, p: f32) {
        let limit = p * self.total();
        let mut before = 0.0;
        let keep = self.weights.iter().take_while(|w| {
            let is_kept = before < limit;
            before += **w;
            is_kept
        });
        let keep = keep.count();
        self.truncate(keep);
    }

    /// Keeps those that are at least `p` times as likely as the likeliest. <https://arxiv.org/abs/2407.01082>
    pub(super) fn min_p(&mut self, p: f32) {
        let least = p * self.weights.first().copied().unwrap_or(0.0);
        let keep = self.weights.iter().take_while(|w| **w >= least).count();
        self.truncate(keep);
    }

    /// Removes all that reach the threshold but the last of them; `chance` decides whether.
    /// <https://github.com/oobabooga/text-generation-webui/pull/6335>
    pub(super) fn xtc(&mut self, xtc: &Xtc, chance: f32) {
        let least = xtc.threshold * self.total();
        let reaching = self.weights.iter().take_while(|w| **w >= least).count();
        if chance < xtc.probability && reaching > 1 {
            self.tokens.drain(..reaching - 1);
            self.weights.drain(..reaching - 1);
        }
    }

    /// Keeps those whose surprise in bits is at most `mu`. <https://arxiv.org/abs/2007.14966>
    pub(super) fn no_surprise_above(&mut self, mu: f32) {
        let total = self.total();
        let keep = self.weights.iter().take_while(|w| -(**w / total).log2() <= mu).count();
        self.truncate(keep);
    }

    /// The surprise in bits of a token among those that are left.
    pub(super) fn surprise(&self, index: usize) -> f32 {
        -(self.weights[index] / self.total()).log2()
    }

    /// The index of the token at `uniform` of the way through the weights.
    pub(super) fn draw(&self, uniform: f32) -> usize {
        let target = uniform * self.total();
        let (mut sum, mut chosen) = (0.0, 0);
        for (index, weight) in self.weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
            sum += weight;
            chosen = index;
            if sum > target {
                break;
            }
        }
        chosen
    }
}
