//! Mixtral <https://arxiv.org/abs/2401.04088>: Mistral whose feed-forward layers are mixtures of experts.

use mlxcel_ir::{RouteScore, RouteSpec};
use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Decoder, Moe, decoder, logits, moe};
use crate::config::{Common, Tied, check_sizes, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    names: &[("model.layers.{}.block_sparse_moe", "model.layers.{}.mlp")],
    gguf: Some(Gguf { architecture: "llama", names: &[], interleaved: true }),
    ..Family::new("mixtral", build)
};

#[derive(Deserialize)]
struct Config {
    #[serde(alias = "num_experts")]
    num_local_experts: usize,
    num_experts_per_tok: usize,
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    check_sizes(&[
        ("num_local_experts", own.num_local_experts),
        ("num_experts_per_tok", own.num_experts_per_tok),
    ])?;
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let shape =
        Moe { experts: own.num_local_experts, width: c.intermediate_size, activation: c.activation()? };
    let route = RouteSpec {
        top_k: own.num_experts_per_tok,
        score: RouteScore::Softmax,
        renormalize: true,
        scale: 1.0,
        groups: None,
        correction: false,
    };
    let x = decoder(
        net,
        &Decoder {
            common: &c,
            eps: c.eps(1e-5),
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention: &|i| Attention { rope: Some(&rope), window: c.window(i, |_| true), ..c.attention(i) },
            mlp: &|layer, _, x| {
                let net = layer.at("mlp");
                let router = net.linear("gate", x, shape.experts, Bias::No);
                moe(&net, x, (router, None), route.clone(), (shape, ["w1", "w3", "w2"]))
            },
        },
    );
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
