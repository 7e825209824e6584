//! Rotary position embedding in all its scalings: default, linear, dynamic, llama3, yarn, longrope; from both
//! dialects of configuration. Frequencies are computed in f32 as the published implementations do.
//!
//! RoFormer <https://arxiv.org/abs/2104.09864>, YaRN <https://arxiv.org/abs/2309.00071>, LongRoPE
//! <https://arxiv.org/abs/2402.13753>.

use mlxcel_ir::{DType, HostTensor, Op, Tensor};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::net::Net;

/// How a layer rotates queries and keys.
#[derive(Clone, Debug)]
pub struct Rope {
    freqs: Freqs,
    /// Multiplies sine and cosine.
    pub scale: f64,
    /// Neighbours are paired instead of halves.
    pub interleaved: bool,
    /// Tokens the rotation was made for: more than the configuration's maximum where scaling stretches it.
    pub reach: usize,
}

#[derive(Clone, Debug)]
enum Freqs {
    Fixed(Vec<f32>),
    /// Beyond `limit` tokens the base grows with the length of the sequence.
    Dynamic {
        dim: usize,
        base: f32,
        factor: f32,
        limit: usize,
    },
    /// One of two tables, by whether the sequence is longer than `limit`.
    Long {
        short: Vec<f32>,
        long: Vec<f32>,
        limit: usize,
    },
}

/// What a family knows besides the rope settings themselves.
#[derive(Clone, Copy, Debug)]
pub struct RopeContext {
    pub head_dim: usize,
    /// Share of the head that rotates, where the settings do not say.
    pub partial: f64,
    pub theta: f64,
    pub max_position_embeddings: usize,
    pub original_max_position_embeddings: Option<usize>,
}

impl RopeContext {
    /// The whole head rotates, with the customary base.
    pub fn of(c: &crate::config::Common) -> Self {
        RopeContext {
            head_dim: c.head_dim(),
            partial: 1.0,
            theta: 10000.0,
            max_position_embeddings: c.context(),
            original_max_position_embeddings: None,
        }
    }
}

/// The settings of a rotation, as configurations spell them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Settings {
    #[serde(alias = "type")]
    pub(crate) rope_type: Option<String>,
    pub(crate) rope_theta: Option<f64>,
    pub(crate) partial_rotary_factor: Option<f64>,
    pub(crate) factor: Option<f64>,
    pub(crate) original_max_position_embeddings: Option<usize>,
    pub(crate) low_freq_factor: Option<f64>,
    pub(crate) high_freq_factor: Option<f64>,
    pub(crate) attention_factor: Option<f64>,
    pub(crate) beta_fast: Option<f64>,
    pub(crate) beta_slow: Option<f64>,
    pub(crate) mscale: Option<f64>,
    pub(crate) mscale_all_dim: Option<f64>,
    pub(crate) truncate: Option<bool>,
    pub(crate) short_factor: Option<Vec<f64>>,
    pub(crate) long_factor: Option<Vec<f64>>,
}

/// The settings that apply to `layer_type`, from `rope_scaling` (older) or `rope_parameters` (newer, possibly one
/// set per layer type).
pub(crate) fn settings(config: &Value, layer_type: Option<&str>) -> Result<Settings, ModelError> {
    let object = |field: &str| config.get(field).and_then(Value::as_object).filter(|o| !o.is_empty());
    let found = object("rope_scaling").or_else(|| object("rope_parameters"));
    let nested = found.and_then(|o| layer_type.and_then(|t| o.get(t)).and_then(Value::as_object));
    let mut merged: Map<String, Value> = nested.or(found).cloned().unwrap_or_default();
    // `type` is the older spelling and may stand beside `rope_type`.
    if merged.contains_key("rope_type") {
        merged.remove("type");
    }
    for field in ["rope_theta", "partial_rotary_factor"] {
        if let (false, Some(v)) = (merged.contains_key(field), config.get(field)) {
            merged.insert(field.to_string(), v.clone());
        }
    }
    crate::config::read(&Value::Object(merged))
}

