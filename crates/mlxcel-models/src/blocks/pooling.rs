//! From the vectors of a sequence's tokens to one vector.

use mlxcel_ir::{ReduceOp, ScatterMode, Tensor, step};
use serde_json::Value;

use crate::error::ModelError;
use crate::net::Net;

/// How the vectors of a sequence's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
}

/// How texts become vectors, where it is not left to the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedOptions {
    /// `None` for what the checkpoint says.
    pub pooling: Option<Pooling>,
    /// Whether vectors are brought to length 1.
    pub normalize: bool,
}

impl Pooling {
    /// From GGUF's number, or from the settings that sentence-transformers puts beside a model; `None` where neither
    /// says anything.
    pub fn read(net: &Net<'_>, number: Option<u64>) -> Result<Option<Pooling>, ModelError> {
        match number {
            Some(1) => return Ok(Some(Pooling::Mean)),
            Some(2) => return Ok(Some(Pooling::Cls)),
            Some(3) => return Ok(Some(Pooling::Last)),
            Some(n) => {
                return Err(ModelError::field("pooling_type", format!("pooling {n} is not supported")));
            }
            None => {}
        }
        check_modules(net)?;
        let settings = net.json_beside("1_Pooling/config.json")?.unwrap_or_default();
        let modes = settings
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(field, on)| field.starts_with("pooling_mode_") && on.as_bool() == Some(true));
        let modes: Vec<&str> = modes.map(|(field, _)| field.as_str()).collect();
        match (&modes[..], settings.get("pooling_mode").and_then(Value::as_str)) {
            ([], None) => Ok(None),
            (["pooling_mode_mean_tokens"], None) | ([], Some("mean")) => Ok(Some(Pooling::Mean)),
            (["pooling_mode_cls_token"], None) | ([], Some("cls")) => Ok(Some(Pooling::Cls)),
            (["pooling_mode_lasttoken"], None) | ([], Some("lasttoken")) => Ok(Some(Pooling::Last)),
            (several, named) => {
                let wanted = named.map_or_else(|| several.join(" with "), str::to_string);
                Err(ModelError::field("pooling_mode", format!("{wanted} is not supported")))
            }
        }
    }

    /// `x [tokens, hidden]` to `[sequences, hidden]`.
    pub fn apply<'g>(self, net: &Net<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let counts = net.inputs.query_lens;
        match self {
            Pooling::Last => x.gather(counts.cumulative(ReduceOp::Sum, 0) - counts.number(1.0), 0),
            Pooling::Cls => x.gather(counts.cumulative(ReduceOp::Sum, 0) - counts, 0),
            Pooling::Mean => {
                let zeros = x.number(0.0).broadcast(vec![counts.dim(0), x.dim(1)]);
                let sums = zeros.scatter(net.inputs.seq_ids, x, ScatterMode::Add);
                sums / counts.max(counts.number(1.0)).cast(x.dtype()).unsqueeze(1)
            }
        }
    }

    /// Declares the output `embeddings` from the hidden states of all tokens, in f32.
    pub fn embeddings<'g>(self, net: &Net<'g>, x: Tensor<'g>) {
        let y = self.apply(net, x);
        if net.embed.is_some_and(|options| !options.normalize) {
            return net.b.output(step::EMBEDDINGS, y);
        }
        let length = (y * y).reduce_keep(ReduceOp::Sum, 1).sqrt();
        net.b.output(step::EMBEDDINGS, y / length.max(length.number(1e-12)));
    }
}

/// Refuses a model of sentence-transformers with parts that are not computed here, such as a last dense layer.
fn check_modules(net: &Net<'_>) -> Result<(), ModelError> {
    let modules = net.json_beside("modules.json")?.unwrap_or_default();
    let types = modules.as_array().into_iter().flatten().filter_map(|module| module.get("type")?.as_str());
    let names = types.map(|name| name.rsplit('.').next().unwrap_or(name));
    match names.into_iter().find(|name| !["Transformer", "Pooling", "Normalize"].contains(name)) {
        None => Ok(()),
        Some(name) => Err(ModelError::field("modules.json", format!("module {name} is not supported"))),
    }
}
