//! Gemma 2 <https://arxiv.org/abs/2408.00118>: norms around each branch, soft caps, alternating windows.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Head, Mlp, attention, gated_mlp, logits, wanted};
use crate::config::{Common, Tied, activation, read};
use crate::error::ModelError;
use crate::names::Rule;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

/// The norms around the branches, as GGUF calls them.
pub(super) const NORMS: &[Rule] = &[
    ("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
    ("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
];

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "gemma2", names: NORMS, interleaved: false }),
    ..Family::new("gemma2", build)
};

#[derive(Deserialize)]
pub(super) struct Config {
    pub(super) query_pre_attn_scalar: Option<f64>,
    pub(super) attn_logit_softcapping: Option<f64>,
    pub(super) final_logit_softcapping: Option<f64>,
    hidden_activation: Option<String>,
}

impl Config {
    /// Files that only say `hidden_act: gelu` mean the tanh form.
    pub(super) fn mlp(&self, c: &Common) -> Result<Mlp, ModelError> {
        let name = self.hidden_activation.as_deref().unwrap_or("gelu_pytorch_tanh");
        let activation = activation("hidden_activation", name)?;
        Ok(Mlp { width: c.intermediate_size, activation, bias: Bias::No })
    }
}

/// The decoder of both Gemma generations: `attention` describes layer `i`.
pub(super) fn decode<'a>(
    net: &Net<'_>,
    c: &Common,
    mlp: Mlp,
    softcap: Option<f64>,
    layer_attention: &dyn Fn(usize) -> Attention<'a>,
) {
    let eps = c.eps(1e-6);
    let model = net.at("model");
    let x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    let mut x = x * (c.hidden_size as f64).sqrt();
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let h = layer.rms_norm_plus_one("input_layernorm", x, eps);
        let h = attention(&layer.at("self_attn"), &layer_attention(i), h);
        x = x + layer.rms_norm_plus_one("post_attention_layernorm", h, eps);
        let h = layer.rms_norm_plus_one("pre_feedforward_layernorm", x, eps);
        let h = gated_mlp(&layer.at("mlp"), h, mlp);
        x = x + layer.rms_norm_plus_one("post_feedforward_layernorm", h, eps);
    }
    let x = model.rms_norm_plus_one("norm", wanted(net, x), eps);
    logits(net, x, Head { softcap, ..c.head(Tied::Yes) });
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let mut c = Common::read(net, config)?;
    c.head_dim = c.head_dim.or(Some(256));
    let own: Config = read(config)?;
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let scalar = own.query_pre_attn_scalar.unwrap_or(if net.is_gguf() { c.head_dim() as f64 } else { 256.0 });
    decode(net, &c, own.mlp(&c)?, own.final_logit_softcapping, &|i| Attention {
        rope: Some(&rope),
        scale: scalar.powf(-0.5),
        softcap: own.attn_logit_softcapping,
        window: c.window(i, |i| i.is_multiple_of(2)),
        ..c.attention(i)
    });
    Ok(Built::new(&c, &[&rope]))
}