/// The raw settings a family may need beside the rotation itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mscale {
    pub factor: f64,
    pub all_dim: f64,
}

/// Yarn's `mscale_all_dim` where it is given and in force.
pub fn mscale_all_dim(config: &Value) -> Result<Option<Mscale>, ModelError> {
    let s = settings(config, None)?;
    let scaled = s.rope_type.as_deref().is_some_and(|t| t != "default");
    Ok(s.mscale_all_dim
        .filter(|m| scaled && *m != 0.0)
        .map(|all_dim| Mscale { factor: s.factor.unwrap_or(1.0), all_dim }))
}

/// Yarn's growth of attention with the scaling factor.
pub fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

impl Rope {
    /// Rope as the configuration describes it.
    pub fn read(config: &Value, layer_type: Option<&str>, cx: RopeContext) -> Result<Rope, ModelError> {
        let s = settings(config, layer_type)?;
        let base = s.rope_theta.unwrap_or(cx.theta);
        let share = s.partial_rotary_factor.unwrap_or(cx.partial);
        let dim = (cx.head_dim as f64 * share) as usize;
        let plausible =
            base.is_finite() && base > 0.0 && dim >= 2 && dim <= cx.head_dim && dim.is_multiple_of(2);
        if !plausible {
            let reason = format!("theta {base} over {dim} of {} dimensions", cx.head_dim);
            return Err(ModelError::field("rope_theta", reason));
        }
        let plain = plain_freqs(dim, base);
        let interleaved = config.get("rope_interleaved").and_then(Value::as_bool).unwrap_or(false);
        let limit = cx.max_position_embeddings;
        let reach = match s.rope_type.as_deref() {
            Some("linear") => stretched(limit, s.factor),
            // Its base grows with the sequence, without end.
            Some("dynamic") => 1 << 20,
            Some("yarn") => stretched(original(&s, &cx), s.factor).max(limit),
            _ => limit,
        };
        let rope = |freqs, scale| Ok(Rope { freqs, scale, interleaved, reach });
        let factor = || positive("factor", s.factor);
        match s.rope_type.as_deref().unwrap_or("default") {
            "default" => rope(Freqs::Fixed(plain), 1.0),
            "linear" => {
                let factor = factor()? as f32;
                rope(Freqs::Fixed(plain.iter().map(|f| f / factor).collect()), 1.0)
            }
            "dynamic" => {
                let freqs = Freqs::Dynamic { dim, base: base as f32, factor: factor()? as f32, limit };
                rope(freqs, 1.0)
            }
            "llama3" => rope(Freqs::Fixed(llama3(&plain, &s, &cx)?), 1.0),
            "yarn" => {
                let (freqs, scale) = yarn(&plain, &s, &cx, base)?;
                rope(Freqs::Fixed(freqs), scale)
            }
            "longrope" | "su" => {
                let (freqs, scale) = longrope(&plain, &s, &cx)?;
                rope(freqs, scale)
            }
            other => Err(ModelError::field("rope_type", format!("unknown rope type '{other}'"))),
        }
    }

    /// The same rotation with neighbours paired.
    pub fn interleaved(self) -> Rope {
        Rope { interleaved: true, ..self }
    }

    /// Where longer sequences change the frequencies of tokens already computed, so that crossing this length
    /// means computing the sequence anew.
    pub fn switches_at(&self) -> Option<usize> {
        match &self.freqs {
            Freqs::Long { limit, short, long } if short != long => Some(*limit),
            _ => None,
        }
    }

    /// Past which length of a sequence the frequencies depend on that length.
    pub fn depends_on_length_past(&self) -> Option<usize> {
        match &self.freqs {
            Freqs::Fixed(_) => None,
            Freqs::Long { .. } => self.switches_at(),
            Freqs::Dynamic { limit, .. } => Some(*limit),
        }
    }

