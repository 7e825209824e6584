//! Routing and sampling.

use mlxcel_ir::{RouteGroups, RouteScore, RouteSpec, SampleParams, shape};

use super::{Build, Golden};

pub(super) const CASES: &[(&str, Build)] = &[
    ("route_softmax", softmax),
    ("route_softmax_of_chosen", |g| one(g, spec(4, RouteScore::SoftmaxOfChosen))),
    ("route_grouped_sigmoid", grouped),
    ("route_sigmoid", |g| one(g, RouteSpec { scale: 1.5, ..spec(2, RouteScore::Sigmoid) })),
    ("draws", draws),
];

fn spec(top_k: usize, score: RouteScore) -> RouteSpec {
    RouteSpec { top_k, score, renormalize: false, scale: 1.0, groups: None, correction: false }
}

fn one(g: &Golden<'_>, spec: RouteSpec) {
    let [weights, ids] = g.x("logits").moe_route(spec, None);
    g.y("weights", weights);
    g.y("ids", ids);
}

fn softmax(g: &Golden<'_>) {
    let logits = g.x("logits");
    let [plain, ids] = logits.moe_route(spec(3, RouteScore::Softmax), None);
    let renormalize = RouteSpec { renormalize: true, ..spec(3, RouteScore::Softmax) };
    g.y("plain", plain);
    g.y("ids", ids);
    g.y("renormalised", logits.moe_route(renormalize, None)[0]);
}

fn grouped(g: &Golden<'_>) {
    let groups = Some(RouteGroups { count: 4, keep: 2 });
    let spec = RouteSpec { groups, renormalize: true, scale: 2.5, ..spec(5, RouteScore::Sigmoid) };
    let [weights, ids] = g.x("logits").moe_route(spec, Some(g.x("correction")));
    g.y("weights", weights);
    g.y("ids", ids);
}

fn draws(g: &Golden<'_>) {
    let row = |name: &str| g.x_as(name, shape!["rows"]);
    let logits = g.x_as("logits", shape!["rows", 30]);
    let drawn = logits.sample(SampleParams {
        temperature: row("temperature"),
        top_k: row("top_k"),
        top_p: row("top_p"),
        min_p: row("min_p"),
        seed: row("seed"),
        step: row("step"),
    });
    g.y("drawn", drawn);
}
