//! Result types from operand types: the one place where the typing rules of the ops are written.
//!
//! A rule returns its complaint as a sentence; [`crate::Graph::push`] adds the op, the node and the operand types.

mod composite;
mod control;
mod movement;

use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::{BinaryOp, Op, UnaryOp};
use crate::shape::{Dim, Shape, Type};

pub(crate) type Inferred = Result<Vec<Type>, String>;

/// The types of the results of `op`, or what is wrong with its operands.
pub(crate) fn infer(op: &Op, x: &[&Type], regions: &[Graph]) -> Inferred {
    if let Some(n) = arity(op) {
        ensure(x.len() == n, || format!("takes {n} operands, not {}", x.len()))?;
    }
    ensure(finite(op), || "an attribute is not a finite number".into())?;
    match op {
        Op::If | Op::While { .. } | Op::Scan { .. } | Op::Fused => return control::infer(op, x, regions),
        _ => ensure(regions.is_empty(), || "takes no region".into())?,
    }
    for t in x {
        let packed_ok = matches!(
            op,
            Op::Dequantize { .. }
                | Op::Linear { .. }
                | Op::Embedding { .. }
                | Op::ExpertLinear { .. }
                | Op::Concat { axis: 0 }
        );
        ensure(packed_ok || !t.dtype.is_quant(), || format!("does not take packed operands such as {t}"))?;
    }
    if op.is_composite() {
        return composite::infer(op, x);
    }
    match op {
        Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Constant(_) => leaf(op),
        Op::Iota { .. } | Op::Size { .. } => leaf(op),
        Op::Unary(u) => {
            let logical = *u == UnaryOp::Not;
            let numeric_int = matches!(u, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign);
            let ok = if logical {
                !x[0].dtype.is_float()
            } else {
                x[0].dtype.is_float() || (numeric_int && x[0].dtype.is_int())
            };
            ensure(ok, || format!("{u:?} is not defined for {}", x[0].dtype))?;
            one(x[0].clone())
        }
        Op::Binary(b) => {
            same_dtype(x[0], x[1])?;
            binary_dtype(*b, x[0].dtype)?;
            one(Type::new(x[0].dtype, broadcast(&x[0].shape, &x[1].shape)?))
        }
        Op::Compare(_) => {
            same_dtype(x[0], x[1])?;
            one(Type::new(DType::Bool, broadcast(&x[0].shape, &x[1].shape)?))
        }
        Op::Select => {
            ensure(x[0].dtype == DType::Bool, || format!("the condition is {}, not bool", x[0].dtype))?;
            same_dtype(x[1], x[2])?;
            let shape = broadcast(&broadcast(&x[0].shape, &x[1].shape)?, &x[2].shape)?;
            one(Type::new(x[1].dtype, shape))
        }
        Op::Cast(d) => {
            ensure(!d.is_quant(), || format!("cannot cast to the packed type {d}"))?;
            one(x[0].with_dtype(*d))
        }
        Op::Dequantize { dtype } => {
            ensure(x[0].dtype.is_quant(), || format!("{} is not packed", x[0].dtype))?;
            ensure(dtype.is_float(), || format!("{dtype} is not a float"))?;
            one(x[0].with_dtype(*dtype))
        }
        _ => movement::infer(op, x),
    }
}

/// Whether the attributes have a text form: JSON knows neither NaN nor infinity.
fn finite(op: &Op) -> bool {
    let cap = |c: Option<f64>| c.unwrap_or(0.0).is_finite();
    match op {
        Op::LayerNorm { eps, .. }
        | Op::RmsNorm { eps, .. }
        | Op::AddRmsNorm { eps }
        | Op::GroupNorm { eps, .. } => eps.is_finite(),
        Op::Rope { scale, .. } => scale.is_finite(),
        Op::Attention(a) => a.scale.is_finite() && cap(a.softcap),
        Op::PagedAttention(p) => p.scale.is_finite() && cap(p.softcap),
        Op::MoeRoute(r) => r.scale.is_finite(),
        _ => true,
    }
}

/// Ops without operands.
fn leaf(op: &Op) -> Inferred {
    match op {
        Op::State { dtype, shape, .. } => {
            ensure(!dtype.is_quant(), || "states are not packed".into())?;
            one(Type::new(*dtype, shape.clone()))
        }
        // A region's input may be a captured weight, so it may be packed.
        Op::Input { dtype, shape, .. } | Op::Weight { dtype, shape, .. } => {
            one(Type::new(*dtype, shape.clone()))
        }
        Op::Constant(t) => one(Type::new(t.dtype(), t.shape().iter().map(|&d| Dim::fixed(d)).collect())),
        Op::Iota { dtype, shape, axis } => {
            ensure(*axis < shape.len(), || format!("axis {axis} of a rank-{} shape", shape.len()))?;
            ensure(dtype.is_float() || dtype.is_int(), || format!("counts in numbers, not {dtype}"))?;
            one(Type::new(*dtype, shape.clone()))
        }
        Op::Size { .. } => one(Type::new(DType::I32, vec![])),
        other => unreachable!("{} has operands", other.name()),
    }
}