    /// Rotates `x [tokens, heads, head_dim]`.
    pub fn apply<'g>(&self, net: &Net<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let op = Op::Rope { interleaved: self.interleaved, scale: self.scale };
        x.rope(net.inputs.positions, self.inv_freq(net), op)
    }

    fn inv_freq<'g>(&self, net: &Net<'g>) -> Tensor<'g> {
        let table = |f: &[f32]| net.b.constant(HostTensor::new(&[f.len()], f));
        let known = net.inputs.known_lens.unsqueeze(1); // [tokens, 1]
        match &self.freqs {
            Freqs::Fixed(f) => {
                // GGUF files deliver llama3's scaling as divisors of the plain frequencies.
                let divisors = net.root().has("rope_freqs.weight");
                let divide =
                    || table(f) / net.root().tensor("rope_freqs.weight", &[f.len()]).cast(DType::F32);
                if divisors { divide() } else { table(f) }
            }
            Freqs::Long { short, long, limit } => {
                known.gt(known.number(*limit as f64)).select(table(long), table(short))
            }
            Freqs::Dynamic { dim, base, factor, limit } => {
                let (factor, d) = (*factor as f64, *dim as f64);
                let length = known.max(known.number(*limit as f64)).cast(DType::F32);
                let growth = length * (factor / *limit as f64) - (factor - 1.0);
                let base = growth.pow(growth.number(d / (d - 2.0))) * *base as f64; // [tokens, 1]
                let exponents: Vec<f32> = (0..dim / 2).map(|i| -(2.0 * i as f32) / *dim as f32).collect();
                base.pow(table(&exponents))
            }
        }
    }
}

/// A length times the scaling's factor, which is never trusted with more than any machine holds.
fn stretched(length: usize, factor: Option<f64>) -> usize {
    (length as f64 * factor.unwrap_or(1.0)).clamp(1.0, (1u64 << 30) as f64) as usize
}

fn plain_freqs(dim: usize, base: f64) -> Vec<f32> {
    (0..dim / 2).map(|i| 1.0 / (base as f32).powf(2.0 * i as f32 / dim as f32)).collect()
}

fn positive(field: &str, value: Option<f64>) -> Result<f64, ModelError> {
    match value {
        Some(v) if v.is_finite() && v > 0.0 => Ok(v),
        Some(v) => Err(ModelError::field(field, format!("{v} is not a positive number"))),
        None => Err(ModelError::field(field, "missing from the rope settings")),
    }
}

fn original(s: &Settings, cx: &RopeContext) -> usize {
    s.original_max_position_embeddings
        .or(cx.original_max_position_embeddings)
        .unwrap_or(cx.max_position_embeddings)
        .max(1)
}

/// Long wavelengths are stretched, short ones kept, those between interpolated.
fn llama3(plain: &[f32], s: &Settings, cx: &RopeContext) -> Result<Vec<f32>, ModelError> {
    let factor = positive("factor", s.factor)? as f32;
    let low = positive("low_freq_factor", s.low_freq_factor)? as f32;
    let high = positive("high_freq_factor", s.high_freq_factor)? as f32;
    if high <= low {
        return Err(ModelError::field(
            "high_freq_factor",
            format!("{high} is not above low_freq_factor {low}"),
        ));
    }
    let old = original(s, cx) as f32;
    let scale = |&f: &f32| {
        let wavelength = 2.0 * std::f32::consts::PI / f;
        if wavelength > old / low {
            f / factor
        } else if wavelength < old / high {
            f
        } else {
            let smooth = (old / wavelength - low) / (high - low);
            (1.0 - smooth) * f / factor + smooth * f
        }
    };
    Ok(plain.iter().map(scale).collect())
}

