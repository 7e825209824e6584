//! The decoder of the Llama line: a norm before attention and a norm before the feed-forward layer, each added to
//! the residual stream.

use mlxcel_ir::Tensor;

use super::{Attention, attention, wanted};
use crate::config::Common;
use crate::net::Net;

/// What distinguishes one decoder of this shape from another.
pub struct Decoder<'a> {
    pub common: &'a Common,
    pub eps: f64,
    /// Multiplies the embeddings.
    pub embedding_scale: f64,
    /// Multiplies what each branch adds.
    pub residual_scale: f64,
    pub attention: &'a dyn Fn(usize) -> Attention<'a>,
    /// The feed-forward branch, given its layer's parameters.
    pub mlp: &'a dyn for<'g> Fn(&Net<'g>, usize, Tensor<'g>) -> Tensor<'g>,
}

/// The normed hidden states of the rows whose logits are wanted.
pub fn decoder<'g>(net: &Net<'g>, d: &Decoder<'_>) -> Tensor<'g> {
    let model = net.at("model");
    let c = d.common;
    let scaled = |x: Tensor<'g>, by: f64| if by == 1.0 { x } else { x * by };
    let x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    let mut x = scaled(x, d.embedding_scale);
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let h = layer.rms_norm("input_layernorm", x, d.eps);
        x = x + scaled(attention(&layer.at("self_attn"), &(d.attention)(i), h), d.residual_scale);
        let h = layer.rms_norm("post_attention_layernorm", x, d.eps);
        x = x + scaled((d.mlp)(&layer, i, h), d.residual_scale);
    }
    model.rms_norm("norm", wanted(net, x), d.eps)
}
