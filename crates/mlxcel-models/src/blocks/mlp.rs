//! Feed-forward layers.

use mlxcel_ir::{Activation, Tensor};

use crate::net::{Bias, Net, width};

/// Width, activation and biases of a feed-forward layer.
#[derive(Clone, Copy, Debug)]
pub struct Mlp {
    pub width: usize,
    pub activation: Activation,
    pub bias: Bias,
}

/// `down_proj(act(gate_proj x) * up_proj x)`.
pub fn gated_mlp<'g>(net: &Net<'g>, x: Tensor<'g>, m: Mlp) -> Tensor<'g> {
    let gate = net.linear("gate_proj", x, m.width, m.bias);
    let up = net.linear("up_proj", x, m.width, m.bias);
    net.linear("down_proj", gate.activation(m.activation) * up, width(x), m.bias)
}

/// `second(act(first x))`.
pub fn mlp<'g>(net: &Net<'g>, x: Tensor<'g>, [first, second]: [&str; 2], m: Mlp) -> Tensor<'g> {
    let hidden = net.linear(first, x, m.width, m.bias).activation(m.activation);
    net.linear(second, hidden, width(x), m.bias)
}
