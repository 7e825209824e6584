//! Drawing tokens. What the graph can do by itself it does; a request that asks for more is drawn on the host from
//! its logits, by the same arithmetic. The order is always this one, and what was not asked for is left out:
//!
//! 1. the bias of single tokens; tokens that end the answer while it is too short, and tokens that the constraint does
//!    not allow, become impossible
//! 2. penalties for repetition, frequency and presence; DRY
//! 3. top-n-sigma
//! 4. the temperature; at 0 the likeliest token is taken, and nothing of what follows matters
//! 5. top-k, typical, top-p, min-p, XTC; or mirostat in place of them all
//! 6. the draw, by seed and place in the sequence
//!
//! A draw depends on nothing but the request, its tokens and their logits.

mod candidates;
mod params;
mod penalties;

use std::collections::BTreeSet;
use std::sync::Arc;

use candidates::{Candidates, top_n_sigma};
use mlxcel_engine::sampling::{SamplingParams, argmax, sample, top_logprobs, uniform};
pub use params::{Dry, Mirostat, Sampling, Xtc};

use crate::{Constraint, Failure, Finish, Logprobs, Request};

/// XTC's draws are others than those of tokens.
const XTC_SEED: u32 = 0x5bd1_e995;

/// Chooses the tokens of one request.
pub(crate) struct Chooser {
    sampling: Sampling,
    in_graph: SamplingParams,
    fits_graph: bool,
    min_tokens: usize,
    end_ids: Arc<BTreeSet<u32>>,
    logprobs: Option<usize>,
    constraint: Option<Box<dyn Constraint>>,
    /// How surprising a token may be, for mirostat.
    mu: f32,
}

/// What a step gave for one draw.
pub(crate) enum Row {
    /// The graph drew.
    Drawn(u32),
    /// The host draws. None of them is NaN.
    Logits(Vec<f32>),
}

/// A token that was chosen.
pub(crate) struct Choice {
    pub(crate) token: u32,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish: Option<Finish>,
}

impl Chooser {
    pub(crate) fn new(request: Request) -> Self {
        let Request { sampling, min_tokens, end_ids, logprobs, constraint, .. } = request;
        let (in_graph, fits_graph) = (sampling.in_graph(), sampling.fits_graph());
        let mu = sampling.mirostat.map_or(0.0, |m| 2.0 * m.tau);
        Chooser { sampling, in_graph, fits_graph, min_tokens, end_ids, logprobs, constraint, mu }
    }

    pub(crate) fn in_graph(&self) -> &SamplingParams {
        &self.in_graph
    }

    /// Whether the host must see the logits of the next token after `made` new ones.
    pub(crate) fn needs_logits(&self, made: usize) -> bool {
        !self.fits_graph || self.logprobs.is_some() || self.constraint.is_some() || self.forbids_end(made)
    }

    fn forbids_end(&self, made: usize) -> bool {
        made < self.min_tokens && !self.end_ids.is_empty()
    }

    /// Does ahead what the next choice needs and takes time. An error comes again when it matters.
    pub(crate) fn prepare(&mut self) {
        if let Some(constraint) = &mut self.constraint {
            let _ = constraint.mask();
        }
    }

    /// The token that follows `tokens`.
    pub(crate) fn choose(&mut self, tokens: &[u32], prompt_len: usize, row: Row) -> Result<Choice, Failure> {
        let made = tokens.len() - prompt_len;
        let (token, logprobs) = match row {
            Row::Drawn(token) => (token, None),
            Row::Logits(mut logits) => {
                let original = self.logprobs.map(|k| (k, logits.clone()));
                self.forbid(&mut logits, made)?;
                let token = self.draw(&mut logits, tokens, prompt_len);
                let logprobs = original.map(|(k, logits)| {
                    let (chosen, top) = top_logprobs(&logits, token, k.min(logits.len()));
                    Logprobs { chosen, top }
                });
                (token, logprobs)
            }
        };
        let mut finish = self.end_ids.contains(&token).then_some(Finish::End);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token).map_err(|source| Failure::Constraint { made, source })?;
            finish = finish.or(constraint.is_complete().then_some(Finish::Complete));
        }
        Ok(Choice { token, logprobs, finish })
    }

    /// Makes impossible what may not be drawn.
    fn forbid(&mut self, logits: &mut [f32], made: usize) -> Result<(), Failure> {
        for &(token, bias) in self.sampling.logit_bias.iter() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if self.forbids_end(made) {
            for &end in self.end_ids.iter() {
                if let Some(logit) = logits.get_mut(end as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(constraint) = &mut self.constraint {
            let mask = constraint.mask().map_err(|source| Failure::Constraint { made, source })?;
            mask.apply(logits);
        }
        match logits.iter().any(|l| *l > f32::NEG_INFINITY) {
            true => Ok(()),
            false => Err(Failure::NothingAllowed { made }),
        }
    }

    /// Draws from what is possible.
    fn draw(&mut self, logits: &mut [f32], tokens: &[u32], prompt_len: usize) -> u32 {
        let (seed, step) = (self.sampling.seed, tokens.len() as u32);
        self.sampling.reweigh(logits, tokens, prompt_len);
        if self.sampling.temperature <= 0.0 {
            return argmax(logits);
        }
        let Some(mirostat) = self.sampling.mirostat else {
            if self.sampling.filters_as_graph() {
                return sample(logits, &self.in_graph, step);
            }
            let left = self.sampling.filter(logits, uniform(seed ^ XTC_SEED, step));
            return left.tokens[left.draw(uniform(seed, step))];
        };
        let mut left = Candidates::new(logits, self.sampling.temperature, 0);
        left.no_surprise_above(self.mu);
        let chosen = left.draw(uniform(seed, step));
        self.mu -= mirostat.eta * (left.surprise(chosen) - mirostat.tau);
        left.tokens[chosen]
    }
}

impl Sampling {
    /// What changes logits before the temperature.
    fn reweigh(&self, logits: &mut [f32], tokens: &[u32], prompt_len: usize) {
        if self.has_penalties() {
            self.penalise(logits, tokens, prompt_len);
        }
        if let Some(dry) = self.dry.as_ref().filter(|dry| dry.multiplier > 0.0) {
            dry.penalise(logits, tokens);
        }
        if self.top_n_sigma > 0.0 {
            top_n_sigma(logits, self.top_n_sigma);
        }
    }

    /// Whether nothing is filtered that the graph does not filter.
    fn filters_as_graph(&self) -> bool {
        self.typical_p >= 1.0 && self.xtc.is_none() && self.mirostat.is_none()
    }

    /// What may be drawn of reweighed logits.
    fn filter(&self, logits: &[f32], chance: f32) -> Candidates {
        let mut left = Candidates::new(logits, self.temperature, self.top_k);
        if self.typical_p < 1.0 {
            left.typical(self.typical_p);
        }
        if self.top_p < 1.0 {
            left.top_p(self.top_p);
        }
        left.min_p(self.min_p);
        if let Some(xtc) = &self.xtc {
            left.xtc(xtc, chance);
        }
        left
    }
}

#[cfg(test)]
mod tests;
