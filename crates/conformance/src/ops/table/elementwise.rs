//! Elementwise floats: every unary, binary, comparing and activation op, broadcasting, fusing, constants.

use mlxcel_ir::{
    Activation, BinaryOp, Builder, CompareOp, DType, Dim, Graph, HostTensor, Op, Tensor, Type, UnaryOp, shape,
};

use super::{Sketch, Table};
use crate::ops::case::{Case, Step, Weights};
use crate::ops::random::Random;

const UNARY: [UnaryOp; 16] = [
    UnaryOp::Neg,
    UnaryOp::Abs,
    UnaryOp::Sign,
    UnaryOp::Exp,
    UnaryOp::Log,
    UnaryOp::Log1p,
    UnaryOp::Sqrt,
    UnaryOp::Rsqrt,
    UnaryOp::Sin,
    UnaryOp::Cos,
    UnaryOp::Tanh,
    UnaryOp::Erf,
    UnaryOp::Sigmoid,
    UnaryOp::Floor,
    UnaryOp::Ceil,
    UnaryOp::Round,
];

const BINARY: [BinaryOp; 7] =
    [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Rem, BinaryOp::Max, BinaryOp::Min];

pub(super) const COMPARE: [CompareOp; 6] =
    [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];

const ACTIVATIONS: [Activation; 7] = [
    Activation::Relu,
    Activation::Relu2,
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::QuickGelu,
    Activation::Softplus,
];

/// The first result of an op that the builder has no method for.
pub(super) fn apply<'g>(s: &'g Sketch, op: Op, inputs: &[Tensor<'g>]) -> Tensor<'g> {
    s.b().apply(op, inputs)[0]
}

pub(super) fn add(t: &mut Table) {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        t.case(&format!("unary {dtype}"), |s| unary(s, dtype));
        t.case(&format!("binary {dtype}"), |s| binary(s, dtype));
        t.case(&format!("activations {dtype}"), |s| activations(s, dtype));
        t.case(&format!("broadcasting {dtype}"), |s| broadcasting(s, dtype));
    }
    t.case("casts of f8", |s| {
        s.exact();
        for (name, dtype) in [("e4m3", DType::F8E4M3), ("e5m2", DType::F8E5M2)] {
            let x = s.normal_input(name, DType::F32, &[70]);
            let narrow = x.cast(dtype);
            s.output(name, narrow);
            s.output(&format!("{name}_back"), narrow.cast(DType::BF16));
        }
    });
    casts(t);
    constants(t);
    t.case("symbolic tokens over three steps", |s| {
        let x = s.input_as("x", shape!["tokens", 33], s.normal(DType::F32, &[7, 33]));
        let w = s.normal_weight("w", DType::F32, &[33]);
        s.output("y", (x * w).activation(Activation::Silu) + x);
        s.step(vec![("x", s.normal(DType::F32, &[1, 33]))]);
        s.step(vec![("x", s.normal(DType::F32, &[64, 33]))]);
    });
    for case in ["f32", "bf16"] {
        t.cases.push(fused(
            &format!("a fused region {case}"),
            if case == "f32" { DType::F32 } else { DType::BF16 },
        ));
    }
}

fn unary(s: &Sketch, dtype: DType) {
    let x = s.input("x", s.uniform(dtype, &[7, 33], (-4.0, 4.0)));
    let positive = s.input("positive", s.uniform(dtype, &[7, 33], (0.02, 9.0)));
    // Ties between two whole numbers go to the even one.
    let ties = HostTensor::from_f64(dtype, &[6], &[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]);
    s.output("ties", s.input("ties", ties).round());
    for op in UNARY {
        let positive_only = matches!(op, UnaryOp::Log | UnaryOp::Log1p | UnaryOp::Sqrt | UnaryOp::Rsqrt);
        let y = apply(s, Op::Unary(op), &[if positive_only { positive } else { x }]);
        s.output(&format!("{op:?}"), y);
    }
}

fn binary(s: &Sketch, dtype: DType) {
    let a = s.normal_input("a", dtype, &[7, 33]);
    // Away from zero, where quotients explode, and few enough distinct numbers that some are equal.
    let b = s.input("b", s.uniform(dtype, &[7, 33], (0.5, 2.5)));
    for op in BINARY {
        s.output(&format!("{op:?}"), apply(s, Op::Binary(op), &[a, b]));
    }
    s.output("Pow", b.pow(a));
    let (a, b) = (a.round(), b.round());
    for op in COMPARE {
        s.output(&format!("{op:?}"), apply(s, Op::Compare(op), &[a, b]));
    }
    s.output("Select", a.lt(b).select(a, b));
}

fn activations(s: &Sketch, dtype: DType) {
    let x = s.normal_input("x", dtype, &[7, 1536]) * 3.0;
    for kind in ACTIVATIONS {
        s.output(&format!("{kind:?}"), x.activation(kind));
    }
}

