//! From the fields a client wrote to how tokens are drawn. Ranges are checked here, with the field's own name.

use std::ops::RangeInclusive;
use std::sync::Arc;

use mlxcel_sched::{Dry, Mirostat, Sampling, Xtc};
use mlxcel_text::EncodeOptions;

use crate::ids;
use crate::model::Model;
use crate::refusal::Refusal;
use crate::wire::{Bias, LogitBias, SamplingFields};

/// How tokens are drawn where a client says nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub seed: Option<u32>,
}

/// Those of llama.cpp, which suit small models.
impl Default for Defaults {
    fn default() -> Self {
        Defaults {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            seed: None,
        }
    }
}

const SHARE: RangeInclusive<f64> = 0.0..=1.0;
const MANY: RangeInclusive<f64> = 0.0..=1e9;
const BREAKERS_MAX: usize = 64;
const BREAKER_BYTES_MAX: usize = 256;
const BIASES_MAX: usize = 10_000;

/// How tokens are drawn by what the client said.
pub fn draws(model: &Model, fields: &SamplingFields, defaults: &Defaults) -> Result<Sampling, Refusal> {
    if fields.repeat_penalty.is_some() && fields.repetition_penalty.is_some() {
        let message = "'repetition_penalty' and 'repeat_penalty' are one thing; give one of them";
        return Err(Refusal::field("repetition_penalty", message));
    }
    let penalty = fields.repetition_penalty.or(fields.repeat_penalty);
    let top_n_sigma = fields.top_n_sigma.map(|n| n.max(0.0));
    Ok(Sampling {
        temperature: number("temperature", fields.temperature, 0.0..=100.0, defaults.temperature)?,
        seed: seed(fields.seed, defaults),
        top_k: whole("top_k", fields.top_k, 0)?.unwrap_or(defaults.top_k),
        top_p: number("top_p", fields.top_p, SHARE, defaults.top_p)?,
        min_p: number("min_p", fields.min_p, SHARE, defaults.min_p)?,
        typical_p: number("typical_p", fields.typical_p, SHARE, 1.0)?,
        top_n_sigma: number("top_n_sigma", top_n_sigma, MANY, 0.0)?,
        xtc: xtc(fields)?,
        dry: dry(model, fields)?,
        mirostat: mirostat(fields)?,
        repetition_penalty: number("repetition_penalty", penalty, 0.01..=100.0, defaults.repetition_penalty)?,
        frequency_penalty: number("frequency_penalty", fields.frequency_penalty, -2.0..=2.0, 0.0)?,
        presence_penalty: number("presence_penalty", fields.presence_penalty, -2.0..=2.0, 0.0)?,
        penalty_last_n: last_n("repeat_last_n", fields.repeat_last_n)?,
        logit_bias: biases(model, fields.logit_bias.as_ref())?,
    })
}

fn number(
    field: &'static str,
    given: Option<f64>,
    range: RangeInclusive<f64>,
    default: f32,
) -> Result<f32, Refusal> {
    let Some(number) = given else { return Ok(default) };
    if !range.contains(&number) {
        let message = format!("'{field}' is {number}; it must be from {} to {}", range.start(), range.end());
        return Err(Refusal::field(field, message));
    }
    Ok(number as f32)
}

/// A whole number from `least` to what 31 bits hold; −1 where `least` allows it.
fn whole(field: &'static str, given: Option<i64>, least: i64) -> Result<Option<u32>, Refusal> {
    let Some(number) = given else { return Ok(None) };
    if !(least..=i64::from(i32::MAX)).contains(&number) {
        let message = format!("'{field}' is {number}; it must be from {least} to {}", i32::MAX);
        return Err(Refusal::field(field, message));
    }
    Ok(u32::try_from(number).ok())
}

/// How many of the last tokens count; −1 for all, as without it.
fn last_n(field: &'static str, given: Option<i64>) -> Result<Option<usize>, Refusal> {
    Ok(whole(field, given, -1)?.map(|n| n as usize))
}

/// Draws are seeded by 32 bits, into which longer seeds are folded; without a seed it is another one each time.
fn seed(given: Option<i64>, defaults: &Defaults) -> u32 {
    match given.filter(|seed| *seed != -1) {
        Some(seed) => (seed as u64 ^ (seed as u64 >> 32)) as u32,
        None if given.is_none() => defaults.seed.unwrap_or_else(|| ids::random() as u32),
        None => ids::random() as u32,
    }
}

fn xtc(fields: &SamplingFields) -> Result<Option<Xtc>, Refusal> {
    let probability = number("xtc_probability", fields.xtc_probability, SHARE, 0.0)?;
    let threshold = number("xtc_threshold", fields.xtc_threshold, SHARE, 0.1)?;
    Ok((probability > 0.0).then_some(Xtc { probability, threshold }))
}

