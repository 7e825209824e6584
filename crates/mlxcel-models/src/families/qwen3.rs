//! Qwen3 <https://arxiv.org/abs/2505.09388>: Llama with a norm on each head's query and key.

use serde_json::Value;

use super::qwen2::Window;
use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Decoder, HeadNorm, decoder, gated_mlp, logits};
use crate::config::{Common, Tied, read};
use crate::error::ModelError;
use crate::net::Net;
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "qwen3", names: &[], interleaved: false }),
    ..Family::new("qwen3", build)
};

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let mut c = Common::read(net, config)?;
    c.head_dim = c.head_dim.or(Some(128));
    let eps = c.eps(1e-6);
    let window: Window = read(config)?;
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let mlp = c.mlp()?;
    let x = decoder(
        net,
        &Decoder {
            common: &c,
            eps,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention: &|i| Attention {
                rope: Some(&rope),
                window: window.of(&c, i),
                head_norm: Some(HeadNorm::Rms(eps)),
                ..c.attention(i)
            },
            mlp: &|layer, _, x| gated_mlp(&layer.at("mlp"), x, mlp),
        },
    );
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
