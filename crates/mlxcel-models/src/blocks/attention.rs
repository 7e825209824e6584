//! Grouped-query attention over the paged cache.

use mlxcel_ir::{PagedSpec, Tensor};

use crate::net::{Bias, Net, width};
use crate::rope::Rope;

/// A norm on each head of queries (`q_norm`) and keys (`k_norm`), with its epsilon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadNorm {
    /// One weight for all heads.
    Rms(f64),
    /// One weight for all heads, stored as the difference from one.
    RmsPlusOne(f64),
    /// A layer norm without bias whose weight is `[heads, head_dim]`, kept whole or head by head.
    LayerPerHead(f64),
}

impl HeadNorm {
    fn apply<'g>(self, net: &Net<'g>, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            HeadNorm::Rms(eps) => net.rms_norm(name, x, eps),
            HeadNorm::RmsPlusOne(eps) => net.rms_norm_plus_one(name, x, eps),
            HeadNorm::LayerPerHead(eps) => {
                let [heads, dim] = [1, 2].map(|axis| x.dim(axis).as_fixed().unwrap_or(0));
                let net = net.at(name);
                let weight = if net.has("weight") {
                    net.tensor("weight", &[heads, dim])
                } else {
                    let pieces: Vec<String> = (0..heads).map(|h| format!("norms.{h}.weight")).collect();
                    net.stack("weight", &pieces, &[dim])
                };
                x.layer_norm(eps, None, None) * weight.cast(x.dtype())
            }
        }
    }
}

/// What distinguishes one attention layer from another.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    pub layer: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f64,
    pub rope: Option<&'a Rope>,
    pub window: Option<usize>,
    pub softcap: Option<f64>,
    pub qkv_bias: Bias,
    pub out_bias: Bias,
    /// After the split into heads, before the rotation.
    pub head_norm: Option<HeadNorm>,
    /// One extra logit per head in the softmax, under `sinks`.
    pub sinks: bool,
}

impl<'a> Attention<'a> {
    /// The usual layer: scaled by the root of the head width, nothing special.
    pub fn new(layer: usize, (heads, kv_heads, head_dim): (usize, usize, usize)) -> Self {
        Attention {
            layer,
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f64).powf(-0.5),
            rope: None,
            window: None,
            softcap: None,
            qkv_bias: Bias::No,
            out_bias: Bias::No,
            head_norm: None,
            sinks: false,
        }
    }
}

/// `q_proj`, `k_proj`, `v_proj`, attention, `o_proj`.
pub fn attention<'g>(net: &Net<'g>, a: &Attention<'_>, x: Tensor<'g>) -> Tensor<'g> {
    let q = net.linear("q_proj", x, a.heads * a.head_dim, a.qkv_bias);
    let k = net.linear("k_proj", x, a.kv_heads * a.head_dim, a.qkv_bias);
    let v = net.linear("v_proj", x, a.kv_heads * a.head_dim, a.qkv_bias);
    let [q, k, v] = split_heads(a, [q, k, v]);
    let out = attend(net, a, [q, k, v]);
    net.linear("o_proj", out, width(x), a.out_bias)
}

/// `[tokens, heads * head_dim]` to `[tokens, heads, head_dim]`.
pub fn split_heads<'g>(a: &Attention<'_>, [q, k, v]: [Tensor<'g>; 3]) -> [Tensor<'g>; 3] {
    [
        q.split_last(a.heads, a.head_dim),
        k.split_last(a.kv_heads, a.head_dim),
        v.split_last(a.kv_heads, a.head_dim),
    ]
}

/// Norm, rotation, cache and attention of split heads, to `[tokens, heads * head_dim]`.
pub fn attend<'g>(net: &Net<'g>, a: &Attention<'_>, [q, k, v]: [Tensor<'g>; 3]) -> Tensor<'g> {
    let prepare = |name: &str, x: Tensor<'g>| {
        let normed = a.head_norm.map_or(x, |norm| norm.apply(net, name, x));
        a.rope.map_or(normed, |rope| rope.apply(net, normed))
    };
    let (q, k) = (prepare("q_norm", q), prepare("k_norm", k));
    let sinks = a.sinks.then(|| net.tensor("sinks", &[a.heads]));
    let spec =
        PagedSpec { scale: a.scale, window: a.window, softcap: a.softcap, sinks: a.sinks, value_dim: None };
    net.b.paged_attention((q, k, Some(v)), net.paged(), sinks, a.layer, spec).merge_last()
}
