//! StableLM 3B and 2 <https://arxiv.org/abs/2402.17834>: layer norms, a quarter of each head rotated, and branches
//! that may run side by side.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, HeadNorm, attention, gated_mlp, logits, wanted};
use crate::config::{Common, Tied, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    names: &[
        ("model.layers.{}.self_attn.q_layernorm", "model.layers.{}.self_attn.q_norm"),
        ("model.layers.{}.self_attn.k_layernorm", "model.layers.{}.self_attn.k_norm"),
    ],
    gguf: Some(Gguf { architecture: "stablelm", names: &[], interleaved: false }),
    ..Family::new("stablelm", build)
};

#[derive(Deserialize)]
struct Config {
    layer_norm_eps: Option<f64>,
    #[serde(default, alias = "attention_bias")]
    use_qkv_bias: bool,
    #[serde(default)]
    qk_layernorm: bool,
    #[serde(default)]
    use_parallel_residual: bool,
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    let eps = own.layer_norm_eps.unwrap_or(1e-5);
    let rope = Rope::read(config, None, RopeContext { partial: 0.25, ..RopeContext::of(&c) })?;
    let mlp = c.mlp()?;

    let model = net.at("model");
    let mut x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let a = Attention {
            rope: Some(&rope),
            qkv_bias: own.use_qkv_bias.into(),
            out_bias: Bias::No,
            head_norm: own.qk_layernorm.then_some(HeadNorm::LayerPerHead(eps)),
            ..c.attention(i)
        };
        let h = layer.layer_norm("input_layernorm", x, eps, Bias::Yes);
        let attended = x + attention(&layer.at("self_attn"), &a, h);
        let h = if own.use_parallel_residual {
            h
        } else {
            layer.layer_norm("post_attention_layernorm", attended, eps, Bias::Yes)
        };
        x = attended + gated_mlp(&layer.at("mlp"), h, mlp);
    }
    let x = model.layer_norm("norm", wanted(net, x), eps, Bias::Yes);
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
