//! Drawing tokens. What the graph can do by itself it does; a request that asks for more is drawn on the host from
//! its logits, by the same arithmetic.

mod params;

use std::collections::BTreeSet;
use std::sync::Arc;

use mlxcel_engine::sampling::{self, SamplingParams};
pub use params::{Dry, Mirostat, Sampling, Xtc};

use crate::{Constraint, Failure, Finish, Logprobs, Request};

/// Chooses the tokens of one request.
pub(crate) struct Chooser {
    sampling: Sampling,
    in_graph: SamplingParams,
    fits_graph: bool,
    min_tokens: usize,
    end_ids: Arc<BTreeSet<u32>>,
    logprobs: Option<usize>,
    constraint: Option<Box<dyn Constraint>>,
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
        Chooser { sampling, in_graph, fits_graph, min_tokens, end_ids, logprobs, constraint }
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
            Row::Logits(logits) => self.draw(logits, tokens, made)?,
        };
        let mut finish = self.end_ids.contains(&token).then_some(Finish::End);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token).map_err(|source| Failure::Constraint { made, source })?;
            finish = finish.or(constraint.is_complete().then_some(Finish::Complete));
        }
        Ok(Choice { token, logprobs, finish })
    }

    fn draw(
        &mut self,
        mut logits: Vec<f32>,
        tokens: &[u32],
        made: usize,
    ) -> Result<(u32, Option<Logprobs>), Failure> {
        let original = self.logprobs.map(|k| (k, logits.clone()));
        self.forbid(&mut logits, made)?;
        let token = sampling::sample(&logits, &self.in_graph, tokens.len() as u32);
        let logprobs = original.map(|(k, logits)| {
            let (chosen, top) = sampling::top_logprobs(&logits, token, k);
            Logprobs { chosen, top }
        });
        Ok((token, logprobs))
    }

    /// Makes impossible what may not be drawn.
    fn forbid(&mut self, logits: &mut [f32], made: usize) -> Result<(), Failure> {
        for &(token, bias) in self.sampling.logit_bias.iter() {
            logits[token as usize] += bias;
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
}
