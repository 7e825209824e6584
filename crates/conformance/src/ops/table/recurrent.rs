//! Recurrent layers: ragged batches over several steps, with a state slot per sequence.

use mlxcel_ir::{DType, HostTensor, Op, shape};

use super::{Sketch, Table};
use crate::ops::ragged::Ragged;

const PLAN: [&[usize]; 3] = [&[5, 0, 3], &[1, 6, 1], &[2, 1, 0]];
const SLOTS: [u32; 3] = [3, 0, 2];
const POOL: usize = 5;

pub(super) fn add(t: &mut Table) {
    let block = t.block_size;
    let ragged = Ragged { slots: &SLOTS, ..Ragged::new(&PLAN, block) };
    for (channels, width) in [(6, 4), (48, 16)] {
        t.floats(&format!("selective scan of {channels} channels"), |s, dtype| {
            selective_scan(s, dtype, (channels, width), &ragged);
        });
    }
    for (channels, kernel) in [(5, 2), (48, 4)] {
        t.floats(&format!("causal conv of {channels} channels"), |s, dtype| {
            causal_conv(s, dtype, (channels, kernel), &ragged);
        });
    }
    t.case("a slot taken over by a new sequence starts from zero", |s| {
        let again = Ragged { slots: &[1], ..Ragged::new(&[&[6]], block) };
        causal_conv(s, DType::F32, (4, 3), &again);
        s.step(vec![("x", s.normal(DType::F32, &[6, 4]))]);
    });
}

/// The per-token tensors of a step, by name and width.
fn fresh(
    s: &Sketch,
    dtype: DType,
    tokens: usize,
    names: &[(&'static str, usize)],
) -> Vec<(&'static str, HostTensor)> {
    let draw = |&(name, width): &(&'static str, usize)| {
        let shape = [tokens, width];
        // Time steps are positive.
        let t = if name == "dt" { s.uniform(dtype, &shape, (0.01, 0.7)) } else { s.normal(dtype, &shape) };
        (name, t)
    };
    names.iter().map(draw).collect()
}

fn selective_scan(s: &Sketch, dtype: DType, (channels, width): (usize, usize), ragged: &Ragged<'_>) {
    let names = [("x", channels), ("dt", channels), ("b", width), ("c", width)];
    let first = fresh(s, dtype, ragged.tokens(0), &names);
    let inputs: Vec<_> =
        first.into_iter().zip(names).map(|((n, t), (_, w))| s.input_as(n, shape!["tokens", w], t)).collect();
    let a = s.input("a", s.uniform(dtype, &[channels, width], (-2.0, -0.1)));
    let d = s.normal_weight("d", dtype, &[channels]);
    let [positions, slots] = ragged.declare_slots(s, POOL);
    let state = s.b().state("ssm.0", dtype, shape!["slots", channels, width]);
    let operands = [inputs[0], inputs[1], a, inputs[2], inputs[3], d, state, positions, slots];
    let results = s.b().apply(Op::SelectiveScan, &operands);
    s.output("y", results[0]);
    s.b().update("ssm.0", results[1]);
    for step in 1..ragged.plan.len() {
        let mut feeds = ragged.named(step);
        feeds.extend(fresh(s, dtype, ragged.tokens(step), &names));
        s.step(feeds);
    }
    // A narrow state is rounded after every token.
    s.slacken(4.0);
}

fn causal_conv(s: &Sketch, dtype: DType, (channels, kernel): (usize, usize), ragged: &Ragged<'_>) {
    let x = s.input_as("x", shape!["tokens", channels], s.normal(dtype, &[ragged.tokens(0), channels]));
    let w = s.normal_weight("w", dtype, &[channels, kernel]);
    let bias = s.normal_weight("bias", dtype, &[channels]);
    let [positions, slots] = ragged.declare_slots(s, POOL);
    let state = s.b().state("conv.0", dtype, shape!["slots", channels, kernel - 1]);
    let results = s.b().apply(Op::CausalConv, &[x, w, bias, state, positions, slots]);
    s.output("y", results[0]);
    s.b().update("conv.0", results[1]);
    for step in 1..ragged.plan.len() {
        let mut feeds = ragged.named(step);
        feeds.push(("x", s.normal(dtype, &[ragged.tokens(step), channels])));
        s.step(feeds);
    }
}
