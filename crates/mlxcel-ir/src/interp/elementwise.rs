//! One element at a time.

use std::sync::Arc;

use super::{Array, Data, broadcast_strides, places};
use crate::dtype::DType;
use crate::op::{BinaryOp, CompareOp, Op, UnaryOp};

pub(super) fn eval(op: &Op, x: &[Arc<Array>], dtype: DType, shape: Vec<usize>) -> Array {
    let x: Vec<Array> = x.iter().map(|a| spread(a, &shape)).collect();
    match (op, &x[0].data) {
        (Op::Unary(u), Data::Float(v)) => {
            Array::rounded(dtype, shape, v.iter().map(|&a| unary_float(*u, a)).collect())
        }
        (Op::Unary(u), Data::Int(v)) => {
            Array::wrapped(dtype, shape, v.iter().map(|&a| unary_int(*u, a, dtype)).collect())
        }
        (Op::Binary(b), Data::Float(v)) => {
            let pairs = v.iter().zip(x[1].floats());
            Array::rounded(dtype, shape, pairs.map(|(&a, &c)| binary_float(*b, a, c)).collect())
        }
        (Op::Binary(b), Data::Int(v)) => {
            let pairs = v.iter().zip(x[1].ints());
            Array::wrapped(dtype, shape, pairs.map(|(&a, &c)| binary_int(*b, a, c, dtype)).collect())
        }
        (Op::Compare(c), Data::Float(v)) => {
            let pairs = v.iter().zip(x[1].floats());
            Array::wrapped(dtype, shape, pairs.map(|(a, b)| compare(*c, a.partial_cmp(b)) as i64).collect())
        }
        (Op::Compare(c), Data::Int(v)) => {
            let ranked = |i: &i64| rank(x[0].dtype, *i);
            let pairs = v.iter().zip(x[1].ints()).map(|(a, b)| ranked(a).cmp(&ranked(b)));
            Array::wrapped(dtype, shape, pairs.map(|order| compare(*c, Some(order)) as i64).collect())
        }
        (Op::Select, Data::Int(keep)) => {
            let n = shape.iter().product::<usize>();
            let joined = super::movement::join(&[&x[1], &x[2]]);
            joined.pick(shape, (0..n).map(|i| if keep[i] != 0 { i } else { n + i }))
        }
        (Op::Cast(_) | Op::Dequantize { .. }, _) => cast(&x[0], dtype, shape),
        (op, _) => unreachable!("{} is not elementwise", op.name()),
    }
}

fn spread(a: &Array, shape: &[usize]) -> Array {
    if a.shape == shape {
        return a.clone();
    }
    a.pick(shape.to_vec(), places(shape, &broadcast_strides(&a.shape, shape), 0).into_iter())
}

fn cast(a: &Array, dtype: DType, shape: Vec<usize>) -> Array {
    match (&a.data, dtype.is_float()) {
        (Data::Float(v), true) => Array::rounded(dtype, shape, v.clone()),
        (Data::Int(v), true) if a.dtype == DType::U64 => {
            Array::rounded(dtype, shape, v.iter().map(|&i| i as u64 as f64).collect())
        }
        (Data::Int(v), true) => Array::rounded(dtype, shape, v.iter().map(|&i| i as f64).collect()),
        (Data::Int(v), false) => Array::wrapped(dtype, shape, v.clone()),
        (Data::Float(v), false) if dtype == DType::Bool => {
            Array::wrapped(dtype, shape, v.iter().map(|&f| (f != 0.0) as i64).collect())
        }
        (Data::Float(v), false) if dtype == DType::U64 => {
            Array::wrapped(dtype, shape, v.iter().map(|&f| f as u64 as i64).collect())
        }
        (Data::Float(v), false) => Array::wrapped(dtype, shape, v.iter().map(|&f| f as i64).collect()),
    }
}

