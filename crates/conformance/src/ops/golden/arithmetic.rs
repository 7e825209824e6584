//! Elementwise ops and control flow.

use mlxcel_ir::{Activation, BinaryOp, CompareOp, DType, Op, ReduceOp, Tensor, UnaryOp};

use super::{Build, Golden};

pub(super) const ELEMENTWISE: &[(&str, Build)] = &[
    ("activations", activations),
    ("extreme_activations", extreme_activations),
    ("unary", unary),
    ("binary", binary),
    ("not_a_number_is_passed_on", not_a_number),
    ("integers_i32", integers),
    ("integers_u32", integers),
    ("integers_i8", integers),
    ("integers_u8", integers),
    ("integers_i64", integers),
    ("integers_u64", integers),
    ("casts", casts),
];

pub(super) const CONTROL: &[(&str, Build)] = &[
    ("branches", branches),
    ("newton_until_converged", newton),
    ("a_loop_that_never_runs", newton),
    ("recurrence", recurrence),
];

fn apply<'g>(g: &'g Golden<'_>, op: Op, inputs: &[Tensor<'g>]) -> Tensor<'g> {
    g.sketch.b().apply(op, inputs)[0]
}

fn activations(g: &Golden<'_>) {
    let x = g.x("x");
    for (name, kind) in [
        ("relu", Activation::Relu),
        ("relu2", Activation::Relu2),
        ("silu", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_tanh", Activation::GeluTanh),
        ("quick_gelu", Activation::QuickGelu),
        ("softplus", Activation::Softplus),
    ] {
        g.y(name, x.activation(kind));
    }
}

fn extreme_activations(g: &Golden<'_>) {
    let x = g.x("x");
    g.y("silu", x.activation(Activation::Silu));
    g.y("gelu", x.activation(Activation::Gelu));
    g.y("gelu_tanh", x.activation(Activation::GeluTanh));
    g.y("softplus", x.activation(Activation::Softplus));
}

fn unary(g: &Golden<'_>) {
    let (x, positive) = (g.x("x"), g.x("positive"));
    for (name, op) in [
        ("neg", UnaryOp::Neg),
        ("abs", UnaryOp::Abs),
        ("sign", UnaryOp::Sign),
        ("exp", UnaryOp::Exp),
        ("sin", UnaryOp::Sin),
        ("cos", UnaryOp::Cos),
        ("tanh", UnaryOp::Tanh),
        ("erf", UnaryOp::Erf),
        ("sigmoid", UnaryOp::Sigmoid),
        ("floor", UnaryOp::Floor),
        ("ceil", UnaryOp::Ceil),
        ("round", UnaryOp::Round),
    ] {
        g.y(name, apply(g, Op::Unary(op), &[x]));
    }
    g.y("log", positive.log());
    g.y("log1p", positive.log1p());
    g.y("sqrt", positive.sqrt());
    g.y("rsqrt", positive.rsqrt());
}

fn binary(g: &Golden<'_>) {
    let (a, b, base) = (g.x("a"), g.x("b"), g.x("base"));
    g.y("add", a + b);
    g.y("sub", a - b);
    g.y("mul", a * b);
    g.y("div", a / b);
    g.y("rem", a % b);
    g.y("max", a.max(b));
    g.y("min", a.min(b));
    g.y("pow", base.unsqueeze(1).pow(b));
    let (a, b) = (a.round(), b.round());
    for (name, op) in [
        ("eq", CompareOp::Eq),
        ("ne", CompareOp::Ne),
        ("lt", CompareOp::Lt),
        ("le", CompareOp::Le),
        ("gt", CompareOp::Gt),
        ("ge", CompareOp::Ge),
    ] {
        g.y(name, apply(g, Op::Compare(op), &[a, b]));
    }
}

fn not_a_number(g: &Golden<'_>) {
    let (a, b) = (g.x("a"), g.x("b"));
    g.y("max", a.max(b));
    g.y("min", a.min(b));
    g.y("lt", a.lt(b));
    g.y("ne", a.ne(b));
    g.y("eq", a.eq(b));
}

fn integers(g: &Golden<'_>) {
    let (a, b, by) = (g.x("a"), g.x("b"), g.x("by"));
    for (name, op) in [
        ("add", BinaryOp::Add),
        ("sub", BinaryOp::Sub),
        ("mul", BinaryOp::Mul),
        ("div", BinaryOp::Div),
        ("rem", BinaryOp::Rem),
        ("and", BinaryOp::And),
        ("or", BinaryOp::Or),
        ("xor", BinaryOp::Xor),
        ("max", BinaryOp::Max),
        ("min", BinaryOp::Min),
    ] {
        g.y(name, apply(g, Op::Binary(op), &[a, b]));
    }
    g.y("shl", a << by);
    g.y("shr", a >> by);
    g.y("not", !a);
    g.y("lt", a.lt(b));
}

fn casts(g: &Golden<'_>) {
    g.sketch.exact();
    let (x, n) = (g.x("x"), g.x("n"));
    for dtype in [DType::F16, DType::BF16, DType::F64, DType::I8, DType::I16, DType::I64, DType::Bool] {
        g.y(&format!("x_{dtype}"), x.cast(dtype));
        g.y(&format!("n_{dtype}"), n.cast(dtype));
    }
    for dtype in [DType::F8E4M3, DType::F8E5M2, DType::I32] {
        g.y(&format!("x_{dtype}"), x.cast(dtype));
    }
    for dtype in [DType::U8, DType::I32, DType::F32] {
        g.y(&format!("n_{dtype}"), n.cast(dtype));
    }
}

fn branches(g: &Golden<'_>) {
    let (x, w, b) = (g.x("x"), g.x("w"), g.sketch.b());
    for (names, flag) in [(["then", "then_sum"], true), (["other", "other_sum"], false)] {
        let out = b.if_else(
            b.scalar(flag),
            &[x, w],
            |_, c| vec![c[0] * c[1] + 1.0, (c[0] * c[1]).reduce(ReduceOp::Sum, &[1])],
            |_, c| vec![c[0] - c[1], c[0].reduce(ReduceOp::Sum, &[1])],
        );
        g.y(names[0], out[0]);
        g.y(names[1], out[1]);
    }
}

fn newton(g: &Golden<'_>) {
    let (x, limit) = (g.x("x"), g.x("limit"));
    let zero = g.sketch.b().scalar(0i32);
    let out = g.sketch.b().while_loop(
        &[x, zero],
        &[limit, x],
        |_, c| c[1].lt(c[2]),
        |_, c| vec![(c[0] + c[3] / c[0]) / 2.0, c[1] + 1.0],
    );
    g.y("root", out[0]);
    g.y("steps", out[1]);
}

fn recurrence(g: &Golden<'_>) {
    let (x, gate, w, b) = (g.x("x"), g.x("gate"), g.x("w"), g.sketch.b());
    let h = b.scalar(0f32).broadcast(mlxcel_ir::shape![4]);
    let out = b.scan(&[h, b.scalar(-1e30f32)], &[x, gate], &[w], |_, a| {
        let h = (a[0].dot_general(a[4], &[], &[(0, 0)]) + a[2] * a[3]).tanh();
        let best = a[1].max(h.reduce(ReduceOp::Max, &[0]));
        vec![h, best, h * 2.0, best]
    });
    for (name, t) in ["last", "best", "rows", "tops"].into_iter().zip(out) {
        g.y(name, t);
    }
}
