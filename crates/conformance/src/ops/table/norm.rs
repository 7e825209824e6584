//! Softmax, the norms and rotary embeddings, at the widths of small and large models.

use mlxcel_ir::{DType, HostTensor, Op, shape};

use super::elementwise::apply;
use super::{Sketch, Table};

pub(super) fn add(t: &mut Table) {
    for width in [5, 576, 2048] {
        t.floats(&format!("norms of {width}"), |s, dtype| norms(s, dtype, width));
    }
    t.floats("softmax", |s, dtype| {
        let x = s.normal_input("x", dtype, &[3, 4, 5]);
        (0..3).for_each(|axis| s.output(&format!("axis {axis}"), (x * 3.0).softmax(axis)));
        let logits = s.normal_input("logits", dtype, &[7, 4096]);
        s.output("vocabulary", logits.softmax(1));
        s.output("one", logits.slice(1, 0usize, 1usize).softmax(1));
    });
    t.case("softmax of infinities", |s| {
        let low = f32::NEG_INFINITY;
        let x = s.input("x", HostTensor::new(&[2, 4], &[low, 0.0, low, 1.0, 3e38, 3e38, low, -3e38]));
        s.output("y", x.softmax(1));
    });
    t.floats("norms of heads", |s, dtype| {
        let x = s.input_as("x", shape!["tokens", 9, 64], s.normal(dtype, &[7, 9, 64]));
        let w = s.normal_weight("w", DType::F32, &[64]);
        s.output("rms", x.rms_norm(1e-6, Some(w)));
        s.output("layer", x.layer_norm(1e-5, Some(w), None));
        s.step(vec![("x", s.normal(dtype, &[1, 9, 64]))]);
    });
    t.floats("group norm", |s, dtype| {
        let (w, b) = (s.normal_input("w", dtype, &[12]), s.normal_input("b", dtype, &[12]));
        let line = s.normal_input("line", dtype, &[2, 12, 30]);
        let plane = s.normal_input("plane", dtype, &[1, 12, 7, 5]);
        s.output("line", line.group_norm(4, 1e-5, w, b));
        s.output("plane", plane.group_norm(3, 1e-5, w, b));
        s.output("layer", plane.group_norm(1, 1e-5, w, b));
        s.output("instance", plane.group_norm(12, 1e-5, w, b));
    });
    t.case("a norm of tiny and of huge numbers", |s| {
        let x = s.input("x", s.uniform(DType::F32, &[4, 64], (-1e-6, 1e-6)));
        s.output("tiny rms", x.rms_norm(1e-6, None));
        s.output("huge rms", (x * 1e20).rms_norm(1e-6, None));
        s.output("far from zero", (x * 1e6 + 300.0).layer_norm(1e-5, None, None));
        // The mean of numbers near 300 leaves four digits of their difference.
        s.slacken(50.0);
    });
    for interleaved in [false, true] {
        let pairing = if interleaved { "neighbours" } else { "halves" };
        t.floats(&format!("rope of {pairing}"), |s, dtype| rope(s, dtype, interleaved));
    }
    t.case("rope far into a context", |s| {
        let x = s.normal_input("x", DType::F32, &[4, 3, 64]);
        let positions = s.input("positions", HostTensor::new(&[4], &[4095i32, 8191, 32767, 131071]));
        let freq = s.input("freq", frequencies(32, 500_000.0));
        let op = Op::Rope { interleaved: false, scale: 1.0 };
        s.output("y", x.rope(positions, freq, op));
        // An angle of 1e5 in f32 is known to about 0.008.
        s.slacken(500.0);
    });
}

fn norms(s: &Sketch, dtype: DType, width: usize) {
    let x = s.input_as("x", shape!["tokens", width], s.normal(dtype, &[7, width]));
    let residual = s.input_as("residual", shape!["tokens", width], s.normal(dtype, &[7, width]));
    // Norm weights are stored in the model's type, or in f32.
    let w = s.normal_weight("w", dtype, &[width]);
    let wide = s.normal_weight("wide", DType::F32, &[width]);
    let b = s.normal_weight("b", dtype, &[width]);
    s.output("rms", x.rms_norm(1e-5, Some(w)));
    s.output("rms wide", x.rms_norm(1e-6, Some(wide)));
    s.output("rms bare", x.rms_norm(1e-5, None));
    s.output("layer", x.layer_norm(1e-5, Some(w), Some(b)));
    s.output("layer weight", x.layer_norm(1e-5, Some(wide), None));
    s.output("layer bare", x.layer_norm(1e-12, None, None));
    let both = s.b().apply(Op::AddRmsNorm { eps: 1e-5 }, &[x, residual, w]);
    s.output("sum", both[0]);
    s.output("sum norm", both[1]);
    s.output("softmax", x.softmax(1));
    for tokens in [1, 64] {
        let fresh = |s: &Sketch| s.normal(dtype, &[tokens, width]);
        s.step(vec![("x", fresh(s)), ("residual", fresh(s))]);
    }
}

pub(super) fn frequencies(half: usize, theta: f64) -> HostTensor {
    let values: Vec<f64> = (0..half).map(|i| theta.powf(-(i as f64) / half as f64)).collect();
    HostTensor::from_f64(DType::F32, &[half], &values)
}

fn rope(s: &Sketch, dtype: DType, interleaved: bool) {
    let op = |scale| Op::Rope { interleaved, scale };
    let q = s.input_as("q", shape!["tokens", 9, 64], s.normal(dtype, &[7, 9, 64]));
    let k = s.input_as("k", shape!["tokens", 1, 20], s.normal(dtype, &[7, 1, 20]));
    let positions = s.input_as("positions", shape!["tokens"], s.whole(DType::I32, &[7], (0, 600)));
    let whole = s.input("whole", frequencies(32, 10_000.0));
    let part = s.input("part", frequencies(3, 100.0));
    let own = s.input_as("own", shape!["tokens", 10], s.uniform(DType::F32, &[7, 10], (0.0, 1.0)));
    s.output("whole", apply(s, op(1.0), &[q, positions, whole]));
    s.output("part", apply(s, op(1.0), &[k, positions, part]));
    s.output("part of many heads", apply(s, op(1.0), &[q, positions, part]));
    s.output("scaled", apply(s, op(1.3), &[q, positions, whole]));
    s.output("own", apply(s, op(0.9), &[k, positions, own]));
    // Angles up to 600 in f32 are known to about 3e-5.
    s.slacken(5.0);
    let one = |shape: &[usize]| s.normal(dtype, shape);
    s.step(vec![
        ("q", one(&[1, 9, 64])),
        ("k", one(&[1, 1, 20])),
        ("positions", HostTensor::new(&[1], &[511i32])),
        ("own", s.uniform(DType::F32, &[1, 10], (0.0, 1.0))),
    ]);
}