fn dry(model: &Model, fields: &SamplingFields) -> Result<Option<Dry>, Refusal> {
    let multiplier = number("dry_multiplier", fields.dry_multiplier, MANY, 0.0)?;
    let base = number("dry_base", fields.dry_base, 1.0..=1e9, 1.75)?;
    let allowed_length = whole("dry_allowed_length", fields.dry_allowed_length, 0)?.unwrap_or(2) as usize;
    let last_n = last_n("dry_penalty_last_n", fields.dry_penalty_last_n)?;
    let default = || ["\n", ":", "\"", "*"].map(str::to_string).to_vec();
    let breakers = fields.dry_sequence_breakers.clone().unwrap_or_else(default);
    let is_odd = |text: &String| text.is_empty() || text.len() > BREAKER_BYTES_MAX;
    if breakers.len() > BREAKERS_MAX || breakers.iter().any(is_odd) {
        let message = format!(
            "there may be {BREAKERS_MAX} breakers of 1 to {BREAKER_BYTES_MAX} bytes; give fewer or others"
        );
        return Err(Refusal::field("dry_sequence_breakers", message));
    }
    if multiplier == 0.0 {
        return Ok(None);
    }
    let options = EncodeOptions { add_special_tokens: false, ..EncodeOptions::default() };
    let encoded = breakers.iter().map(|text| model.text.tokenizer.encode(text, options));
    let breakers = encoded.collect::<Result<Vec<_>, _>>();
    let breakers = breakers.map_err(|e| Refusal::field("dry_sequence_breakers", e.to_string()))?;
    let breakers = breakers.into_iter().filter(|tokens| !tokens.is_empty()).collect();
    Ok(Some(Dry { multiplier, base, allowed_length, last_n, breakers }))
}

fn mirostat(fields: &SamplingFields) -> Result<Option<Mirostat>, Refusal> {
    let tau = number("mirostat_tau", fields.mirostat_tau, MANY, 5.0)?;
    let eta = number("mirostat_eta", fields.mirostat_eta, MANY, 0.1)?;
    match fields.mirostat.unwrap_or(0) {
        0 => Ok(None),
        2 => Ok(Some(Mirostat { tau, eta })),
        other => {
            let message = format!("'mirostat' is {other}; 2 is version 2 and 0 is none");
            Err(Refusal::field("mirostat", message))
        }
    }
}

fn biases(model: &Model, given: Option<&LogitBias>) -> Result<Arc<[(u32, f32)]>, Refusal> {
    const FIELD: &str = "logit_bias";
    let pairs: Vec<(u32, f64)> = match given {
        None => return Ok(Arc::new([])),
        Some(LogitBias::ById(biases)) => {
            let parse = |(id, bias): (&String, &f64)| Some((id.parse().ok()?, *bias));
            let parsed: Option<Vec<_>> = biases.iter().map(parse).collect();
            parsed.ok_or_else(|| Refusal::field(FIELD, "a key of 'logit_bias' is no token id"))?
        }
        Some(LogitBias::Pairs(pairs)) => pairs.iter().map(|(id, bias)| (*id, bias.number())).collect(),
    };
    if pairs.len() > BIASES_MAX {
        let message = format!("{} biases are more than the {BIASES_MAX} that are taken", pairs.len());
        return Err(Refusal::field(FIELD, message));
    }
    let vocab_size = model.info.vocab_size;
    if let Some((id, _)) = pairs.iter().find(|(id, _)| *id as usize >= vocab_size) {
        let message = format!("token {id} is not in the vocabulary of {vocab_size}");
        return Err(Refusal::field(FIELD, message));
    }
    if let Some((id, bias)) = pairs.iter().find(|(_, bias)| bias.is_finite() && bias.abs() > 1e6) {
        return Err(Refusal::field(FIELD, format!("the bias {bias} of token {id} is too large")));
    }
    Ok(pairs.into_iter().map(|(id, bias)| (id, bias as f32)).collect())
}

impl Bias {
    fn number(self) -> f64 {
        match self {
            Bias::Number(number) => number,
            Bias::Allowed(true) => 0.0,
            Bias::Allowed(false) => f64::NEG_INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        for wrong in [-0.1, 1.1, 1e300] {
            let refusal = number("top_p", Some(wrong), SHARE, 1.0).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some("top_p"));
        }
        assert_eq!(number("top_p", Some(0.5), SHARE, 1.0), Ok(0.5));
        assert!(whole("top_k", Some(-1), 0).is_err());
        assert!(whole("top_k", Some(1 << 31), 0).is_err());
        assert_eq!(last_n("repeat_last_n", Some(-1)), Ok(None));
    }

    #[test]
    fn a_seed_is_kept_and_minus_one_is_none() {
        let defaults = Defaults { seed: Some(7), ..Defaults::default() };
        assert_eq!(seed(Some(42), &defaults), 42);
        assert_eq!(seed(None, &defaults), 7);
        assert_ne!(seed(Some(1), &defaults), seed(Some(1 << 40), &defaults));
        let random: std::collections::BTreeSet<u32> = (0..8).map(|_| seed(Some(-1), &defaults)).collect();
        assert!(random.len() > 1);
    }
}
