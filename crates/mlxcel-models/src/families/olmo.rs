//! OLMo <https://arxiv.org/abs/2402.00838>: Llama with layer norms that have no weights, and with queries, keys and
//! values that may be clipped.

use mlxcel_ir::Tensor;
use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family};
use crate::blocks::{Attention, Mlp, attend, gated_mlp, logits, split_heads, wanted};
use crate::config::{Common, Tied, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family::new("olmo", build);

/// The published models have it fixed.
const EPS: f64 = 1e-5;

#[derive(Deserialize)]
struct Config {
    /// Bounds the magnitude of queries, keys and values.
    clip_qkv: Option<f64>,
}

fn norm(x: Tensor<'_>) -> Tensor<'_> {
    x.layer_norm(EPS, None, None)
}

fn clip(x: Tensor<'_>, bound: Option<f64>) -> Tensor<'_> {
    bound.map_or(x, |b| x.max(x.number(-b)).min(x.number(b)))
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    if let Some(bound) = own.clip_qkv.filter(|b| b.is_nan() || *b <= 0.0) {
        return Err(ModelError::field("clip_qkv", format!("{bound} is not a positive number")));
    }
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let mlp = Mlp { bias: Bias::No, ..c.mlp()? };
    let (heads, kv_heads, dim) = c.heads();

    let model = net.at("model");
    let mut x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let a = Attention { rope: Some(&rope), ..c.attention(i) };
        let net = layer.at("self_attn");
        let h = norm(x);
        let qkv = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)]
            .map(|(name, heads)| clip(net.linear(name, h, heads * dim, a.qkv_bias), own.clip_qkv));
        let h = attend(&net, &a, split_heads(&a, qkv));
        x = x + net.linear("o_proj", h, c.hidden_size, a.out_bias);
        x = x + gated_mlp(&layer.at("mlp"), norm(x), mlp);
    }
    logits(net, norm(wanted(net, x)), c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
