//! How a request's tokens are drawn, as it was asked for, and what of it makes sense.

use std::sync::Arc;

use mlxcel_engine::sampling::SamplingParams;

use crate::Refusal;

/// How tokens are drawn. The default takes the likeliest; every field has a value that does nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token that is left.
    pub temperature: f32,
    /// The same seed draws the same tokens.
    pub seed: u32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 keeps all.
    pub typical_p: f32,
    /// 0 keeps all.
    pub top_n_sigma: f32,
    pub xtc: Option<Xtc>,
    pub dry: Option<Dry>,
    /// Takes the place of everything between temperature and the draw.
    pub mirostat: Option<Mirostat>,
    /// 1 does nothing.
    pub repetition_penalty: f32,
    /// 0 does nothing.
    pub frequency_penalty: f32,
    /// 0 does nothing.
    pub presence_penalty: f32,
    /// How many of the last tokens count for the penalties, prompt included. With `None` repetition counts all tokens,
    /// frequency and presence those of the answer.
    pub penalty_last_n: Option<usize>,
    /// Added to the logits of these tokens; −∞ forbids a token.
    pub logit_bias: Arc<[(u32, f32)]>,
}

/// Excludes the top choices: with this probability, all tokens above the threshold but the least likely of them go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    pub probability: f32,
    pub threshold: f32,
}

/// Penalises what would repeat a passage: by `multiplier · base^(length − allowed_length)` where the passage is
/// `length` tokens long already.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    pub multiplier: f32,
    pub base: f32,
    pub allowed_length: usize,
    /// How many of the last tokens are searched; `None` searches all.
    pub last_n: Option<usize>,
    /// Passages do not reach across these.
    pub breakers: Arc<[Vec<u32>]>,
}

/// Version 2: keeps the surprise of tokens, in bits, near `tau`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    pub tau: f32,
    pub eta: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            seed: 0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc: None,
            dry: None,
            mirostat: None,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: None,
            logit_bias: Arc::new([]),
        }
    }
}

impl Sampling {
    /// What the graph can do by itself.
    pub(crate) fn in_graph(&self) -> SamplingParams {
        let Sampling { temperature, top_k, top_p, min_p, seed, .. } = *self;
        SamplingParams { temperature, top_k, top_p, min_p, seed }
    }

    /// Whether the graph can do all that is asked.
    pub(crate) fn fits_graph(&self) -> bool {
        let Sampling { temperature, seed, top_k, top_p, min_p, .. } = *self;
        *self == Sampling { temperature, seed, top_k, top_p, min_p, ..Sampling::default() }
    }

    /// Refuses what has no meaning.
    pub(crate) fn check(&self, vocab_size: usize) -> Result<(), Refusal> {
        let not_negative = "a number of at least 0";
        let share = "between 0 and 1";
        let mut fields = vec![
            ("temperature", self.temperature, 0.0..=f32::MAX, not_negative),
            ("top_p", self.top_p, 0.0..=1.0, share),
            ("min_p", self.min_p, 0.0..=1.0, share),
            ("typical_p", self.typical_p, 0.0..=1.0, share),
            ("top_n_sigma", self.top_n_sigma, 0.0..=f32::MAX, not_negative),
            ("repetition_penalty", self.repetition_penalty, 1e-3..=1e3, "between 0.001 and 1000"),
            ("frequency_penalty", self.frequency_penalty, -1e3..=1e3, "between -1000 and 1000"),
            ("presence_penalty", self.presence_penalty, -1e3..=1e3, "between -1000 and 1000"),
        ];
        if let Some(xtc) = &self.xtc {
            fields.push(("xtc_probability", xtc.probability, 0.0..=1.0, share));
            fields.push(("xtc_threshold", xtc.threshold, 0.0..=1.0, share));
        }
        if let Some(dry) = &self.dry {
            fields.push(("dry_multiplier", dry.multiplier, 0.0..=f32::MAX, not_negative));
            fields.push(("dry_base", dry.base, 1.0..=f32::MAX, "a number of at least 1"));
        }
        if let Some(mirostat) = &self.mirostat {
            fields.push(("mirostat_tau", mirostat.tau, 0.0..=f32::MAX, not_negative));
            fields.push(("mirostat_eta", mirostat.eta, 0.0..=f32::MAX, not_negative));
        }
        for (field, value, range, must_be) in fields {
            if !range.contains(&value) {
                return Err(Refusal::Sampling { field, value: value.into(), must_be });
            }
        }
        for &(token, bias) in self.logit_bias.iter() {
            if token as usize >= vocab_size {
                return Err(Refusal::UnknownToken { token, vocab_size });
            }
            if bias.is_nan() || bias == f32::INFINITY {
                let must_be = "a number or minus infinity";
                return Err(Refusal::Sampling { field: "logit_bias", value: bias.into(), must_be });
            }
        }
        Ok(())
    }
}