/// The fixed number of operands of the ops that have one.
fn arity(op: &Op) -> Option<usize> {
    use Op::*;
    Some(match op {
        Input { .. } | Weight { .. } | State { .. } | Constant(_) | Iota { .. } | Size { .. } => 0,
        Unary(_) | Cast(_) | Reshape { .. } | Broadcast { .. } | Transpose { .. } | Slice { .. } => 1,
        Reduce { .. } | Cumulative { .. } | Sort { .. } | Dequantize { .. } | Activation(_) => 1,
        AllReduce | AllGather { .. } => 1,
        Softmax { .. } | TopK { .. } | ArgMax { .. } | Pool { .. } | Rfft => 1,
        Binary(_) | Compare(_) | Pad { .. } | DynamicSlice { .. } | Gather { .. } | TakeAlong { .. } => 2,
        DotGeneral { .. } | Conv { .. } | Embedding { .. } | Fft { .. } | Irfft { .. } => 2,
        Select | UpdateSlice | Scatter { .. } | AddRmsNorm { .. } | GroupNorm { .. } | Rope { .. } => 3,
        LayerNorm { weight, bias, .. } => 1 + *weight as usize + *bias as usize,
        RmsNorm { weight, .. } => 1 + *weight as usize,
        Attention(a) => 3 + a.mask as usize + a.sinks as usize,
        PagedAttention(p) => (if p.value_dim.is_some() { 7 } else { 9 }) + p.sinks as usize,
        Linear { bias } => 2 + *bias as usize,
        ExpertLinear { bias } => 3 + *bias as usize,
        MoeRoute(r) => 1 + r.correction as usize,
        Sample => 7,
        SelectiveScan => 9,
        CausalConv => 6,
        Concat { .. } | If | While { .. } | Scan { .. } | Fused => return None,
    })
}

fn binary_dtype(op: BinaryOp, d: DType) -> Result<(), String> {
    use BinaryOp::*;
    let ok = match op {
        And | Or | Xor => !d.is_float(),
        Shl | Shr => d.is_int(),
        Pow => d.is_float(),
        _ => d != DType::Bool,
    };
    ensure(ok, || format!("{op:?} is not defined for {d}"))
}

/// NumPy's rule: align on the right; equal dimensions or a 1.
pub(crate) fn broadcast(a: &Shape, b: &Shape) -> Result<Shape, String> {
    let rank = a.len().max(b.len());
    let one = Dim::fixed(1);
    let at = |s: &Shape, i: usize| {
        (i + s.len()).checked_sub(rank).and_then(|j| s.get(j)).cloned().unwrap_or_else(|| one.clone())
    };
    let pick = |i| match (at(a, i), at(b, i)) {
        (x, y) if x == y || y == one => Ok(x),
        (x, y) if x == one => Ok(y),
        _ => Err(format!("shapes {a:?} and {b:?} do not broadcast")),
    };
    (0..rank).map(pick).collect()
}

pub(crate) fn ensure(ok: bool, complaint: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(complaint()) }
}

pub(crate) fn same_dtype(a: &Type, b: &Type) -> Result<(), String> {
    ensure(a.dtype == b.dtype, || format!("element types {} and {} differ", a.dtype, b.dtype))
}

pub(crate) fn same_shape(what: &str, t: &Type, expected: &[Dim]) -> Result<(), String> {
    ensure(t.shape == expected, || format!("{what} has shape {:?}, expected {expected:?}", t.shape))
}

pub(crate) fn rank_is(what: &str, t: &Type, rank: usize) -> Result<(), String> {
    ensure(t.rank() == rank, || format!("{what} has rank {}, expected {rank}", t.rank()))
}

pub(crate) fn axis_in(axis: usize, t: &Type) -> Result<(), String> {
    ensure(axis < t.rank(), || format!("axis {axis} is out of range for {t}"))
}

pub(crate) fn int(what: &str, t: &Type) -> Result<(), String> {
    ensure(t.dtype.is_int(), || format!("{what} is {}, expected integers", t.dtype))
}

pub(crate) fn float(what: &str, t: &Type) -> Result<(), String> {
    ensure(t.dtype.is_float(), || format!("{what} is {}, expected floats", t.dtype))
}

pub(crate) fn one(t: Type) -> Inferred {
    Ok(vec![t])
}
