//! Making what was said less likely to be said again: penalties for tokens, and DRY for passages
//! (<https://github.com/oobabooga/text-generation-webui/pull/5677>).

use std::collections::HashMap;

use super::{Dry, Sampling};

impl Sampling {
    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Repetition divides or multiplies, so that a logit always shrinks; then frequency and presence are subtracted.
    pub(super) fn penalise(&self, logits: &mut [f32], tokens: &[u32], prompt_len: usize) {
        let window = last(tokens, self.penalty_last_n);
        let answer = if self.penalty_last_n.is_some() { window } else { &tokens[prompt_len..] };
        let counts = counted(answer);
        for token in counted(window).into_keys() {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let penalty = self.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        for (token, count) in counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit -= count as f32 * self.frequency_penalty + self.presence_penalty;
        }
    }
}

fn counted(tokens: &[u32]) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    tokens.iter().for_each(|t| *counts.entry(*t).or_default() += 1);
    counts
}

fn last(tokens: &[u32], n: Option<usize>) -> &[u32] {
    &tokens[tokens.len() - n.unwrap_or(tokens.len()).min(tokens.len())..]
}

impl Dry {
    /// Subtracts from every token that would go on with a passage the longer the passage is.
    pub(super) fn penalise(&self, logits: &mut [f32], tokens: &[u32]) {
        let tokens = last(tokens, self.last_n);
        let reach = self.reach(tokens);
        if tokens.len() <= self.allowed_length || reach < self.allowed_length {
            return;
        }
        let mut repeated: HashMap<u32, usize> = HashMap::new();
        for (at, length) in ends_like_the_end(tokens).into_iter().enumerate() {
            let length = length.min(reach);
            if length >= self.allowed_length {
                let longest = repeated.entry(tokens[at + 1]).or_default();
                *longest = length.max(*longest);
            }
        }
        for (token, length) in repeated {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            if !self.breakers.iter().any(|b| **b == [token]) {
                let power = self.base.powf((length - self.allowed_length) as f32);
                *logit -= (self.multiplier * power).min(f32::MAX);
            }
        }
    }

    /// Tokens since the last breaker: a passage is no longer than that.
    fn reach(&self, tokens: &[u32]) -> usize {
        let longest_at = |at: usize| {
            let here = self.breakers.iter().filter(|b| !b.is_empty() && tokens[at..].starts_with(b));
            here.map(Vec::len).max()
        };
        let found = (0..tokens.len()).rev().find_map(|at| Some(at + longest_at(at)?));
        found.map_or(tokens.len(), |end| tokens.len() - end)
    }
}

/// For every place but the last: how many tokens up to and including it are those that the sequence ends with. This is
/// the Z function of the reversed sequence, in linear time.
fn ends_like_the_end(tokens: &[u32]) -> Vec<usize> {
    let n = tokens.len();
    let back = |i: usize| tokens[n - 1 - i];
    let mut z = vec![0; n];
    // The stretch known to equal the beginning that reaches furthest.
    let (mut start, mut end) = (0, 0);
    for k in 1..n {
        let mut length = if k < end { z[k - start].min(end - k) } else { 0 };
        while k + length < n && back(length) == back(k + length) {
            length += 1;
        }
        if k + length > end {
            (start, end) = (k, k + length);
        }
        z[k] = length;
    }
    z.reverse();
    z.pop();
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_is_as_long_as_what_it_has_in_common_with_the_end() {
        // a b c c b c y a b c: the last three stand at the beginning, the last two before y, the last one in between.
        let tokens = [1, 2, 3, 3, 2, 3, 9, 1, 2, 3];
        assert_eq!(ends_like_the_end(&tokens), [0, 0, 3, 1, 0, 2, 0, 0, 0]);
        let slow = |tokens: &[u32]| -> Vec<usize> {
            let is_common = |at: usize, i: usize| tokens[at - i] == tokens[tokens.len() - 1 - i];
            let common = |at: usize| (0..=at).take_while(|&i| is_common(at, i)).count();
            (0..tokens.len() - 1).map(common).collect()
        };
        for seed in 0..200u32 {
            let tokens: Vec<u32> = (0..1 + seed % 40).map(|i| (i * i + seed * i) / 3 % 3).collect();
            assert_eq!(ends_like_the_end(&tokens), slow(&tokens), "{tokens:?}");
        }
    }

    #[test]
    fn without_a_window_frequency_counts_the_answer_only() {
        let sampling = Sampling { frequency_penalty: 1.0, presence_penalty: 0.5, ..Sampling::default() };
        let mut logits = [0.0; 4];
        sampling.penalise(&mut logits, &[1, 1, 2, 3, 3], 3);
        assert_eq!(logits, [0.0, 0.0, 0.0, -2.5]);
        let windowed = Sampling { penalty_last_n: Some(4), ..sampling };
        let mut logits = [0.0; 4];
        windowed.penalise(&mut logits, &[1, 1, 2, 3, 3], 3);
        assert_eq!(logits, [0.0, -1.5, -1.5, -2.5]);
    }
}
