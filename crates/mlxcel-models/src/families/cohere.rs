//! Command R <https://docs.cohere.com/docs/command-r>: one norm per layer feeding both branches, which run side by
//! side, and neighbours rotated together.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Head, HeadNorm, attention, gated_mlp, logits, wanted};
use crate::config::{Common, Tied, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "command-r", names: &[], interleaved: true }),
    ..Family::new("cohere", build)
};

#[derive(Deserialize)]
struct Config {
    layer_norm_eps: Option<f64>,
    #[serde(default)]
    use_qk_norm: bool,
    logit_scale: Option<f64>,
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    let eps = own.layer_norm_eps.unwrap_or(1e-5);
    let rope =
        Rope::read(config, None, RopeContext { theta: 500000.0, ..RopeContext::of(&c) })?.interleaved();
    let mlp = c.mlp()?;

    let model = net.at("model");
    let mut x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let a = Attention {
            rope: Some(&rope),
            head_norm: own.use_qk_norm.then_some(HeadNorm::LayerPerHead(eps)),
            ..c.attention(i)
        };
        let h = layer.layer_norm("input_layernorm", x, eps, Bias::No);
        x = x + attention(&layer.at("self_attn"), &a, h) + gated_mlp(&layer.at("mlp"), h, mlp);
    }
    let x = model.layer_norm("norm", wanted(net, x), eps, Bias::No);
    logits(net, x, Head { scale: own.logit_scale.unwrap_or(0.0625), ..c.head(Tied::Yes) });
    Ok(Built::new(&c, &[&rope]))
}
