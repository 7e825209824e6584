//! Llama 2 and 3 <https://arxiv.org/abs/2407.21783>, and what is built like them.

use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Decoder, decoder, gated_mlp, logits};
use crate::config::{Common, Tied};
use crate::error::ModelError;
use crate::net::Net;
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "llama", names: &[], interleaved: true }),
    ..Family::new("llama", build)
};

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let mlp = c.mlp()?;
    let x = decoder(
        net,
        &Decoder {
            common: &c,
            eps: c.eps(1e-6),
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention: &|i| Attention { rope: Some(&rope), ..c.attention(i) },
            mlp: &|layer, _, x| gated_mlp(&layer.at("mlp"), x, mlp),
        },
    );
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
