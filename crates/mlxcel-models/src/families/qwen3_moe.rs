//! Qwen3 with mixtures of experts <https://arxiv.org/abs/2505.09388>.

use mlxcel_ir::{RouteScore, RouteSpec};
use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Decoder, HeadNorm, Moe, decoder, gated_mlp, logits, moe};
use crate::config::{Common, Tied, check_sizes, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "qwen3moe", names: &[], interleaved: false }),
    ..Family::new("qwen3_moe", build)
};

#[derive(Deserialize)]
struct Config {
    #[serde(alias = "num_local_experts")]
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    #[serde(default)]
    norm_topk_prob: bool,
    #[serde(default = "every")]
    decoder_sparse_step: usize,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
    #[serde(default)]
    use_sliding_window: bool,
}

fn every() -> usize {
    1
}

impl Config {
    fn is_sparse(&self, i: usize) -> bool {
        !self.mlp_only_layers.contains(&i) && (i + 1).is_multiple_of(self.decoder_sparse_step)
    }
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    check_sizes(&[("num_experts", own.num_experts), ("moe_intermediate_size", own.moe_intermediate_size)])?;
    let eps = c.eps(1e-6);
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let dense = c.mlp()?;
    let shape =
        Moe { experts: own.num_experts, width: own.moe_intermediate_size, activation: c.activation()? };
    let route = RouteSpec {
        top_k: own.num_experts_per_tok,
        score: RouteScore::Softmax,
        // GGUF has no field for it, and the architecture there always does.
        renormalize: own.norm_topk_prob || net.is_gguf(),
        scale: 1.0,
        groups: None,
        correction: false,
    };
    let x = decoder(
        net,
        &Decoder {
            common: &c,
            eps,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention: &|i| Attention {
                rope: Some(&rope),
                window: c.sliding_window.filter(|_| own.use_sliding_window),
                head_norm: Some(HeadNorm::Rms(eps)),
                ..c.attention(i)
            },
            mlp: &|layer, i, x| {
                let net = layer.at("mlp");
                if !own.is_sparse(i) {
                    return gated_mlp(&net, x, dense);
                }
                let router = net.linear("gate", x, shape.experts, Bias::No);
                let names = ["gate_proj", "up_proj", "down_proj"];
                moe(&net, x, (router, None), route.clone(), (shape, names))
            },
        },
    );
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
