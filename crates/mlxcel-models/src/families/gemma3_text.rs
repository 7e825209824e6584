//! Gemma 3, text only <https://arxiv.org/abs/2503.19786>: Gemma 2 with norms on the heads, five windowed layers to
//! one full, and a rotation of its own for each kind.

use serde::Deserialize;
use serde_json::Value;

use super::gemma2::{self, NORMS};
use super::{Built, Family, Gguf};
use crate::blocks::{Attention, HeadNorm};
use crate::config::{Common, LayerType, read};
use crate::error::ModelError;
use crate::net::Net;
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "gemma3", names: NORMS, interleaved: false }),
    ..Family::new("gemma3_text", build)
};

#[derive(Deserialize)]
struct Config {
    sliding_window_pattern: Option<usize>,
    rope_local_base_freq: Option<f64>,
}

/// Both rotations. In the older dialect the scaling and `rope_theta` are of the full layers only.
fn ropes(config: &Value, c: &Common, own: &Config) -> Result<[Rope; 2], ModelError> {
    let cx = RopeContext { theta: 1e6, ..RopeContext::of(c) };
    let full = Rope::read(config, Some("full_attention"), cx)?;
    let local = RopeContext { theta: own.rope_local_base_freq.unwrap_or(1e4), ..cx };
    let nested = config.get("rope_parameters").is_some_and(|r| r.get("sliding_attention").is_some());
    let sliding = if nested {
        Rope::read(config, Some("sliding_attention"), local)?
    } else {
        Rope::read(&Value::Null, None, local)?
    };
    Ok([full, sliding])
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let mut c = Common::read(net, config)?;
    c.head_dim = c.head_dim.or(Some(256));
    c.sliding_window = c.sliding_window.or(Some(4096));
    let shared: gemma2::Config = read(config)?;
    let own: Config = read(config)?;
    let eps = c.eps(1e-6);
    let [full, sliding] = ropes(config, &c, &own)?;
    let pattern = own.sliding_window_pattern.filter(|p| *p > 0).unwrap_or(6);
    let slides = |i: usize| match &c.layer_types {
        Some(types) => types[i] == LayerType::SlidingAttention,
        None => !(i + 1).is_multiple_of(pattern),
    };
    let scalar =
        shared.query_pre_attn_scalar.unwrap_or(if net.is_gguf() { c.head_dim() as f64 } else { 256.0 });
    gemma2::decode(net, &c, shared.mlp(&c)?, shared.final_logit_softcapping, &|i| Attention {
        rope: Some(if slides(i) { &sliding } else { &full }),
        scale: scalar.powf(-0.5),
        window: c.window(i, slides),
        head_norm: Some(HeadNorm::RmsPlusOne(eps)),
        ..c.attention(i)
    });
    Ok(Built::new(&c, &[&full, &sliding]))
}
