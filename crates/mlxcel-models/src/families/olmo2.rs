//! OLMo 2 <https://arxiv.org/abs/2501.00656>: norms after each branch instead of before, and on whole queries and
//! keys before they are split into heads.

use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, attend, gated_mlp, logits, split_heads, wanted};
use crate::config::{Common, Tied};
use crate::error::ModelError;
use crate::net::Net;
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "olmo2", names: &[], interleaved: false }),
    ..Family::new("olmo2", build)
};

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let (eps, mlp) = (c.eps(1e-5), c.mlp()?);
    let (heads, kv_heads, dim) = c.heads();

    let model = net.at("model");
    let mut x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let a = Attention { rope: Some(&rope), ..c.attention(i) };
        let net = layer.at("self_attn");
        let q = net.rms_norm("q_norm", net.linear("q_proj", x, heads * dim, a.qkv_bias), eps);
        let k = net.rms_norm("k_norm", net.linear("k_proj", x, kv_heads * dim, a.qkv_bias), eps);
        let v = net.linear("v_proj", x, kv_heads * dim, a.qkv_bias);
        let h = attend(&net, &a, split_heads(&a, [q, k, v]));
        let h = net.linear("o_proj", h, c.hidden_size, a.out_bias);
        x = x + layer.rms_norm("post_attention_layernorm", h, eps);
        let h = gated_mlp(&layer.at("mlp"), x, mlp);
        x = x + layer.rms_norm("post_feedforward_layernorm", h, eps);
    }
    let x = model.rms_norm("norm", wanted(net, x), eps);
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
