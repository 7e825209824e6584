//! Qwen2 and Qwen2.5 <https://arxiv.org/abs/2412.15115>: Llama with biases on queries, keys and values.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Decoder, decoder, gated_mlp, logits};
use crate::config::{Common, Tied, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "qwen2", names: &[], interleaved: false }),
    ..Family::new("qwen2", build)
};

/// The window that Qwen puts on its upper layers, off unless asked for.
#[derive(Deserialize)]
pub(super) struct Window {
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<usize>,
}

impl Window {
    pub(super) fn of(&self, c: &Common, i: usize) -> Option<usize> {
        let first = self.max_window_layers.unwrap_or(28);
        c.window(i, |i| i >= first).filter(|_| self.use_sliding_window)
    }
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let window: Window = read(config)?;
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let mlp = c.mlp()?;
    let x = decoder(
        net,
        &Decoder {
            common: &c,
            eps: c.eps(1e-6),
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention: &|i| Attention {
                rope: Some(&rope),
                window: window.of(&c, i),
                qkv_bias: Bias::Yes,
                ..Attention::new(i, c.heads())
            },
            mlp: &|layer, _, x| gated_mlp(&layer.at("mlp"), x, mlp),
        },
    );
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
