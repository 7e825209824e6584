//! Ops that change nothing, exactly: for floats also with infinities, NaN and −0. `x + 0` is not among them, since
//! −0 + 0 is 0; `x − 0` is.

use crate::graph::{Graph, Node, Value};
use crate::op::{BinaryOp, Op};
use crate::shape::Dim;
use crate::tensor::HostTensor;

/// What may stand for a node.
pub(super) enum Simpler {
    /// A value that exists already.
    Same(Value),
    /// Another op on other operands.
    Op(Op, Vec<Value>),
}

/// Something simpler than `node` with operands `inputs` of `graph`; `known` gives the values of constants.
pub(super) fn simpler<'k>(
    graph: &Graph,
    node: &Node,
    inputs: &[Value],
    known: impl Fn(Value) -> Option<&'k HostTensor>,
) -> Option<Simpler> {
    let &first = inputs.first()?;
    let before = graph.node(first);
    let unchanged = match &node.op {
        Op::Binary(b) => neutral(*b, inputs, &known),
        Op::Select => branch(inputs, &known),
        Op::Cast(_) => Some(first),
        Op::Reshape { shape } => {
            if let Op::Reshape { .. } = before.op {
                let origin = before.inputs[0];
                return Some(if &graph.ty(origin).shape == shape {
                    Simpler::Same(origin)
                } else {
                    Simpler::Op(node.op.clone(), vec![origin])
                });
            }
            Some(first)
        }
        Op::Broadcast { .. } => Some(first),
        Op::Transpose { perm } => {
            if let Op::Transpose { perm: inner } = &before.op {
                let both: Vec<usize> = perm.iter().map(|&p| inner[p]).collect();
                return Some(transpose(both, before.inputs[0]));
            }
            perm.is_sorted().then_some(first)
        }
        Op::Slice { axis, start, end, step: 1 } => {
            (*start == Dim::fixed(0) && *end == graph.ty(first).shape[*axis]).then_some(first)
        }
        Op::Concat { .. } => (inputs.len() == 1).then_some(first),
        Op::Pad { low, high } => low.iter().chain(high).all(|&n| n == 0).then_some(first),
        Op::Reduce { axes, .. } => axes.is_empty().then_some(first),
        _ => None,
    };
    unchanged.filter(|&v| *graph.ty(v) == node.types[0]).map(Simpler::Same)
}

fn transpose(perm: Vec<usize>, x: Value) -> Simpler {
    if perm.is_sorted() { Simpler::Same(x) } else { Simpler::Op(Op::Transpose { perm }, vec![x]) }
}

/// The other operand, if one of them is neutral.
fn neutral<'k>(
    op: BinaryOp,
    inputs: &[Value],
    known: &impl Fn(Value) -> Option<&'k HostTensor>,
) -> Option<Value> {
    let is = |v: Value, number: f64| known(v).is_some_and(|t| all(t, number));
    let zero = |v: Value, sign: f64| match known(v) {
        Some(t) if t.dtype().is_float() => all(t, 0.0_f64.copysign(sign)),
        Some(t) => all(t, 0.0),
        None => false,
    };
    let (a, b) = (inputs[0], inputs[1]);
    match op {
        BinaryOp::Mul if is(b, 1.0) => Some(a),
        BinaryOp::Mul if is(a, 1.0) => Some(b),
        BinaryOp::Div if is(b, 1.0) => Some(a),
        BinaryOp::Sub if zero(b, 1.0) => Some(a),
        BinaryOp::Add if zero(b, -1.0) => Some(a),
        BinaryOp::Add if zero(a, -1.0) => Some(b),
        _ => None,
    }
}

/// The branch that a select with an all-true or all-false condition takes.
fn branch<'k>(inputs: &[Value], known: &impl Fn(Value) -> Option<&'k HostTensor>) -> Option<Value> {
    let condition = known(inputs[0])?;
    match (all(condition, 1.0), all(condition, 0.0)) {
        (true, false) => Some(inputs[1]),
        (false, true) => Some(inputs[2]),
        _ => None,
    }
}

/// Whether every element is exactly `number`, sign of zero included.
fn all(t: &HostTensor, number: f64) -> bool {
    t.to_f64().iter().all(|v| v.to_bits() == number.to_bits())
}
