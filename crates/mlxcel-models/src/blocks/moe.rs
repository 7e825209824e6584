//! Mixtures of experts. Checkpoints keep experts one by one (as published), stacked (MLX, GGUF), or stacked with
//! gate and up joined (transformers 5); all three become the same graph without copying a weight.

use mlxcel_ir::{Activation, ReduceOp, RouteSpec, Tensor};

use crate::net::{Net, width};

/// The shape of a layer of experts.
#[derive(Clone, Copy, Debug)]
pub struct Moe {
    pub experts: usize,
    /// Inner width of one expert.
    pub width: usize,
    pub activation: Activation,
}

/// The first matrices of the experts, as the checkpoint has them.
#[derive(Clone, Copy, Debug)]
pub enum Experts<'g> {
    Separate {
        gate: Tensor<'g>,
        up: Tensor<'g>,
    },
    /// Rows of gate, then rows of up.
    Joined(Tensor<'g>),
}

/// Names of one expert's matrices where experts are published one by one.
pub type ExpertNames<'a> = [&'a str; 3];

/// Routes by `router` logits and sums the chosen experts' outputs. `net` is where the experts live.
pub fn moe<'g>(
    net: &Net<'g>,
    x: Tensor<'g>,
    (logits, correction): (Tensor<'g>, Option<Tensor<'g>>),
    route: RouteSpec,
    (shape, names): (Moe, ExpertNames<'_>),
) -> Tensor<'g> {
    let [weights, ids] = logits.moe_route(route, correction);
    let hidden = width(x);
    let (first, down) = expert_weights(net, shape, hidden, names);
    let y = expert_mlp(x, ids, first, down, shape);
    (y * weights.cast(y.dtype()).unsqueeze(2)).reduce(ReduceOp::Sum, &[1])
}

/// Each token through its chosen experts: `[tokens, k, hidden]`.
pub fn expert_mlp<'g>(
    x: Tensor<'g>,
    ids: Tensor<'g>,
    first: Experts<'g>,
    down: Tensor<'g>,
    shape: Moe,
) -> Tensor<'g> {
    let x = x.unsqueeze(1); // [tokens, 1, hidden]
    let (gate, up) = match first {
        Experts::Separate { gate, up } => (x.expert_linear(gate, ids, None), x.expert_linear(up, ids, None)),
        Experts::Joined(both) => {
            let [gate, up] = x.expert_linear(both, ids, None).cut_last([shape.width, shape.width]);
            (gate, up)
        }
    };
    (gate.activation(shape.activation) * up).expert_linear(down, ids, None)
}

/// The experts' matrices, gate and up first and then down, from whichever layout the checkpoint has.
pub fn expert_weights<'g>(
    net: &Net<'g>,
    m: Moe,
    hidden: usize,
    names: ExpertNames<'_>,
) -> (Experts<'g>, Tensor<'g>) {
    let (inner, outer) = ([m.width, hidden], [hidden, m.width]);
    let stacked = |net: &Net<'g>, name: &str, [rows, columns]: [usize; 2]| {
        net.at(name).tensor("weight", &[m.experts, rows, columns])
    };
    let one_by_one = |name: &str, shape: [usize; 2]| {
        let pieces: Vec<String> = (0..m.experts).map(|e| format!("experts.{e}.{name}.weight")).collect();
        net.stack(&format!("experts.{name}"), &pieces, &shape)
    };
    let separate = |gate, up| Experts::Separate { gate, up };
    if net.has("experts.gate_up_proj") {
        let joined = net.tensor("experts.gate_up_proj", &[m.experts, 2 * m.width, hidden]);
        let down = net.tensor("experts.down_proj", &[m.experts, hidden, m.width]);
        (Experts::Joined(joined), down)
    } else if net.has("switch_mlp.gate_proj.weight") {
        let s = net.at("switch_mlp");
        (
            separate(stacked(&s, "gate_proj", inner), stacked(&s, "up_proj", inner)),
            stacked(&s, "down_proj", outer),
        )
    } else {
        let [gate, up, down] = names;
        (separate(one_by_one(gate, inner), one_by_one(up, inner)), one_by_one(down, outer))
    }
}