fn unary_float(op: UnaryOp, a: f64) -> f64 {
    match op {
        UnaryOp::Neg => -a,
        UnaryOp::Abs => a.abs(),
        UnaryOp::Sign if a == 0.0 || a.is_nan() => a,
        UnaryOp::Sign => a.signum(),
        UnaryOp::Exp => a.exp(),
        UnaryOp::Log => a.ln(),
        UnaryOp::Log1p => a.ln_1p(),
        UnaryOp::Sqrt => a.sqrt(),
        UnaryOp::Rsqrt => 1.0 / a.sqrt(),
        UnaryOp::Sin => a.sin(),
        UnaryOp::Cos => a.cos(),
        UnaryOp::Tanh => a.tanh(),
        UnaryOp::Erf => crate::math::erf(a),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-a).exp()),
        UnaryOp::Floor => a.floor(),
        UnaryOp::Ceil => a.ceil(),
        UnaryOp::Round => a.round_ties_even(),
        UnaryOp::Not => unreachable!("the verifier keeps floats from logic"),
    }
}

fn unary_int(op: UnaryOp, a: i64, dtype: DType) -> i64 {
    match op {
        UnaryOp::Neg => a.wrapping_neg(),
        UnaryOp::Abs if dtype == DType::U64 => a,
        UnaryOp::Sign if dtype == DType::U64 => (a != 0) as i64,
        UnaryOp::Abs => a.wrapping_abs(),
        UnaryOp::Sign => a.signum(),
        UnaryOp::Not if dtype == DType::Bool => (a == 0) as i64,
        UnaryOp::Not => !a,
        _ => unreachable!("the verifier keeps integers from {op:?}"),
    }
}

fn binary_float(op: BinaryOp, a: f64, b: f64) -> f64 {
    let nan = a.is_nan() || b.is_nan();
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a % b,
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Max | BinaryOp::Min if nan => f64::NAN,
        BinaryOp::Max => a.max(b),
        BinaryOp::Min => a.min(b),
        _ => unreachable!("the verifier keeps floats from {op:?}"),
    }
}

fn binary_int(op: BinaryOp, a: i64, b: i64, dtype: DType) -> i64 {
    // The only type whose numbers do not fit an `i64`.
    if dtype == DType::U64 {
        let (a, b) = (a as u64, b as u64);
        match op {
            BinaryOp::Div => return a.checked_div(b).unwrap_or(0) as i64,
            BinaryOp::Rem => return a.checked_rem(b).unwrap_or(0) as i64,
            BinaryOp::Max => return a.max(b) as i64,
            BinaryOp::Min => return a.min(b) as i64,
            BinaryOp::Shr => return u32::try_from(b).ok().and_then(|s| a.checked_shr(s)).unwrap_or(0) as i64,
            _ => {}
        }
    }
    match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div if b == 0 => 0,
        BinaryOp::Rem if b == 0 => 0,
        BinaryOp::Div => a.wrapping_div(b),
        BinaryOp::Rem => a.wrapping_rem(b),
        BinaryOp::Max => a.max(b),
        BinaryOp::Min => a.min(b),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => u32::try_from(b).ok().and_then(|s| a.checked_shl(s)).unwrap_or(0),
        BinaryOp::Shr => u32::try_from(b).ok().and_then(|s| a.checked_shr(s)).unwrap_or(0),
        BinaryOp::Pow => unreachable!("the verifier keeps integers from Pow"),
    }
}

/// A number whose order as `i64` is the order of the type.
pub(super) fn rank(dtype: DType, v: i64) -> i64 {
    if dtype == DType::U64 { v ^ i64::MIN } else { v }
}

fn compare(op: CompareOp, order: Option<std::cmp::Ordering>) -> bool {
    use std::cmp::Ordering::*;
    match op {
        CompareOp::Eq => order == Some(Equal),
        CompareOp::Ne => order != Some(Equal),
        CompareOp::Lt => order == Some(Less),
        CompareOp::Le => matches!(order, Some(Less | Equal)),
        CompareOp::Gt => order == Some(Greater),
        CompareOp::Ge => matches!(order, Some(Greater | Equal)),
    }
}
