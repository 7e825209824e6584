//! Ops with state, over several steps of a ragged batch. The plans are those of the Python scripts.

use mlxcel_ir::{DType, Op, PagedSpec, shape};

use super::{Build, Golden};
use crate::ops::ragged::Ragged;

pub(super) const PAGED: &[(&str, Build)] = &[
    ("paged_plain", |g| paged(g, (4, 2, 8), spec(0.35))),
    ("paged_window", |g| paged(g, (4, 4, 8), PagedSpec { window: Some(3), ..spec(0.35) })),
    ("paged_soft_cap", |g| paged(g, (2, 1, 8), PagedSpec { softcap: Some(1.5), ..spec(2.0) })),
    ("paged_sinks", |g| paged(g, (4, 2, 8), PagedSpec { window: Some(4), sinks: true, ..spec(0.35) })),
    ("paged_values_in_keys", |g| {
        paged(g, (4, 1, 12), PagedSpec { value_dim: Some(7), ..spec(1.0 / 12f64.sqrt()) });
    }),
];

pub(super) const RECURRENT: &[(&str, Build)] =
    &[("selective_scans", selective_scans), ("causal_convolutions", causal_convolutions)];

const PAGED_PLAN: [&[usize]; 4] = [&[5, 0, 2], &[1, 6, 0], &[3, 1, 1], &[1, 1, 1]];
const RECURRENT_PLAN: [&[usize]; 3] = [&[4, 2], &[1, 3], &[1, 1]];

fn spec(scale: f64) -> PagedSpec {
    PagedSpec { scale, window: None, softcap: None, sinks: false, value_dim: None }
}

fn paged(g: &Golden<'_>, (heads, kv_heads, dim): (usize, usize, usize), spec: PagedSpec) {
    let ragged = Ragged::new(&PAGED_PLAN, g.block_size);
    let batch = ragged.declare_paged(&g.sketch);
    let q = g.x_as("q", shape!["tokens", heads, dim]);
    let k = g.x_as("k", shape!["tokens", kv_heads, dim]);
    let v = spec.value_dim.is_none().then(|| g.x_as("v", shape!["tokens", kv_heads, dim]));
    let sinks = spec.sinks.then(|| g.x("sinks"));
    g.y("y", g.sketch.b().paged_attention((q, k, v), batch, sinks, 0, spec));
    g.steps(&ragged.feeds());
}

fn recurrent_batch(g: &Golden<'_>) -> Ragged<'static> {
    Ragged { slots: &[2, 0], ..Ragged::new(&RECURRENT_PLAN, g.block_size) }
}

fn selective_scans(g: &Golden<'_>) {
    let ragged = recurrent_batch(g);
    let [positions, slots] = ragged.declare_slots(&g.sketch, 3);
    let [x, dt] = ["x", "dt"].map(|name| g.x_as(name, shape!["tokens", 6]));
    let [b, c] = ["b", "c"].map(|name| g.x_as(name, shape!["tokens", 4]));
    let state = g.sketch.b().state("state", DType::F32, shape!["slots", 6, 4]);
    let operands = [x, dt, g.x("a"), b, c, g.x("d"), state, positions, slots];
    let results = g.sketch.b().apply(Op::SelectiveScan, &operands);
    g.y("y", results[0]);
    g.sketch.b().update("state", results[1]);
    g.steps(&ragged.feeds());
}

fn causal_convolutions(g: &Golden<'_>) {
    let ragged = recurrent_batch(g);
    let [positions, slots] = ragged.declare_slots(&g.sketch, 3);
    let x = g.x_as("x", shape!["tokens", 5]);
    let state = g.sketch.b().state("state", DType::F32, shape!["slots", 5, 3]);
    let results = g.sketch.b().apply(Op::CausalConv, &[x, g.x("w"), g.x("bias"), state, positions, slots]);
    g.y("y", results[0]);
    g.sketch.b().update("state", results[1]);
    g.steps(&ragged.feeds());
}
