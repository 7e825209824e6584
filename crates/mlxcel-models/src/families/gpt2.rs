//! GPT-2: learned positions, layer norms, and linear layers stored the other way around. MLX and GGUF turn them.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Head, attend, logits, split_heads, wanted};
use crate::config::{Common, activation, check_only, read, renamed};
use crate::error::ModelError;
use crate::net::{Bias, Net};

pub(super) const FAMILY: Family = Family {
    names: &[
        ("model", "transformer"),
        ("wte", "transformer.wte"),
        ("wpe", "transformer.wpe"),
        ("h.", "transformer.h."),
        ("ln_f", "transformer.ln_f"),
    ],
    // The causal mask, which early releases stored.
    ignore: &[".attn.bias", ".attn.masked_bias"],
    gguf: Some(Gguf {
        architecture: "gpt2",
        names: &[
            ("token_embd", "transformer.wte"),
            ("position_embd", "transformer.wpe"),
            ("output_norm", "transformer.ln_f"),
            ("blk.{}.attn_norm", "transformer.h.{}.ln_1"),
            ("blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn"),
            ("blk.{}.attn_output", "transformer.h.{}.attn.c_proj"),
            ("blk.{}.ffn_norm", "transformer.h.{}.ln_2"),
            ("blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc"),
            ("blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj"),
        ],
        interleaved: false,
    }),
    ..Family::new("gpt2", build)
};

const SPELLINGS: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_head", "num_attention_heads"),
    ("n_layer", "num_hidden_layers"),
    ("n_positions", "max_position_embeddings"),
    ("n_inner", "intermediate_size"),
    ("activation_function", "hidden_act"),
];

#[derive(Deserialize)]
struct Config {
    #[serde(alias = "layer_norm_eps")]
    layer_norm_epsilon: Option<f64>,
    scale_attn_weights: Option<bool>,
    #[serde(default)]
    scale_attn_by_inverse_layer_idx: bool,
}

impl Config {
    fn scale(&self, a: &Attention<'_>) -> f64 {
        let scale = if self.scale_attn_weights.unwrap_or(true) { a.scale } else { 1.0 };
        if self.scale_attn_by_inverse_layer_idx { scale / (a.layer + 1) as f64 } else { scale }
    }
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    check_only(config, "add_cross_attention", false)?;
    let mut config = renamed(config, SPELLINGS);
    if config.get("intermediate_size").is_none_or(Value::is_null) {
        let hidden = config.get("hidden_size").and_then(Value::as_u64).unwrap_or(0);
        config["intermediate_size"] = json!(hidden.saturating_mul(4));
    }
    let c = Common::read(net, &config)?;
    let own: Config = read(&config)?;
    let (eps, h) = (own.layer_norm_epsilon.unwrap_or(1e-5), c.hidden_size);
    let act = activation("activation_function", c.hidden_act.as_deref().unwrap_or("gelu_new"))?;

    let model = net.at("transformer");
    let places = model.embedding("wpe", net.inputs.positions, (c.context(), h));
    let mut x = model.embedding("wte", net.inputs.tokens, (c.vocab_size, h)) + places;
    // The joined projection is the only matrix whose shape tells which way round it is stored.
    let turned = model.shape_of("h.0.attn.c_attn.weight") != Some(vec![3 * h, h]);
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("h.{i}"));
        let dense = |name: &str, x, out| match turned {
            true => layer.linear_transposed(name, x, out),
            false => layer.linear(name, x, out, Bias::Yes),
        };
        let a = c.attention(i);
        let a = Attention { scale: own.scale(&a), ..a };
        let y = layer.layer_norm("ln_1", x, eps, Bias::Yes);
        let qkv = split_heads(&a, dense("attn.c_attn", y, 3 * h).cut_last([h; 3]));
        x = x + dense("attn.c_proj", attend(&layer, &a, qkv), h);
        let y = layer.layer_norm("ln_2", x, eps, Bias::Yes);
        x = x + dense("mlp.c_proj", dense("mlp.c_fc", y, c.intermediate_size).activation(act), h);
    }
    let x = model.layer_norm("ln_f", wanted(net, x), eps, Bias::Yes);
    let tied = c.tie_word_embeddings.unwrap_or(true);
    logits(net, x, Head::new(tied, "transformer.wte", c.vocab_size));
    Ok(Built::new(&c, &[]))
}
