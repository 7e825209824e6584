//! Mistral <https://arxiv.org/abs/2310.06825>: Llama with a sliding window on every layer.

use serde_json::Value;

use super::{Built, Family};
use crate::blocks::{Attention, Decoder, decoder, gated_mlp, logits};
use crate::config::{Common, Tied};
use crate::error::ModelError;
use crate::net::Net;
use crate::rope::{Rope, RopeContext};

/// GGUF files of Mistral call themselves llama.
pub(super) const FAMILY: Family = Family::new("mistral", build);

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let mut c = Common::read(net, config)?;
    if config.get("sliding_window").is_none() {
        c.sliding_window = Some(4096);
    }
    c.num_key_value_heads = c.num_key_value_heads.or(Some(8));
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let mlp = c.mlp()?;
    let x = decoder(
        net,
        &Decoder {
            common: &c,
            eps: c.eps(1e-6),
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention: &|i| Attention { rope: Some(&rope), window: c.window(i, |_| true), ..c.attention(i) },
            mlp: &|layer, _, x| gated_mlp(&layer.at("mlp"), x, mlp),
        },
    );
    logits(net, x, c.head(Tied::No));
    Ok(Built::new(&c, &[&rope]))
}
