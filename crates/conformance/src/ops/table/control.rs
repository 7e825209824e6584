//! Branches, loops and scans: several carried values of several types, captures, and regions in regions.

use mlxcel_ir::{Builder, DType, HostTensor, ReduceOp, Tensor, shape};

use super::{Sketch, Table};

pub(super) fn add(t: &mut Table) {
    t.case("a branch", branch);
    t.case("a loop with several carried values", several_carried);
    t.case("a loop that does not run", |s| {
        let x = s.normal_input("x", DType::F32, &[3]);
        let out = s.b().while_loop(&[x], &[], |b, _| b.scalar(false), |_, c| vec![c[0] * 2.0]);
        s.output("x", out[0]);
    });
    t.case("a loop in a loop", nested);
    t.floats("a scan with several outputs", scan);
    t.case("a scan over a symbolic axis", |s| {
        let x = s.input_as("x", shape!["tokens", 4], s.normal(DType::F32, &[5, 4]));
        let zero = s.input("zero", s.uniform(DType::F32, &[4], (0.0, 0.0)));
        let out = s.b().scan(&[zero], &[x], &[], |_, a| vec![a[0] * 0.5 + a[1], a[0].max(a[1])]);
        s.output("last", out[0]);
        s.output("rows", out[1]);
        s.step(vec![("x", s.normal(DType::F32, &[1, 4]))]);
        s.step(vec![("x", s.normal(DType::F32, &[33, 4]))]);
    });
    t.case("a branch in a scan", branch_in_scan);
    t.case("composites in regions", composites);
    t.case("a scan that carries nothing", |s| {
        let x = s.normal_input("x", DType::F32, &[6, 3]);
        let out = s.b().scan(&[], &[x], &[], |_, a| vec![a[0].reduce(ReduceOp::Sum, &[0])]);
        s.output("sums", out[0]);
    });
    t.case("a state in a loop", |s| {
        let total = s.b().state("total", DType::F32, shape![3]);
        let x = s.normal_input("x", DType::F32, &[4, 3]);
        let out = s.b().scan(&[total], &[x], &[], |_, a| vec![a[0] + a[1]]);
        s.output("total", out[0]);
        s.b().update("total", out[0]);
        s.step(vec![("x", s.normal(DType::F32, &[4, 3]))]);
        s.step(vec![]);
    });
}

fn branch(s: &Sketch) {
    let x = s.normal_input("x", DType::F32, &[3, 4]);
    let w = s.normal_input("w", DType::F32, &[4]);
    let flag = s.input("flag", HostTensor::scalar(true));
    let out = s.b().if_else(
        flag,
        &[x, w],
        |_, c| vec![c[0] * c[1] + 1.0, c[0].reduce(ReduceOp::Sum, &[1])],
        |b, c| vec![c[0] - c[1], b.scalar(7.0f32).broadcast(shape![3])],
    );
    s.output("first", out[0]);
    s.output("second", out[1]);
    s.step(vec![("flag", HostTensor::scalar(false))]);
}

fn several_carried(s: &Sketch) {
    let x = s.input("x", s.uniform(DType::F32, &[5], (0.5, 2.0)));
    let limit = s.input("limit", HostTensor::scalar(7i32));
    let (count, flip) = (s.b().scalar(0i32), s.b().scalar(false));
    let out = s.b().while_loop(
        &[x, count, flip],
        &[limit, x],
        |_, c| c[1].lt(c[3]),
        |_, c| vec![(c[0] + c[4] / c[0]) * 0.5, c[1] + 1.0, !c[2]],
    );
    s.output("root", out[0]);
    s.output("count", out[1]);
    s.output("flip", out[2]);
    s.step(vec![("limit", HostTensor::scalar(0i32))]);
    s.step(vec![("limit", HostTensor::scalar(2i32))]);
}

/// `inner` steps for each of three outer ones.
fn nested(s: &Sketch) {
    let x = s.normal_input("x", DType::F32, &[4]);
    let inner = s.input("inner", HostTensor::scalar(3i32));
    let zero = s.b().scalar(0i32);
    let out = s.b().while_loop(
        &[zero, x],
        &[inner],
        |b, c| c[0].lt(b.scalar(3i32)),
        |b, c| {
            let start = b.scalar(0i32);
            let deep = b.while_loop(
                &[start, c[1]],
                &[c[2]],
                |_, d| d[0].lt(d[2]),
                |_, d| vec![d[0] + 1.0, d[1] * 1.5 - 0.25],
            );
            vec![c[0] + 1.0, deep[1]]
        },
    );
    s.output("x", out[1]);
}

fn scan(s: &Sketch, dtype: DType) {
    let x = s.normal_input("x", dtype, &[9, 6]);
    let gate = s.normal_input("gate", dtype, &[9]);
    let w = s.normal_input("w", dtype, &[6, 6]) * 0.3;
    let (h, best) = (s.normal_input("h", dtype, &[6]), s.normal_input("best", dtype, &[]));
    let out = s.b().scan(&[h, best], &[x, gate], &[w], |_, a| {
        let h = (a[0].dot_general(a[4], &[], &[(0, 0)]) + a[2] * a[3]).tanh();
        let best = a[1].max(h.reduce(ReduceOp::Max, &[0]));
        vec![h, best, h * 2.0, best, h.gt(h.number(0.0))]
    });
    for (name, t) in ["last", "best", "rows", "bests", "signs"].into_iter().zip(out.iter()) {
        // Some rounding in a narrow type moves a number across zero; the signs are judged in f32 only.
        if name != "signs" || dtype == DType::F32 {
            s.output(name, *t);
        }
    }
    s.slacken(3.0);
}

fn branch_in_scan(s: &Sketch) {
    let x = s.input("x", s.whole(DType::I32, &[10], (0, 20)));
    let (even, odd) = (s.b().scalar(0i32), s.b().scalar(0i32));
    fn pick<'r>(b: &'r Builder, a: &[Tensor<'r>]) -> Vec<Tensor<'r>> {
        let is_even = (a[2] % 2.0).eq(a[2].number(0.0));
        b.if_else(is_even, a, |_, c| vec![c[0] + c[2], c[1]], |_, c| vec![c[0], c[1] + c[2]])
    }
    let out = s.b().scan(&[even, odd], &[x], &[], pick);
    s.output("even", out[0]);
    s.output("odd", out[1]);
}

/// What an engine lacks must be decomposed inside regions too.
fn composites(s: &Sketch) {
    let x = s.normal_input("x", DType::F32, &[3, 4, 8]);
    let w = s.normal_input("w", DType::F32, &[8]);
    let out = s.b().scan(&[], &[x], &[w], |_, a| {
        let y = a[0].rms_norm(1e-5, Some(a[1])).softmax(1);
        vec![y, y.argmax(1), y.top_k(2)[0]]
    });
    for (name, t) in ["rows", "largest", "top"].into_iter().zip(out) {
        s.output(name, t);
    }
}
