//! From the vectors of a sequence's tokens to one vector.

use mlxcel_ir::{ReduceOp, ScatterMode, Tensor};
use serde_json::Value;

use crate::error::ModelError;
use crate::net::Net;

/// How the vectors of a sequence's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Mean,
    /// That of the first token.
    Cls,
}

impl Pooling {
    /// From GGUF's number, or from the settings that sentence-transformers puts beside a model.
    pub fn read(net: &Net<'_>, number: Option<u64>) -> Result<Pooling, ModelError> {
        match number {
            Some(1) => return Ok(Pooling::Mean),
            Some(2) => return Ok(Pooling::Cls),
            Some(n) => {
                return Err(ModelError::field("pooling_type", format!("pooling {n} is not supported")));
            }
            None => {}
        }
        let settings = net.json_beside("1_Pooling/config.json")?.unwrap_or_default();
        let modes = settings
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(field, on)| field.starts_with("pooling_mode_") && on.as_bool() == Some(true));
        let modes: Vec<&str> = modes.map(|(field, _)| field.as_str()).collect();
        match (&modes[..], settings.get("pooling_mode").and_then(Value::as_str)) {
            (["pooling_mode_mean_tokens"], None) | ([], Some("mean") | None) => Ok(Pooling::Mean),
            (["pooling_mode_cls_token"], None) | ([], Some("cls")) => Ok(Pooling::Cls),
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
            Pooling::Cls => x.gather(counts.cumulative(ReduceOp::Sum, 0) - counts, 0),
            Pooling::Mean => {
                let zeros = x.number(0.0).broadcast(vec![counts.dim(0), x.dim(1)]);
                let sums = zeros.scatter(net.inputs.seq_ids, x, ScatterMode::Add);
                sums / counts.max(counts.number(1.0)).cast(x.dtype()).unsqueeze(1)
            }
        }
    }
}
