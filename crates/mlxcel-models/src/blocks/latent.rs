//! Multi-head latent attention <https://arxiv.org/abs/2405.04434> in its absorbed form: the matrices that expand a
//! token's latent vector to keys and values are applied to queries and outputs instead, so that the cache holds one
//! latent vector and one rotated key per token, whatever the number of heads.

use mlxcel_ir::{PagedSpec, Tensor};

use crate::net::{Bias, Net, width};
use crate::rope::Rope;

/// The norms of latent vectors have an epsilon of their own, which no configuration changes.
const LATENT_EPS: f64 = 1e-6;

/// Widths and settings of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Latent<'a> {
    pub layer: usize,
    pub heads: usize,
    /// Width of the latent queries; `None` where queries are projected in one step.
    pub q_rank: Option<usize>,
    /// Width of the latent keys and values.
    pub kv_rank: usize,
    /// Parts of a head's query: not rotated, rotated; and its value.
    pub nope: usize,
    pub rotary: usize,
    pub value: usize,
    pub scale: f64,
    pub rope: &'a Rope,
    /// On the first projections and the last.
    pub bias: Bias,
}

/// `x [tokens, hidden]` to the same.
pub fn latent_attention<'g>(net: &Net<'g>, a: &Latent<'_>, x: Tensor<'g>) -> Tensor<'g> {
    let q = queries(net, a, x).split_last(a.heads, a.nope + a.rotary);
    let [q_nope, q_rope] = q.cut_last([a.nope, a.rotary]);
    let both = net.linear("kv_a_proj_with_mqa", x, a.kv_rank + a.rotary, a.bias);
    let [latent, k_rope] = both.cut_last([a.kv_rank, a.rotary]);
    let latent = net.rms_norm("kv_a_layernorm", latent, LATENT_EPS).unsqueeze(1);

    let (to_key, to_value) = expansions(net, a);
    // [heads, tokens, kv_rank] to [tokens, heads, kv_rank]
    let absorbed = q_nope.dot_general(to_key, &[(1, 0)], &[(2, 1)]).transpose(&[1, 0, 2]);
    let q = net.b.concat(&[absorbed, a.rope.apply(net, q_rope)], 2);
    let k = net.b.concat(&[latent, a.rope.apply(net, k_rope.unsqueeze(1))], 2);
    let spec =
        PagedSpec { scale: a.scale, window: None, softcap: None, sinks: false, value_dim: Some(a.kv_rank) };
    let out = net.b.paged_attention((q, k, None), net.paged(), None, a.layer, spec);
    let out = out.dot_general(to_value, &[(1, 0)], &[(2, 2)]).transpose(&[1, 0, 2]).merge_last();
    net.linear("o_proj", out, width(x), a.bias)
}

fn queries<'g>(net: &Net<'g>, a: &Latent<'_>, x: Tensor<'g>) -> Tensor<'g> {
    let width = a.heads * (a.nope + a.rotary);
    let Some(rank) = a.q_rank else { return net.linear("q_proj", x, width, Bias::No) };
    let latent = net.rms_norm("q_a_layernorm", net.linear("q_a_proj", x, rank, a.bias), LATENT_EPS);
    net.linear("q_b_proj", latent, width, Bias::No)
}

/// From latent to keys `[heads, nope, kv_rank]` and to values `[heads, value, kv_rank]`: published as one matrix,
/// kept apart by MLX (`embed_q`, turned, and `unembed_out`) and GGUF.
fn expansions<'g>(net: &Net<'g>, a: &Latent<'_>) -> (Tensor<'g>, Tensor<'g>) {
    if net.has("embed_q.weight") {
        let to_key = net.tensor("embed_q.weight", &[a.heads, a.kv_rank, a.nope]);
        let to_value = net.tensor("unembed_out.weight", &[a.heads, a.value, a.kv_rank]);
        return (to_key.dequantize(net.dtype).transpose(&[0, 2, 1]), to_value.dequantize(net.dtype));
    }
    let rows = a.nope + a.value;
    let joined = net.tensor("kv_b_proj.weight", &[a.heads * rows, a.kv_rank]).dequantize(net.dtype);
    let by_head = joined.reshape([a.heads, rows, a.kv_rank].map(Into::into).to_vec());
    (by_head.slice(1, 0, a.nope), by_head.slice(1, a.nope, rows))
}
