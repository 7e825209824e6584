//! One program, step after step: what it kept of the last step holds for the next one, or is found anew.

use mlxcel_engine::{Engine, Feeds, ReferenceEngine};
use mlxcel_ir::{Bindings, Builder, DType, Graph, HostTensor, ScatterMode, shape};

use crate::support::{Random, Weights, assert_close, engine, step};

/// The steps of one program give what the reference gives; a step names the outputs that it wants.
fn check(graph: &Graph, dims: &Bindings, steps: &[(Feeds, &[&str])]) {
    let weights = Weights::default();
    let mut program = engine().compile(graph, &weights, dims).unwrap();
    let mut reference = ReferenceEngine.compile(graph, &weights, dims).unwrap();
    for (i, (feeds, outputs)) in steps.iter().enumerate() {
        let (found, expected) = (step(&mut *program, feeds, outputs), step(&mut *reference, feeds, outputs));
        for ((f, e), name) in found.iter().zip(&expected).zip(*outputs) {
            assert_close(f, e, &format!("{name} of step {i}"));
        }
    }
}

#[test]
fn steps_may_change_their_size_and_their_outputs() {
    let mut r = Random(51);
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 6]);
    let ids = b.input("ids", DType::I32, shape!["tokens"]);
    let s = b.state("s", DType::F32, shape!["blocks", 6]);
    let written = s.scatter(ids, x * 0.5, ScatterMode::Add);
    // A copy, since no strides say it.
    let turned = x.reshape(shape!["tokens", 2, 3]).transpose(&[0, 2, 1]).reshape(shape!["tokens", 6]);
    b.update("s", written);
    b.output("first", turned * 2.0);
    b.output("second", written.gather(ids, 0) - x);
    let graph = b.finish().unwrap();
    let mut steps = vec![];
    for (tokens, outputs) in [
        (2, &["first", "second"][..]),
        (2, &["first", "second"]),
        (2, &["first", "second"]),
        (2, &["second"]),
        (2, &["second"]),
        // Everything lies elsewhere from here on.
        (200, &["second"]),
        (2, &["first", "second"]),
        (2, &["second"]),
        (1, &["second"]),
        (1, &["second"]),
        (200, &["first", "second"]),
        (200, &["first", "second"]),
        (200, &["first", "second"]),
    ] {
        let ids: Vec<i32> = (0..tokens).map(|_| r.below(5) as i32).collect();
        let mut feeds = Feeds::new();
        feeds.insert("ids", HostTensor::new(&[ids.len()], &ids));
        feeds.insert("x", r.tensor(DType::F32, &[ids.len(), 6]));
        steps.push((feeds, outputs));
    }
    check(&graph, &Bindings::from([("blocks".into(), 5)]), &steps);
}

#[test]
fn a_place_that_is_computed_is_computed_in_every_step() {
    let mut r = Random(52);
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape![4, 5]);
    let at = b.input("at", DType::I32, shape![2]);
    b.output("cut", x.dynamic_slice(at, shape![2, 3]));
    b.output("sum", x.dynamic_slice(at, shape![2, 3]) + 1.0);
    let graph = b.finish().unwrap();
    let step = |at: [i32; 2]| {
        let mut feeds = Feeds::new();
        feeds.insert("at", HostTensor::new(&[2], &at));
        feeds.insert("x", r.tensor(DType::F32, &[4, 5]));
        (feeds, &["cut", "sum"][..])
    };
    let steps: Vec<_> = [[0, 0], [0, 0], [1, 2], [2, 1], [0, 0]].map(step).into();
    check(&graph, &Bindings::new(), &steps);
}
