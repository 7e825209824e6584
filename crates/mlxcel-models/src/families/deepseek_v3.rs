//! DeepSeek-V3 and R1 <https://arxiv.org/abs/2412.19437>: latent attention, and experts chosen within groups beside
//! experts that every token shares.

use mlxcel_ir::{DType, RouteGroups, RouteScore, RouteSpec, Tensor};
use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Latent, Mlp, Moe, gated_mlp, latent_attention, logits, moe, wanted};
use crate::config::{Common, Tied, check_only, check_sizes, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext, mscale_all_dim, yarn_mscale};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf {
        architecture: "deepseek2",
        names: &[
            ("blk.{}.attn_q_a", "model.layers.{}.self_attn.q_a_proj"),
            ("blk.{}.attn_q_a_norm", "model.layers.{}.self_attn.q_a_layernorm"),
            ("blk.{}.attn_q_b", "model.layers.{}.self_attn.q_b_proj"),
            ("blk.{}.attn_kv_a_mqa", "model.layers.{}.self_attn.kv_a_proj_with_mqa"),
            ("blk.{}.attn_kv_a_norm", "model.layers.{}.self_attn.kv_a_layernorm"),
            ("blk.{}.attn_kv_b", "model.layers.{}.self_attn.kv_b_proj"),
            ("blk.{}.attn_k_b", "model.layers.{}.self_attn.embed_q"),
            ("blk.{}.attn_v_b", "model.layers.{}.self_attn.unembed_out"),
            ("blk.{}.exp_probs_b.bias", "model.layers.{}.mlp.gate.e_score_correction_bias"),
        ],
        interleaved: true,
    }),
    ..Family::new("deepseek_v3", build)
};

#[derive(Deserialize)]
struct Config {
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    qk_nope_head_dim: usize,
    qk_rope_head_dim: usize,
    v_head_dim: usize,
    rope_interleave: Option<bool>,
    first_k_dense_replace: usize,
    #[serde(alias = "num_experts")]
    n_routed_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    n_shared_experts: usize,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f64>,
    #[serde(default)]
    num_nextn_predict_layers: usize,
}

impl Config {
    fn read(config: &Value) -> Result<Config, ModelError> {
        check_only(config, "scoring_func", "sigmoid")?;
        check_only(config, "topk_method", "noaux_tc")?;
        check_only(config, "moe_layer_freq", 1)?;
        let own: Config = read(config)?;
        check_sizes(&[
            ("q_lora_rank", own.q_lora_rank.unwrap_or(1)),
            ("kv_lora_rank", own.kv_lora_rank),
            ("qk_nope_head_dim", own.qk_nope_head_dim),
            ("qk_rope_head_dim", own.qk_rope_head_dim),
            ("v_head_dim", own.v_head_dim),
            ("n_routed_experts", own.n_routed_experts),
            ("num_experts_per_tok", own.num_experts_per_tok),
            ("moe_intermediate_size", own.moe_intermediate_size),
            ("n_shared_experts", own.n_shared_experts),
        ])?;
        Ok(own)
    }

    /// GGUF says what departs from plain sums of the chosen, `config.json` what departs from V3.
    fn route(&self, net: &Net<'_>) -> RouteSpec {
        let (count, keep, scale) = if net.is_gguf() { (1, 1, 1.0) } else { (8, 4, 2.5) };
        let groups =
            RouteGroups { count: self.n_group.unwrap_or(count), keep: self.topk_group.unwrap_or(keep) };
        RouteSpec {
            top_k: self.num_experts_per_tok,
            score: RouteScore::Sigmoid,
            renormalize: self.norm_topk_prob.unwrap_or(!net.is_gguf()),
            scale: self.routed_scaling_factor.unwrap_or(scale),
            groups: Some(groups).filter(|g| g.count != 1),
            correction: true,
        }
    }
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own = Config::read(config)?;
    let rope = RopeContext { head_dim: own.qk_rope_head_dim, ..RopeContext::of(&c) };
    let mut rope = Rope::read(config, None, rope)?;
    rope.interleaved = own.rope_interleave.unwrap_or(true);
    let growth = mscale_all_dim(config)?.map_or(1.0, |m| yarn_mscale(m.factor, m.all_dim));
    let attention = Latent {
        layer: 0,
        heads: c.num_attention_heads,
        q_rank: own.q_lora_rank,
        kv_rank: own.kv_lora_rank,
        nope: own.qk_nope_head_dim,
        rotary: own.qk_rope_head_dim,
        value: own.v_head_dim,
        scale: growth * growth / ((own.qk_nope_head_dim + own.qk_rope_head_dim) as f64).sqrt(),
        rope: &rope,
        bias: c.attention_bias.into(),
    };
    let (eps, dense, route) = (c.eps(1e-6), Mlp { bias: Bias::No, ..c.mlp()? }, own.route(net));

    let model = net.at("model");
    let mut x = model.embedding("embed_tokens", net.inputs.tokens, (c.vocab_size, c.hidden_size));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let h = layer.rms_norm("input_layernorm", x, eps);
        x = x + latent_attention(&layer.at("self_attn"), &Latent { layer: i, ..attention }, h);
        let h = layer.rms_norm("post_attention_layernorm", x, eps);
        let mlp = layer.at("mlp");
        x = x + if i < own.first_k_dense_replace {
            gated_mlp(&mlp, h, dense)
        } else {
            experts(&mlp, h, &own, (route.clone(), dense))
        };
    }
    // Layers beyond the last predict further tokens in training.
    for i in 0..own.num_nextn_predict_layers.min(net.tensor_count()) {
        model.at(&format!("layers.{}", c.num_hidden_layers + i)).leave_out();
    }
    let x = model.rms_norm("norm", wanted(net, x), eps);
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}

fn experts<'g>(net: &Net<'g>, x: Tensor<'g>, own: &Config, (route, dense): (RouteSpec, Mlp)) -> Tensor<'g> {
    let shape =
        Moe { experts: own.n_routed_experts, width: own.moe_intermediate_size, activation: dense.activation };
    let router = net.linear("gate", x.cast(DType::F32), shape.experts, Bias::No);
    let correction = net.tensor("gate.e_score_correction_bias", &[shape.experts]);
    let names = ["gate_proj", "up_proj", "down_proj"];
    let routed = moe(net, x, (router, Some(correction)), route, (shape, names));
    let shared = Mlp { width: shape.width * own.n_shared_experts, ..dense };
    routed + gated_mlp(&net.at("shared_experts"), x, shared)
}
