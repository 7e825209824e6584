//! Phi-3 and Phi-4-mini <https://arxiv.org/abs/2404.14219>: Llama with joined projections and long-context rotation.

use mlxcel_ir::Tensor;
use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, attend, logits, split_heads, wanted};
use crate::config::{Common, Tied, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    // The factors of long rotations are read with the configuration.
    ignore: &["rotary_emb.inv_freq", "rope_factors_"],
    gguf: Some(Gguf {
        architecture: "phi3",
        names: &[("blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj")],
        interleaved: false,
    }),
    ..Family::new("phi3", build)
};

#[derive(Deserialize)]
struct Config {
    #[serde(default = "original")]
    original_max_position_embeddings: usize,
}

fn original() -> usize {
    4096
}

/// At the top level it counts for the rotation even where the rotation's settings have a field of their own, and
/// the settings' name `yarn` has always meant longrope here.
fn rope(config: &Value, c: &Common, own: &Config) -> Result<Rope, ModelError> {
    let mut config = config.clone();
    for field in ["rope_scaling", "rope_parameters"] {
        if let Some(settings) = config.get_mut(field).and_then(Value::as_object_mut) {
            settings.remove("original_max_position_embeddings");
            for kind in ["type", "rope_type"] {
                if settings.get(kind).and_then(Value::as_str) == Some("yarn") {
                    settings.insert(kind.to_string(), "longrope".into());
                }
            }
        }
    }
    let original_max_position_embeddings = Some(own.original_max_position_embeddings);
    Rope::read(&config, None, RopeContext { original_max_position_embeddings, ..RopeContext::of(c) })
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    let rope = rope(config, &c, &own)?;
    let (eps, act) = (c.eps(1e-5), c.activation()?);
    let (heads, kv_heads, dim) = c.heads();

    let model = net.at("model");
    let mut x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let a = Attention { rope: Some(&rope), window: c.window(i, |_| true), ..c.attention(i) };
        let net = layer.at("self_attn");
        let h = layer.rms_norm("input_layernorm", x, eps);
        let qkv: Tensor<'_> = net.linear("qkv_proj", h, (heads + 2 * kv_heads) * dim, Bias::No);
        let qkv = split_heads(&a, qkv.cut_last([heads * dim, kv_heads * dim, kv_heads * dim]));
        x = x + net.linear("o_proj", attend(&net, &a, qkv), c.hidden_size, Bias::No);

        let net = layer.at("mlp");
        let h = layer.rms_norm("post_attention_layernorm", x, eps);
        let both = net.linear("gate_up_proj", h, 2 * c.intermediate_size, Bias::No);
        let [gate, up] = both.cut_last([c.intermediate_size; 2]);
        x = x + net.linear("down_proj", gate.activation(act) * up, c.hidden_size, Bias::No);
    }
    let x = model.rms_norm("norm", wanted(net, x), eps);
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