fn broadcasting(s: &Sketch, dtype: DType) {
    let cube = s.normal_input("cube", dtype, &[3, 4, 5]);
    let row = s.normal_input("row", dtype, &[5]);
    let column = s.normal_input("column", dtype, &[4, 1]);
    let page = s.normal_input("page", dtype, &[3, 1, 1]);
    let scalar = s.normal_input("scalar", dtype, &[]);
    s.output("row", cube * row);
    s.output("column", column - cube);
    s.output("page", cube + page);
    s.output("scalar", scalar * cube);
    s.output("outer", row * column);
    s.output("all", (page + row).gt(column).select(scalar, row));
}

/// From every type to every type, within the range of both.
fn casts(t: &mut Table) {
    let plain = DType::PLAIN.into_iter().filter(|d| !matches!(d, DType::F8E4M3 | DType::F8E5M2));
    for from in plain.clone() {
        t.case(&format!("casts from {from}"), |s| {
            s.exact();
            let signed = if from.is_signed() { -100.0 } else { 0.0 };
            let x = s.input("x", s.uniform(from, &[5, 13], (signed, 100.0)));
            let positive = s.input("positive", s.uniform(from, &[5, 13], (0.0, 100.0)));
            for to in plain.clone().filter(|to| *to != from) {
                // What a negative float becomes as an unsigned number is nobody's promise.
                let safe = from.is_float() && to.is_int() && !to.is_signed();
                s.output(&to.to_string(), if safe { positive } else { x }.cast(to));
            }
        });
    }
}

fn constants(t: &mut Table) {
    t.case("constants of every type", |s| {
        s.exact();
        for dtype in DType::PLAIN {
            let tensor = s.uniform(dtype, &[2, 3], (0.0, 100.0));
            let (name, one) =
                (dtype.to_string(), s.input(&format!("one {dtype}"), s.whole(dtype, &[2, 3], (1, 2))));
            let constant = s.b().constant(tensor);
            // Chosen by an input, so that it cannot be folded away.
            s.output(&name, one.eq(one).select(constant, one));
        }
        s.output("huge", s.b().scalar(u64::MAX - 1));
        s.output("tiny", s.b().scalar(i64::MIN + 1));
        s.output("nan", s.b().scalar(f32::NAN));
        s.output("minus infinity", s.b().scalar_of(DType::BF16, f64::NEG_INFINITY));
    });
    t.case("only constants", |s| {
        let x = s.b().constant(s.normal(DType::F32, &[4, 5]));
        s.output("y", x.softmax(1) * 2.0);
    });
}

/// A region as the fusion pass makes it: several operands, a broadcast one, several results.
fn fused(name: &str, dtype: DType) -> Case {
    let types = [shape!["tokens", 12], shape!["tokens", 12], shape![12]].map(|s| Type::new(dtype, s));
    let region = Builder::new();
    let x: Vec<Tensor<'_>> = types
        .iter()
        .enumerate()
        .map(|(i, t)| region.input(&format!("arg{i}"), t.dtype, t.shape.clone()))
        .collect();
    let gated = x[0].activation(Activation::Silu) * x[1];
    region.output("out0", gated * x[2]);
    // In the type of the case: numbers rounded to bf16 on the way cannot be judged as f32.
    region.output("out1", gated.gt(x[2]).select(gated, x[1] * 0.5));
    drop(x);
    let region = region.finish().unwrap_or_else(|e| panic!("case '{name}' does not build: {e}"));
    let mut graph = Graph::default();
    let (mut feeds, mut random) = (mlxcel_engine::Feeds::new(), Random::named(name));
    let mut values = vec![];
    for (input, ty) in ["a", "b", "c"].into_iter().zip(&types) {
        let op = Op::Input { name: input.to_string(), dtype: ty.dtype, shape: ty.shape.clone(), pad: 0 };
        let node = graph.push(op, vec![], vec![], "").unwrap_or_else(|e| panic!("case '{name}': {e}"));
        values.extend(graph.results(node));
        let shape: Vec<usize> = ty.shape.iter().map(|d: &Dim| d.as_fixed().unwrap_or(5)).collect();
        feeds.insert(input, random.normal(dtype, &shape));
    }
    let node = graph.push(Op::Fused, values, vec![region], "");
    let node = node.unwrap_or_else(|e| panic!("case '{name}': {e}"));
    for (output, value) in ["first", "second"].into_iter().zip(graph.results(node)) {
        graph.add_output(output, value).unwrap_or_else(|e| panic!("case '{name}': {e}"));
    }
    let steps = vec![Step { feeds, expected: None }];
    Case {
        name: name.to_string(),
        graph,
        weights: Weights::default(),
        dims: Default::default(),
        steps,
        slack: 1.0,
    }
}
