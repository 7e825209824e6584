//! From the last hidden state to logits and a sampled token.

use mlxcel_ir::{DType, Tensor, step};

use super::Pooling;
use crate::net::{Bias, Net};

/// The output layer.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Where the matrix lies: the embedding's name if it is shared.
    pub name: &'a str,
    pub vocabulary: usize,
    /// Multiplies the logits.
    pub scale: f64,
    pub softcap: Option<f64>,
}

impl<'a> Head<'a> {
    /// A plain output layer: `lm_head`, or the embedding where it is shared.
    pub fn new(tied: bool, embedding: &'a str, vocabulary: usize) -> Self {
        Head { name: if tied { embedding } else { "lm_head" }, vocabulary, scale: 1.0, softcap: None }
    }
}

/// The rows whose logits are wanted; everything after the last layer needs only these. An embedding needs all.
pub fn wanted<'g>(net: &Net<'g>, x: Tensor<'g>) -> Tensor<'g> {
    if net.embed.is_some() {
        return x;
    }
    x.gather(net.inputs.logit_rows, 0)
}

/// Declares the outputs `logits` and `sampled` from normed hidden states; `embeddings` alone where they are wanted.
pub fn logits<'g>(net: &Net<'g>, x: Tensor<'g>, head: Head<'_>) {
    if let Some(options) = net.embed {
        let pooling = options.pooling.unwrap_or(Pooling::Last);
        return pooling.embeddings(net, x.cast(DType::F32));
    }
    let mut y = net.linear(head.name, x, head.vocabulary, Bias::No).cast(DType::F32);
    if head.scale != 1.0 {
        y = y * head.scale;
    }
    if let Some(cap) = head.softcap {
        y = (y / cap).tanh() * cap;
    }
    net.b.output(step::LOGITS, y);
    net.b.output(step::SAMPLED, y.sample(net.inputs.sampling));
}
