//! Granite 3 <https://github.com/ibm-granite/granite-3.0-language-models>: Llama with multipliers on embeddings,
//! attention, residuals and logits.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Decoder, Head, decoder, gated_mlp, logits};
use crate::config::{Common, Tied, read};
use crate::error::ModelError;
use crate::net::Net;
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "granite", names: &[], interleaved: true }),
    ..Family::new("granite", build)
};

#[derive(Deserialize)]
struct Config {
    #[serde(default = "one")]
    embedding_multiplier: f64,
    #[serde(default = "one")]
    attention_multiplier: f64,
    #[serde(default = "one")]
    residual_multiplier: f64,
    /// GGUF keeps it under the name other families use for a factor; here it divides.
    #[serde(default = "one", alias = "logit_scale")]
    logits_scaling: f64,
}

fn one() -> f64 {
    1.0
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    if own.logits_scaling == 0.0 {
        return Err(ModelError::field("logits_scaling", "logits cannot be divided by zero"));
    }
    let rope = Rope::read(config, None, RopeContext::of(&c))?;
    let mlp = c.mlp()?;
    let x = decoder(
        net,
        &Decoder {
            common: &c,
            eps: c.eps(1e-6),
            embedding_scale: own.embedding_multiplier,
            residual_scale: own.residual_multiplier,
            attention: &|i| Attention {
                rope: Some(&rope),
                scale: own.attention_multiplier,
                ..c.attention(i)
            },
            mlp: &|layer, _, x| gated_mlp(&layer.at("mlp"), x, mlp),
        },
    );
    logits(net, x, Head { scale: 1.0 / own.logits_scaling, ..c.head(Tied::No) });
    Ok(Built::new(&c, &[&rope]))
}
