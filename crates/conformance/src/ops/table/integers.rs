//! Integers and booleans: arithmetic that wraps, bits, shifts and comparisons.

use mlxcel_ir::{BinaryOp, DType, Element, HostTensor, Op, ReduceOp, UnaryOp};

use super::elementwise::{COMPARE, apply};
use super::{Sketch, Table};

const TYPES: [DType; 8] =
    [DType::U8, DType::U16, DType::U32, DType::U64, DType::I8, DType::I16, DType::I32, DType::I64];

const ARITHMETIC: [BinaryOp; 10] = [
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Rem,
    BinaryOp::Max,
    BinaryOp::Min,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
];

pub(super) fn add(t: &mut Table) {
    for dtype in TYPES {
        t.case(&format!("integers {dtype}"), |s| integers(s, dtype));
    }
    t.case("division by zero gives zero", |s| {
        let a = s.input("a", HostTensor::new(&[4], &[5i32, -5, 0, i32::MIN]));
        let zero = s.input("zero", HostTensor::new(&[4], &[0i32; 4]));
        s.output("div", a / zero);
        s.output("rem", a % zero);
        let minus = s.input("minus", HostTensor::new(&[4], &[-1i32; 4]));
        s.output("overflow", a / minus);
    });
    t.case("booleans", |s| {
        let a = s.input("a", s.whole(DType::Bool, &[5, 6], (0, 2)));
        let b = s.input("b", s.whole(DType::Bool, &[6], (0, 2)));
        s.output("and", a & b);
        s.output("or", a | b);
        s.output("xor", a ^ b);
        s.output("not", !a);
        s.output("eq", a.eq(b));
        s.output("select", a.select(b, !b));
    });
}

fn integers(s: &Sketch, dtype: DType) {
    let (a, b) = (s.input("a", bits(s, dtype, 61)), s.input("b", bits(s, dtype, 61)));
    for op in ARITHMETIC {
        s.output(&format!("{op:?}"), apply(s, Op::Binary(op), &[a, b]));
    }
    for op in COMPARE {
        s.output(&format!("{op:?}"), apply(s, Op::Compare(op), &[a, b]));
    }
    for op in [UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Sign, UnaryOp::Not] {
        s.output(&format!("{op:?}"), apply(s, Op::Unary(op), &[a]));
    }
    let width = dtype.size().expect("integers are plain") as i64 * 8;
    let by = s.input("by", s.whole(dtype, &[61], (0, width)));
    s.output("Shl", a << by);
    s.output("Shr", a >> by);
    s.output("largest", a.reduce(ReduceOp::Max, &[0]));
    s.output("smallest", a.reduce(ReduceOp::Min, &[0]));
    s.output("sorted", a.sort_ascending(0)[1]);
    s.output("as f32", a.cast(DType::F32));
    s.output("with a number", (a * 3.0) ^ 21.0);
}

/// Numbers of the whole range of the type.
fn bits(s: &Sketch, dtype: DType, count: usize) -> HostTensor {
    fn cut<T: Element>(words: &[u64], to: impl Fn(u64) -> T) -> HostTensor {
        HostTensor::new(&[words.len()], &words.iter().map(|&w| to(w)).collect::<Vec<T>>())
    }
    let words: Vec<u64> = s.random(|r| (0..count).map(|_| r.bits()).collect());
    match dtype {
        DType::U8 => cut(&words, |w| w as u8),
        DType::U16 => cut(&words, |w| w as u16),
        DType::U32 => cut(&words, |w| w as u32),
        DType::U64 => cut(&words, |w| w),
        DType::I8 => cut(&words, |w| w as i8),
        DType::I16 => cut(&words, |w| w as i16),
        DType::I32 => cut(&words, |w| w as i32),
        DType::I64 => cut(&words, |w| w as i64),
        other => unreachable!("{other} is not an integer"),
    }
}