/// Llama 3's scaling as GGUF has it: what each frequency of the plain rotation is divided by.
pub(crate) fn llama3_divisors(s: &Settings, cx: RopeContext) -> Result<Vec<f32>, ModelError> {
    let plain = plain_freqs(cx.head_dim, cx.theta);
    let scaled = llama3(&plain, s, &cx)?;
    Ok(plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled).collect())
}

fn yarn(plain: &[f32], s: &Settings, cx: &RopeContext, base: f64) -> Result<(Vec<f32>, f64), ModelError> {
    let old = original(s, cx) as f64;
    let factor = s.factor.unwrap_or(cx.max_position_embeddings as f64 / old);
    let factor = positive("factor", Some(factor))?;
    let nonzero = |v: Option<f64>| v.filter(|m| *m != 0.0);
    let scale = match (s.attention_factor, nonzero(s.mscale), nonzero(s.mscale_all_dim)) {
        (Some(given), _, _) => given,
        (None, Some(m), Some(all)) => yarn_mscale(factor, m) / yarn_mscale(factor, all),
        _ => yarn_mscale(factor, 1.0),
    };
    let dim = 2.0 * plain.len() as f64;
    let turns_at = |turns: f64| dim * (old / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln());
    let mut low = turns_at(nonzero(s.beta_fast).unwrap_or(32.0));
    let mut high = turns_at(nonzero(s.beta_slow).unwrap_or(1.0));
    if s.truncate.unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001;
    }
    let blend = |(i, &f): (usize, &f32)| {
        let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        f / factor as f32 * ramp + f * (1.0 - ramp)
    };
    Ok((plain.iter().enumerate().map(blend).collect(), scale))
}

fn longrope(plain: &[f32], s: &Settings, cx: &RopeContext) -> Result<(Freqs, f64), ModelError> {
    let old = original(s, cx);
    let table = |field: &str, factors: &Option<Vec<f64>>| {
        let factors = factors.as_ref().filter(|f| f.len() == plain.len());
        let factors =
            factors.ok_or_else(|| ModelError::field(field, format!("expected {} factors", plain.len())))?;
        Ok::<Vec<f32>, ModelError>(plain.iter().zip(factors).map(|(p, f)| p / *f as f32).collect())
    };
    let factor = s.factor.unwrap_or(cx.max_position_embeddings as f64 / old as f64);
    let growth = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (old as f64).ln()).sqrt() };
    let freqs = Freqs::Long {
        short: table("short_factor", &s.short_factor)?,
        long: table("long_factor", &s.long_factor)?,
        limit: old,
    };
    Ok((freqs, s.attention_factor.unwrap_or(growth)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CX: RopeContext = RopeContext {
        head_dim: 8,
        partial: 1.0,
        theta: 10000.0,
        max_position_embeddings: 64,
        original_max_position_embeddings: None,
    };

    fn field_of(config: Value) -> String {
        match Rope::read(&config, None, CX) {
            Err(ModelError::Field { field, .. }) => field,
            other => panic!("expected a field error, got {other:?}"),
        }
    }

    #[test]
    fn both_dialects_give_the_same_rotation() {
        let old = json!({"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}});
        let new = json!({"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}});
        let freqs = |c| match Rope::read(&c, None, CX).unwrap().freqs {
            Freqs::Fixed(f) => f,
            other => panic!("{other:?}"),
        };
        assert_eq!(freqs(old), freqs(new.clone()));
        assert_eq!(freqs(new)[0], 0.25);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        assert_eq!(field_of(json!({"rope_scaling": {"rope_type": "spiral"}})), "rope_type");
        assert_eq!(field_of(json!({"rope_scaling": {"rope_type": "linear"}})), "factor");
        assert_eq!(field_of(json!({"rope_scaling": {"rope_type": "linear", "factor": -1.0}})), "factor");
        assert_eq!(field_of(json!({"rope_theta": 0.0})), "rope_theta");
        assert_eq!(
            field_of(json!({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}})),
            "short_factor"
        );
    }
}
