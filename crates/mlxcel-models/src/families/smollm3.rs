//! SmolLM3 <https://huggingface.co/blog/smollm3>: Llama without rotation on every fourth layer.

use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf};
use crate::blocks::{Attention, Decoder, decoder, gated_mlp, logits};
use crate::config::{Common, Tied, read};
use crate::error::ModelError;
use crate::net::Net;
use crate::rope::{Rope, RopeContext};

pub(super) const FAMILY: Family = Family {
    gguf: Some(Gguf { architecture: "smollm3", names: &[], interleaved: true }),
    ..Family::new("smollm3", build)
};

#[derive(Deserialize)]
struct Config {
    /// 1 where a layer rotates.
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    #[serde(default)]
    use_sliding_window: bool,
}

impl Config {
    fn rotates(&self, i: usize) -> bool {
        match &self.no_rope_layers {
            Some(layers) => layers.get(i).is_none_or(|&r| r != 0),
            None => !(i + 1).is_multiple_of(self.no_rope_layer_interval.unwrap_or(4)),
        }
    }
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    if own.no_rope_layers.as_ref().is_some_and(|l| l.len() != c.num_hidden_layers) {
        return Err(ModelError::field("no_rope_layers", format!("expected {} entries", c.num_hidden_layers)));
    }
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
                rope: own.rotates(i).then_some(&rope),
                window: c.window(i, |i| !own.rotates(i)).filter(|_| own.use_sliding_window),
                ..c.attention(i)
            },
            mlp: &|layer, _, x| gated_mlp(&layer.at("mlp"), x, mlp),
        },
    );
    logits(net, x, c.head(Tied::Yes));
    Ok(Built::new(&c, &[&rope]))
}
