//! What is particular about each family's GGUF form, as data: defaults that its configuration leaves out, the layout
//! steps, the names that the reader's tables leave open, and what GGUF has no way to say.

use super::arrange::Step;
use super::keys::{self, Fields, Keys};
use crate::error::ModelError;
use crate::names::Rule;

/// One family.
pub(super) struct Row {
    pub(super) family: &'static str,
    /// The family whose architecture and names it takes.
    pub(super) writes: &'static str,
    /// Other spellings of configuration fields.
    pub(super) spellings: &'static [(&'static str, &'static str)],
    pub(super) norm: Norm,
    /// `None` where nothing is rotated.
    pub(super) rope: Option<Rotation>,
    pub(super) head_dim: Option<usize>,
    pub(super) kv_heads: Option<usize>,
    /// The only activation that the architecture has.
    pub(super) activation: &'static [&'static str],
    pub(super) steps: &'static [Step],
    /// GGUF and published name, where the reader's tables give several.
    pub(super) names: &'static [Rule],
    /// A field and the value that GGUF takes for granted.
    pub(super) granted: &'static [(&'static str, Granted)],
    /// Keys beyond the usual ones.
    pub(super) own: fn(&Fields<'_>, &mut Keys) -> Result<(), ModelError>,
}

/// Which norm, and its epsilon where the configuration is silent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Norm {
    Rms(f64),
    Layer(f64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    pub(super) theta: f64,
    pub(super) partial: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Granted {
    Bool(bool),
    /// Absent, null or empty.
    Nothing,
}

const PLAIN: Rotation = Rotation { theta: 10000.0, partial: 1.0 };
const NO_BIAS: (&str, Granted) = ("attention_bias", Granted::Bool(false));
const NO_MLP_BIAS: (&str, Granted) = ("mlp_bias", Granted::Bool(false));
const NO_WINDOW: (&str, Granted) = ("use_sliding_window", Granted::Bool(false));
const SILU: &[&str] = &["silu", "swish"];
const TANH: &[&str] = &["gelu_new", "gelu_pytorch_tanh", "gelu_fast"];
/// The norm after attention is a norm of its own, not the feed-forward layer's.
const AFTER: &[Rule] = &[("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm")];

const LLAMA: Row = Row {
    family: "llama",
    writes: "llama",
    spellings: &[],
    norm: Norm::Rms(1e-6),
    rope: Some(PLAIN),
    head_dim: None,
    kv_heads: None,
    activation: SILU,
    steps: &[Step::TurnHeads],
    names: &[],
    granted: &[],
    own: keys::vocabulary_size,
};

pub(super) const ROWS: &[Row] = &[
    LLAMA,
    Row { family: "mistral", kv_heads: Some(8), own: keys::mistral, ..LLAMA },
    Row { family: "mixtral", norm: Norm::Rms(1e-5), own: keys::mixtral, ..LLAMA },
    Row { family: "granite", writes: "granite", own: keys::granite, ..LLAMA },
    Row {
        family: "smollm3",
        writes: "smollm3",
        granted: &[NO_BIAS, NO_MLP_BIAS, NO_WINDOW],
        own: keys::smollm3,
        ..LLAMA
    },
    Row { family: "qwen2", writes: "qwen2", steps: &[], granted: &[NO_WINDOW], own: keys::nothing, ..LLAMA },
    Row {
        family: "qwen3",
        writes: "qwen3",
        head_dim: Some(128),
        steps: &[],
        granted: &[NO_BIAS, NO_WINDOW],
        own: keys::nothing,
        ..LLAMA
    },
    Row {
        family: "qwen3_moe",
        writes: "qwen3_moe",
        steps: &[],
        granted: &[
            NO_BIAS,
            NO_WINDOW,
            ("mlp_only_layers", Granted::Nothing),
            ("norm_topk_prob", Granted::Bool(true)),
        ],
        own: keys::qwen3_moe,
        ..LLAMA
    },
    Row {
        family: "olmo2",
        writes: "olmo2",
        norm: Norm::Rms(1e-5),
        steps: &[],
        names: AFTER,
        granted: &[NO_BIAS],
        own: keys::nothing,
        ..LLAMA
    },
    Row { family: "phi3", writes: "phi3", norm: Norm::Rms(1e-5), steps: &[], own: keys::phi3, ..LLAMA },
    Row {
        family: "gemma2",
        writes: "gemma2",
        head_dim: Some(256),
        activation: TANH,
        steps: &[Step::NormsPlusOne],
        granted: &[NO_BIAS],
        own: keys::gemma2,
        ..LLAMA
    },
    Row {
        family: "gemma3_text",
        writes: "gemma3_text",
        rope: Some(Rotation { theta: 1e6, partial: 1.0 }),
        head_dim: Some(256),
        activation: TANH,
        steps: &[Step::NormsPlusOne],
        granted: &[NO_BIAS],
        own: keys::gemma3,
        ..LLAMA
    },
    Row {
        family: "cohere",
        writes: "cohere",
        norm: Norm::Layer(1e-5),
        rope: Some(Rotation { theta: 500_000.0, partial: 1.0 }),
        steps: &[],
        granted: &[NO_BIAS, ("use_qk_norm", Granted::Bool(false))],
        own: keys::cohere,
        ..LLAMA
    },
    Row {
        family: "stablelm",
        writes: "stablelm",
        norm: Norm::Layer(1e-5),
        rope: Some(Rotation { theta: 10000.0, partial: 0.25 }),
        steps: &[],
        own: keys::stablelm,
        ..LLAMA
    },
    Row {
        family: "starcoder2",
        writes: "starcoder2",
        norm: Norm::Layer(1e-5),
        activation: TANH,
        steps: &[],
        own: keys::starcoder2,
        ..LLAMA
    },
    Row {
        family: "gpt2",
        writes: "gpt2",
        spellings: &[
            ("n_embd", "hidden_size"),
            ("n_head", "num_attention_heads"),
            ("n_layer", "num_hidden_layers"),
            ("n_positions", "max_position_embeddings"),
            ("n_inner", "intermediate_size"),
            ("activation_function", "hidden_act"),
        ],
        norm: Norm::Layer(1e-5),
        rope: None,
        activation: TANH,
        steps: &[Step::TurnDense],
        granted: &[
            ("scale_attn_weights", Granted::Bool(true)),
            ("scale_attn_by_inverse_layer_idx", Granted::Bool(false)),
        ],
        own: keys::nothing,
        ..LLAMA
    },
    Row {
        family: "gpt_neox",
        writes: "gpt_neox",
        spellings: &[("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")],
        norm: Norm::Layer(1e-5),
        rope: Some(Rotation { theta: 10000.0, partial: 0.25 }),
        activation: &["gelu"],
        steps: &[Step::RegroupQkv],
        granted: &[("attention_bias", Granted::Bool(true))],
        own: keys::gpt_neox,
        ..LLAMA
    },
    Row {
        family: "gpt_oss",
        writes: "gpt_oss",
        norm: Norm::Rms(1e-5),
        rope: Some(Rotation { theta: 150_000.0, partial: 1.0 }),
        head_dim: Some(64),
        kv_heads: Some(8),
        steps: &[Step::SplitOssExperts, Step::SplitPackedOssExperts],
        names: AFTER,
        granted: &[("attention_bias", Granted::Bool(true))],
        own: keys::gpt_oss,
        ..LLAMA
    },
    Row {
        family: "deepseek_v3",
        writes: "deepseek_v3",
        steps: &[Step::SplitLatent],
        granted: &[NO_BIAS],
        own: keys::deepseek,
        ..LLAMA
    },
    Row {
        family: "mamba",
        writes: "mamba",
        norm: Norm::Rms(1e-5),
        rope: None,
        steps: &[Step::MambaState],
        granted: &[
            ("use_bias", Granted::Bool(false)),
            ("use_conv_bias", Granted::Bool(true)),
            ("use_dt_b_c_norm", Granted::Bool(false)),
        ],
        own: keys::mamba,
        ..LLAMA
    },
    Row {
        family: "bert",
        writes: "bert",
        norm: Norm::Layer(1e-12),
        rope: None,
        activation: &["gelu"],
        steps: &[],
        own: keys::bert,
        ..LLAMA
    },
];
