//! Softmax, norms and rope.

use mlxcel_ir::{Op, Tensor};

use super::{Build, Golden};

pub(super) const CASES: &[(&str, Build)] = &[
    ("softmaxes", softmaxes),
    ("layer_norms", layer_norms),
    ("rms_norms", rms_norms),
    ("rms_norm_bf16", rms_norm_bf16),
    ("group_norms", group_norms),
    ("rope", rope),
    ("rope_partial", rope_plain),
    ("rope_per_token", rope_plain),
];

fn softmaxes(g: &Golden<'_>) {
    let x = g.x("x");
    g.y("last", x.softmax(2));
    g.y("middle", x.softmax(1));
    g.y("large", g.x("large").softmax(1));
}

fn layer_norms(g: &Golden<'_>) {
    let (x, weight, bias) = (g.x("x"), g.w("weight"), g.w("bias"));
    g.y("both", x.layer_norm(1e-5, Some(weight), Some(bias)));
    g.y("weight_only", x.layer_norm(1e-6, Some(weight), None));
    g.y("bare", x.layer_norm(1e-5, None, None));
}

fn rms_norms(g: &Golden<'_>) {
    let (x, weight) = (g.x("x"), g.w("weight"));
    g.y("weighted", x.rms_norm(1e-6, Some(weight)));
    g.y("bare", x.rms_norm(1e-5, None));
    let both = g.sketch.b().apply(Op::AddRmsNorm { eps: 1e-5 }, &[x, g.x("residual"), weight]);
    g.y("sum", both[0]);
    g.y("sum_norm", both[1]);
}

fn rms_norm_bf16(g: &Golden<'_>) {
    g.y("y", g.x("x").rms_norm(1e-6, Some(g.w("weight"))));
    // Computed in f32 and rounded once: at most the last bit may differ.
    g.sketch.slacken(0.3);
}

fn group_norms(g: &Golden<'_>) {
    let (x, weight, bias) = (g.x("x"), g.w("weight"), g.w("bias"));
    g.y("two", x.group_norm(2, 1e-5, weight, bias));
    g.y("six", x.group_norm(6, 1e-5, weight, bias));
}

fn turned<'g>(
    g: &'g Golden<'_>,
    [x, positions, freq]: [Tensor<'g>; 3],
    interleaved: bool,
    scale: f64,
) -> Tensor<'g> {
    // An angle of 500 in f32 is known to about 3e-5.
    g.sketch.slacken(3.0);
    x.rope(positions, freq, Op::Rope { interleaved, scale })
}

fn rope(g: &Golden<'_>) {
    let inputs = ["x", "positions", "freq"].map(|name| g.x(name));
    g.y("halves", turned(g, inputs, false, 1.0));
    g.y("neighbours", turned(g, inputs, true, 1.0));
    g.y("halves_scaled", turned(g, inputs, false, 1.25));
    g.y("neighbours_scaled", turned(g, inputs, true, 0.8));
}

fn rope_plain(g: &Golden<'_>) {
    let inputs = ["x", "positions", "freq"].map(|name| g.x(name));
    g.y("halves", turned(g, inputs, false, 1.0));
    g.y("neighbours", turned(g, inputs, true, 1.0));
}
