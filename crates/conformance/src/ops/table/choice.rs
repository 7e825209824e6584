//! Choosing experts and tokens.

use mlxcel_ir::{DType, HostTensor, RouteGroups, RouteScore, RouteSpec, SampleParams, shape};

use super::{Sketch, Table};

pub(super) fn route(top_k: usize, score: RouteScore) -> RouteSpec {
    RouteSpec { top_k, score, renormalize: false, scale: 1.0, groups: None, correction: false }
}

const SCORES: [RouteScore; 3] = [RouteScore::Softmax, RouteScore::Sigmoid, RouteScore::SoftmaxOfChosen];

pub(super) fn add(t: &mut Table) {
    for score in SCORES {
        t.floats(&format!("route by {score:?}"), |s, dtype| routes(s, dtype, score));
    }
    t.case("route among equals", |s| {
        let logits = s.input("logits", s.whole(DType::F32, &[9, 16], (0, 3)));
        let [weights, ids] = logits.moe_route(route(4, RouteScore::Softmax), None);
        s.output("weights", weights);
        s.output("ids", ids);
    });
    t.case("greedy rows of a vocabulary", |s| sample(s, 4096, [0.0, 0.0], (0, 50)));
    t.case("draws with every filter", |s| sample(s, 200, [0.3, 1.6], (0, 40)));
    t.case("draws from the top of a vocabulary", |s| sample(s, 4096, [0.5, 1.2], (1, 30)));
    t.case("draws from halves", |s| {
        let logits = s.input_as("logits", shape!["rows", 40], s.normal(DType::BF16, &[20, 40]));
        let drawn = logits.sample(parameters(s, 20, [0.5, 1.5], (1, 20)));
        s.output("drawn", drawn);
    });
    t.case("a draw of no rows", |s| {
        let logits = s.input_as("logits", shape!["rows", 40], s.normal(DType::F32, &[0, 40]));
        s.output("drawn", logits.sample(parameters(s, 0, [0.5, 1.5], (1, 20))));
    });
}

fn routes(s: &Sketch, dtype: DType, score: RouteScore) {
    let logits = s.input_as("logits", shape!["tokens", 32], s.normal(dtype, &[7, 32]));
    let correction = s.input("correction", s.uniform(DType::F32, &[32], (-0.2, 0.2)));
    let row = |name: &str, spec: RouteSpec, correct: bool| {
        let [weights, ids] = logits.moe_route(spec, correct.then_some(correction));
        s.output(&format!("{name} weights"), weights);
        s.output(&format!("{name} ids"), ids);
    };
    let plain = route(4, score);
    let grouped = RouteSpec { groups: Some(RouteGroups { count: 4, keep: 2 }), ..route(6, score) };
    row("plain", plain.clone(), false);
    row("one", route(1, score), false);
    row("all", route(32, score), false);
    row("scaled", RouteSpec { scale: 2.5, renormalize: true, ..plain.clone() }, false);
    row("corrected", RouteSpec { renormalize: true, ..plain }, true);
    row("grouped", grouped.clone(), false);
    row("grouped and corrected", RouteSpec { renormalize: true, scale: 1.5, ..grouped }, true);
    s.step(vec![("logits", s.normal(dtype, &[1, 32]))]);
    s.step(vec![("logits", s.normal(dtype, &[64, 32]))]);
}

fn parameters<'g>(s: &'g Sketch, rows: usize, temperature: [f64; 2], top_k: (i64, i64)) -> SampleParams<'g> {
    let input = |name: &str, t: HostTensor| s.input_as(name, shape!["rows"], t);
    SampleParams {
        temperature: input("temperature", s.uniform(DType::F32, &[rows], temperature.into())),
        top_k: input("top_k", s.whole(DType::I32, &[rows], top_k)),
        top_p: input("top_p", s.uniform(DType::F32, &[rows], (0.5, 1.0))),
        min_p: input("min_p", s.uniform(DType::F32, &[rows], (0.0, 0.1))),
        seed: input("seed", s.whole(DType::U32, &[rows], (0, 1 << 32))),
        step: input("step", s.whole(DType::U32, &[rows], (0, 100_000))),
    }
}

fn sample(s: &Sketch, vocabulary: usize, temperature: [f64; 2], top_k: (i64, i64)) {
    let rows = 24;
    let logits = s.uniform(DType::F32, &[rows, vocabulary], (-8.0, 8.0));
    let logits = s.input_as("logits", shape!["rows", vocabulary], logits);
    s.output("drawn", logits.sample(parameters(s, rows, temperature, top_k)));
}
