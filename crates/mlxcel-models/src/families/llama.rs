//! Llama 2 and 3 <https://arxiv.org/abs/2407.21783>, and what is built like them.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Head, Mlp, attention, gated_mlp, logits, wanted};
use crate::config::{Common, activation, read};
use crate::error::ModelError;
use crate::net::Net;
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    name: "llama",
    aliases: &[],
    names: &[],
    ignore: &["rotary_emb.inv_freq"],
    gguf: Some(Gguf { architecture: "llama", names: &[], interleaved: true }),
    build,
};

#[derive(Deserialize)]
struct Config {
    #[serde(default = "eps")]
    rms_norm_eps: f64,
    #[serde(default = "silu")]
    hidden_act: String,
}

fn eps() -> f64 {
    1e-6
}

fn silu() -> String {
    "silu".to_string()
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let mlp = Mlp {
        width: c.intermediate_size,
        activation: activation("hidden_act", &own.hidden_act)?,
        bias: c.mlp_bias.into(),
    };

    let model = net.at("model");
    let mut x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let a = Attention {
            rope: Some(&rope),
            window: c.window(i, |_| false),
            qkv_bias: c.attention_bias.into(),
            out_bias: c.attention_bias.into(),
            ..Attention::new(i, c.heads())
        };
        let h = layer.rms_norm("input_layernorm", x, own.rms_norm_eps);
        x = x + attention(&layer.at("self_attn"), &a, h);
        let h = layer.rms_norm("post_attention_layernorm", x, own.rms_norm_eps);
        x = x + gated_mlp(&layer.at("mlp"), h, mlp);
    }
    let x = model.rms_norm("norm", wanted(net, x), own.rms_norm_eps);
    let tied = c.tie_word_embeddings.unwrap_or(false);
    logits(net, x, Head::new(tied, "model.embed_tokens", c.vocab_size));
    Ok(Built::new(&c, &[&rope]))
}
