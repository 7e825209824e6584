//! gpt-oss <https://arxiv.org/abs/2508.10925>: attention sinks, windows on every other layer, and experts with biases
//! and a clamped activation.

use mlxcel_ir::{ReduceOp, RouteScore, RouteSpec, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Decoder, decoder, logits};
use crate::config::{Common, Tied, check_sizes, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf {
        architecture: "gpt-oss",
        names: &[
            ("blk.{}.ffn_gate_inp", "model.layers.{}.mlp.router"),
            ("blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.gate_proj"),
            ("blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.up_proj"),
            ("blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.down_proj"),
        ],
        interleaved: false,
    }),
    ..Family::new("gpt_oss", build)
};

#[derive(Deserialize)]
struct Config {
    #[serde(alias = "num_experts")]
    num_local_experts: usize,
    num_experts_per_tok: usize,
    attention_bias: Option<bool>,
    swiglu_alpha: Option<f64>,
    swiglu_limit: Option<f64>,
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let mut config = config.clone();
    if config.get("rope_scaling").or(config.get("rope_parameters")).is_none() {
        config["rope_parameters"] = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": false, "original_max_position_embeddings": 4096});
    }
    let mut c = Common::read(net, &config)?;
    if !net.is_gguf() {
        c.head_dim = c.head_dim.or(Some(64));
        c.num_key_value_heads = c.num_key_value_heads.or(Some(8));
        c.sliding_window = c.sliding_window.or(Some(128));
    }
    let own: Config = read(&config)?;
    check_sizes(&[("num_local_experts", own.num_local_experts)])?;
    c.attention_bias = own.attention_bias.unwrap_or(true);
    let rope = Rope::read(&config, None, RopeContext { theta: 150000.0, ..RopeContext::of(&c) })?;
    let x = decoder(
        net,
        &Decoder {
            common: &c,
            eps: c.eps(1e-5),
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention: &|i| Attention {
                rope: Some(&rope),
                window: c.window(i, |i| i.is_multiple_of(2)),
                sinks: true,
                ..c.attention(i)
            },
            mlp: &|layer, _, x| experts(&layer.at("mlp"), &own, c.intermediate_size, x),
        },
    );
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}

fn experts<'g>(net: &Net<'g>, own: &Config, width: usize, x: Tensor<'g>) -> Tensor<'g> {
    let (count, hidden) = (own.num_local_experts, x.dim(1).as_fixed().unwrap_or(0));
    let route = RouteSpec {
        top_k: own.num_experts_per_tok,
        score: RouteScore::SoftmaxOfChosen,
        renormalize: false,
        scale: 1.0,
        groups: None,
        correction: false,
    };
    let [weights, ids] = net.linear("router", x, count, Bias::Yes).moe_route(route, None);

    let net = net.at("experts");
    let x = x.unsqueeze(1); // [tokens, 1, hidden]
    let apart = |name: &str, x: Tensor<'g>, [rows, columns]: [usize; 2]| {
        let net = net.at(name);
        let (weight, bias) =
            (net.tensor("weight", &[count, rows, columns]), net.tensor("bias", &[count, rows]));
        x.expert_linear(weight, ids, Some(bias))
    };
    // As published: dense matrices are stored [in, out], packed ones the usual way.
    let joined = |name: &str, x: Tensor<'g>, [rows, columns]: [usize; 2]| {
        let weight = if net.dtype_of(name).is_some_and(|d| d.is_quant()) {
            net.tensor(name, &[count, rows, columns])
        } else {
            net.tensor(name, &[count, columns, rows]).transpose(&[0, 2, 1])
        };
        x.expert_linear(weight, ids, Some(net.tensor(&format!("{name}_bias"), &[count, rows])))
    };
    let y = if net.has("gate_up_proj") {
        let both = joined("gate_up_proj", x, [2 * width, hidden]);
        let [gate, up] = [0, 1].map(|start| both.slice_step(2, start, 2 * width, 2));
        joined("down_proj", own.activation(gate, up), [hidden, width])
    } else {
        let [gate, up] = ["gate_proj", "up_proj"].map(|name| apart(name, x, [width, hidden]));
        apart("down_proj", own.activation(gate, up), [hidden, width])
    };
    (y * weights.cast(y.dtype()).unsqueeze(2)).reduce(ReduceOp::Sum, &[1])
}

impl Config {
    /// A gated unit whose gate is clamped from above and whose value on both sides.
    fn activation<'g>(&self, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        let (alpha, limit) = (self.swiglu_alpha.unwrap_or(1.702), self.swiglu_limit.unwrap_or(7.0));
        let gate = gate.min(gate.number(limit));
        let up = up.min(up.number(limit)).max(up.number(-limit));
        (up + 1.0) * gate * (gate * alpha).sigmoid()
    }
}
