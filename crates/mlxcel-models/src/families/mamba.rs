//! Mamba <https://arxiv.org/abs/2312.00752>: no attention, but a selective state space per channel behind a short
//! convolution. Each sequence keeps one slot of state per layer.

use mlxcel_ir::{Activation, DType, Op, Tensor};
use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf, ModelKind};
use crate::blocks::{Head, logits, recurrent, wanted};
use crate::config::{activation, check_layers, check_only, check_sizes, read};
use crate::error::ModelError;
use crate::net::{Bias, Net, width};

pub(super) const FAMILY: Family = Family {
    names: &[("backbone.embedding", "backbone.embeddings")],
    ignore: &[],
    gguf: Some(Gguf {
        architecture: "mamba",
        names: &[
            ("token_embd", "backbone.embeddings"),
            ("output_norm", "backbone.norm_f"),
            ("blk.{}.attn_norm", "backbone.layers.{}.norm"),
            ("blk.{}.ssm_in", "backbone.layers.{}.mixer.in_proj"),
            ("blk.{}.ssm_conv1d", "backbone.layers.{}.mixer.conv1d"),
            ("blk.{}.ssm_x", "backbone.layers.{}.mixer.x_proj"),
            ("blk.{}.ssm_dt", "backbone.layers.{}.mixer.dt_proj"),
            ("blk.{}.ssm_a", "backbone.layers.{}.mixer.A"),
            ("blk.{}.ssm_d", "backbone.layers.{}.mixer.D"),
            ("blk.{}.ssm_out", "backbone.layers.{}.mixer.out_proj"),
        ],
        interleaved: false,
    }),
    ..Family::new("mamba", build)
};

/// Nothing in the model counts positions; this bounds what a caller may ask for.
const CONTEXT: usize = 1 << 20;

#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    intermediate_size: Option<usize>,
    expand: Option<usize>,
    state_size: Option<usize>,
    conv_kernel: Option<usize>,
    time_step_rank: Option<Value>,
    #[serde(alias = "rms_norm_eps")]
    layer_norm_epsilon: Option<f64>,
    hidden_act: Option<String>,
    #[serde(default)]
    use_bias: bool,
    use_conv_bias: Option<bool>,
    residual_in_fp32: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

/// Widths and settings of a mixer.
struct Mixer {
    inner: usize,
    states: usize,
    kernel: usize,
    rank: usize,
    /// After the convolution; the gate's is always silu.
    activation: Activation,
    bias: Bias,
    conv_bias: Bias,
}

impl Mixer {
    fn new(c: &Config) -> Result<Mixer, ModelError> {
        let rank = match &c.time_step_rank {
            None => c.hidden_size.div_ceil(16),
            Some(v) if v == "auto" => c.hidden_size.div_ceil(16),
            Some(v) => v.as_u64().unwrap_or(0) as usize,
        };
        let by_expansion = c.expand.map(|e| e.saturating_mul(c.hidden_size));
        let mixer = Mixer {
            inner: by_expansion.or(c.intermediate_size).unwrap_or(2 * c.hidden_size),
            states: c.state_size.unwrap_or(16),
            kernel: c.conv_kernel.unwrap_or(4),
            rank,
            activation: activation("hidden_act", c.hidden_act.as_deref().unwrap_or("silu"))?,
            bias: c.use_bias.into(),
            conv_bias: c.use_conv_bias.unwrap_or(true).into(),
        };
        check_sizes(&[
            ("intermediate_size", mixer.inner),
            ("state_size", mixer.states),
            ("conv_kernel", mixer.kernel),
            ("time_step_rank", mixer.rank),
        ])?;
        Ok(mixer)
    }
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    check_only(config, "use_dt_b_c_norm", false)?;
    let c: Config = read(config)?;
    check_sizes(&[("vocab_size", c.vocab_size), ("hidden_size", c.hidden_size)])?;
    check_layers(net, "num_hidden_layers", c.num_hidden_layers)?;
    let (mixer, eps) = (Mixer::new(&c)?, c.layer_norm_epsilon.unwrap_or(1e-5));
    let stream = if c.residual_in_fp32.unwrap_or(true) { DType::F32 } else { net.dtype };

    let model = net.at("backbone");
    let mut x = model.embedding("embeddings", net.inputs.tokens, (c.vocab_size, c.hidden_size)).cast(stream);
    for i in 0..c.num_hidden_layers {
        let layer = model.at(&format!("layers.{i}"));
        let h = layer.rms_norm("norm", x, eps).cast(net.dtype);
        x = x + mix(&layer.at("mixer"), &mixer, i, h).cast(stream);
    }
    let x = model.rms_norm("norm_f", wanted(net, x), eps).cast(net.dtype);
    let tied = c.tie_word_embeddings.unwrap_or(true);
    logits(net, x, Head::new(tied, "backbone.embeddings", c.vocab_size));
    let (kind, vocab_size) = (ModelKind::Generate, c.vocab_size);
    let max_context = CONTEXT;
    Ok(Built { kind, vocab_size, max_context, recompute_past: None, lengths_matter_past: None })
}

fn mix<'g>(net: &Net<'g>, m: &Mixer, layer: usize, x: Tensor<'g>) -> Tensor<'g> {
    let hidden = width(x);
    let [x, gate] = net.linear("in_proj", x, 2 * m.inner, m.bias).cut_last([m.inner; 2]);
    let conv = net.at("conv1d");
    // MLX and GGUF order the axes of length one differently.
    let layouts = [vec![m.inner, 1, m.kernel], vec![m.inner, m.kernel, 1], vec![m.inner, m.kernel]];
    let stored = conv.shape_of("weight").filter(|s| layouts.contains(s));
    let [usual, _, seen] = &layouts;
    let weight = conv.tensor_viewed("weight", stored.as_ref().unwrap_or(usual), seen).cast(x.dtype());
    let bias = match m.conv_bias {
        Bias::Yes => conv.tensor("bias", &[m.inner]).cast(x.dtype()),
        Bias::No => x.number(0.0).broadcast(vec![m.inner.into()]),
    };
    let x = recurrent(net, &format!("conv_state.{layer}"), Op::CausalConv, &[x, weight, bias], m.kernel - 1);
    let x = x.activation(m.activation);

    let [dt, b, c] =
        net.linear("x_proj", x, m.rank + 2 * m.states, Bias::No).cut_last([m.rank, m.states, m.states]);
    let dt = net.linear("dt_proj", dt, m.inner, Bias::Yes).activation(Activation::Softplus);
    // GGUF stores what the logarithm stands for.
    let a = if net.has("A") {
        net.tensor("A", &[m.inner, m.states])
    } else {
        -net.tensor("A_log", &[m.inner, m.states]).cast(DType::F32).exp()
    };
    let operands = [x, dt, a, b, c, net.tensor("D", &[m.inner])].map(|t| t.cast(DType::F32));
    let y = recurrent(net, &format!("ssm_state.{layer}"), Op::SelectiveScan, &operands, m.states);
    net.linear("out_proj", y.cast(gate.dtype()) * gate.activation(Activation::Silu), hidden, m.bias)
}
