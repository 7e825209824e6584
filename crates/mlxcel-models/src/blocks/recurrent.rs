//! Layers whose memory is one slot of state per sequence.

use mlxcel_ir::{Op, Tensor};

use crate::net::Net;

/// A recurrent op with the state it declares: per slot, `width` numbers for every channel of the first operand.
pub fn recurrent<'g>(net: &Net<'g>, name: &str, op: Op, operands: &[Tensor<'g>], width: usize) -> Tensor<'g> {
    let x = operands[0];
    let state = net.b.state(name, x.dtype(), vec!["slots".into(), x.dim(1), width.into()]);
    let results = net.b.apply(op, &[operands, &[state, net.inputs.positions, net.inputs.slot_ids]].concat());
    // There are no results once the builder has recorded an error.
    let [y, next] = results[..] else { return x };
    net.b.update(name, next);
    y
}
