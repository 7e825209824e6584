//! StarCoder2 <https://arxiv.org/abs/2402.19173>: layer norms, biases, a plain feed-forward layer and a sliding
//! window on every layer.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Mlp, attention, logits, mlp, wanted};
use crate::config::{Common, Tied, activation, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf {
        architecture: "starcoder2",
        names: &[
            ("blk.{}.ffn_up", "model.layers.{}.mlp.c_fc"),
            ("blk.{}.ffn_down", "model.layers.{}.mlp.c_proj"),
        ],
        interleaved: false,
    }),
    ..Family::new("starcoder2", build)
};

#[derive(Deserialize)]
struct Config {
    #[serde(alias = "layer_norm_eps")]
    norm_epsilon: Option<f64>,
    use_bias: Option<bool>,
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    let eps = own.norm_epsilon.unwrap_or(1e-5);
    let bias = Bias::from(own.use_bias.unwrap_or(true));
    let act = c.hidden_act.as_deref().unwrap_or("gelu_pytorch_tanh");
    let feed_forward = Mlp { width: c.intermediate_size, activation: activation("hidden_act", act)?, bias };
    let rope = Rope::read(config, None, RopeContext::of(&c))?;

    let model = net.at("model");
    let mut x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let a = Attention {
            rope: Some(&rope),
            window: c.window(i, |_| true),
            qkv_bias: bias,
            out_bias: bias,
            ..c.attention(i)
        };
        let h = layer.layer_norm("input_layernorm", x, eps, Bias::Yes);
        x = x + attention(&layer.at("self_attn"), &a, h);
        let h = layer.layer_norm("post_attention_layernorm", x, eps, Bias::Yes);
        x = x + mlp(&layer.at("mlp"), h, ["c_fc", "c_proj"], feed_forward);
    }
    let x = model.layer_norm("norm", wanted(net, x), eps, Bias::Yes);
    logits(net, x, c.head(Tied::Yes));
    Ok(Built::new(&c, &[&rope]))
}
