//! GPT-NeoX and Pythia <https://arxiv.org/abs/2204.06745>: part of each head rotated, and two branches side by side,
//! each with a norm of its own.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Head, Mlp, attend, logits, mlp, split_heads, wanted};
use crate::config::{Common, activation, read, renamed};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    names: &[
        ("model.h.", "gpt_neox.layers."),
        ("model.embed_out", "embed_out"),
        ("model", "gpt_neox"),
        ("lm_head", "embed_out"),
    ],
    ignore: &["rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"],
    gguf: Some(Gguf {
        architecture: "gptneox",
        names: &[
            ("token_embd", "gpt_neox.embed_in"),
            ("output_norm", "gpt_neox.final_layer_norm"),
            ("output", "embed_out"),
            ("blk.{}.attn_norm", "gpt_neox.layers.{}.input_layernorm"),
            ("blk.{}.attn_qkv", "gpt_neox.layers.{}.attention.query_key_value"),
            ("blk.{}.attn_output", "gpt_neox.layers.{}.attention.dense"),
            ("blk.{}.ffn_norm", "gpt_neox.layers.{}.post_attention_layernorm"),
            ("blk.{}.ffn_up", "gpt_neox.layers.{}.mlp.dense_h_to_4h"),
            ("blk.{}.ffn_down", "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
        ],
        interleaved: false,
    }),
    ..Family::new("gpt_neox", build)
};

const SPELLINGS: &[(&str, &str)] =
    &[("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")];

#[derive(Deserialize)]
struct Config {
    layer_norm_eps: Option<f64>,
    attention_bias: Option<bool>,
    use_parallel_residual: Option<bool>,
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let config = renamed(config, SPELLINGS);
    let c = Common::read(net, &config)?;
    let own: Config = read(&config)?;
    let (eps, hidden) = (own.layer_norm_eps.unwrap_or(1e-5), c.hidden_size);
    let bias = Bias::from(own.attention_bias.unwrap_or(true));
    let act = activation("hidden_act", c.hidden_act.as_deref().unwrap_or("gelu"))?;
    let feed_forward = Mlp { width: c.intermediate_size, activation: act, bias: Bias::Yes };
    let rope = Rope::read(&config, None, RopeContext { partial: 0.25, ..RopeContext::of(&c) })?;
    let (heads, _, dim) = c.heads();

    let model = net.at("gpt_neox");
    let mut x = model.embedding("embed_in", net.inputs.tokens, (c.vocab_size, hidden));
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let a = Attention { rope: Some(&rope), ..Attention::new(i, (heads, heads, dim)) };
        let attention = layer.at("attention");
        let h = layer.layer_norm("input_layernorm", x, eps, Bias::Yes);
        let qkv = attention.linear("query_key_value", h, 3 * heads * dim, bias);
        // Rows are grouped by head; GGUF groups them by what they are.
        let qkv = if net.is_gguf() {
            split_heads(&a, qkv.cut_last([heads * dim; 3]))
        } else {
            qkv.split_last(heads, 3 * dim).cut_last([dim; 3])
        };
        let attended = x + attention.linear("dense", attend(&attention, &a, qkv), hidden, bias);
        let source = if own.use_parallel_residual.unwrap_or(true) { x } else { attended };
        let h = layer.layer_norm("post_attention_layernorm", source, eps, Bias::Yes);
        x = attended + mlp(&layer.at("mlp"), h, ["dense_h_to_4h", "dense_4h_to_h"], feed_forward);
    }
    let x = model.layer_norm("final_layer_norm", wanted(net, x), eps, Bias::Yes);
    let name = if c.tie_word_embeddings == Some(true) { "gpt_neox.embed_in" } else { "embed_out" };
    logits(net, x, Head { name, ..Head::new(false, "", c.vocab_size) });
    Ok(Built::new(&c, &[&rope]))
}
