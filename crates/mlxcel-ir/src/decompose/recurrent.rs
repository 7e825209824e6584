//! Recurrent layers as a scan over the tokens of the step. The carried value is the whole state pool, so a ragged
//! batch needs nothing special: each token reads and writes the slot of its sequence.

use crate::builder::{Builder, Tensor};
use crate::dtype::DType;
use crate::op::{ReduceOp, ScatterMode};

/// The state of the token's slot, or zeros at the start of a sequence: `[1, …]` becomes `[…]`.
fn load<'g>(state: Tensor<'g>, position: Tensor<'g>, slot: Tensor<'g>) -> Tensor<'g> {
    let row = state.gather(slot, 0);
    let start = position.eq(position.number(0.0));
    start.select(row.number(0.0), row)
}

fn store<'g>(state: Tensor<'g>, slot: Tensor<'g>, row: Tensor<'g>) -> Tensor<'g> {
    state.scatter(slot.unsqueeze(0), row.unsqueeze(0), ScatterMode::Set)
}

/// `h = exp(dt·a)·h + dt·b·x`, `y = h·c + d·x` for each token and channel.
pub(super) fn selective_scan<'g>(b: &'g Builder, x: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    let [input, dt, a, b_in, c_out, d, state, positions, slots] = x else {
        unreachable!("the verifier counted nine operands")
    };
    let positions = positions.cast(DType::I32);
    let slots = slots.cast(DType::I32);
    let scanned = [*input, *dt, *b_in, *c_out, positions, slots];
    let mut results = b.scan(&[*state], &scanned, &[*a, *d], |_, x| {
        let [state, input, dt, b_in, c_out, position, slot, a, d] = x else {
            unreachable!("the region declares nine arguments")
        };
        let dt = dt.unsqueeze(1); // [channels, 1]
        let h =
            load(*state, *position, *slot) * (dt * *a).exp() + dt * b_in.unsqueeze(0) * input.unsqueeze(1);
        let y = (h * c_out.unsqueeze(0)).reduce(ReduceOp::Sum, &[1]) + *d * *input;
        vec![store(*state, *slot, h), y]
    });
    results.reverse();
    results
}

/// The state holds the last `k-1` inputs of each channel, oldest first.
pub(super) fn causal_conv<'g>(b: &'g Builder, x: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    let [input, w, bias, state, positions, slots] = x else {
        unreachable!("the verifier counted six operands")
    };
    let positions = positions.cast(DType::I32);
    let slots = slots.cast(DType::I32);
    let k = w.dim(1).as_fixed().expect("the kernel is fixed");
    let mut results = b.scan(&[*state], &[*input, positions, slots], &[*w, *bias], |b, x| {
        let [state, input, position, slot, w, bias] = x else {
            unreachable!("the region declares six arguments")
        };
        let past = load(*state, *position, *slot);
        let window = b.concat(&[past, input.unsqueeze(1)], 1); // [channels, k]
        let y = (window * *w).reduce(ReduceOp::Sum, &[1]) + *bias;
        vec![store(*state, *slot, window.slice(1, 1, k)), y]
    });
    results.reverse();
    results
}
