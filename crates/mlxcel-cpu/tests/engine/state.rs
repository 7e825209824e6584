//! State that graphs declare: written in place where nobody looks, and right where somebody does.

use mlxcel_engine::{Engine, Feeds, Program, ReferenceEngine};
use mlxcel_ir::{Bindings, Builder, DType, Graph, HostTensor, ScatterMode, shape};

use crate::support::{Case, Random, Weights, engine, step};

fn feeds(mut r: Random) -> impl Fn(Case) -> Case {
    let (x, ids) = (r.tensor(DType::F32, &[3, 4]), HostTensor::new(&[3], &[2i32, -1, 5]));
    move |case| case.feed("x", x.clone()).feed("ids", ids.clone()).dim("blocks", 6)
}

#[test]
fn a_state_that_is_read_after_it_is_written_keeps_both_values() {
    let feed = feeds(Random(91));
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 4]);
    let ids = b.input("ids", DType::I32, shape!["tokens"]);
    let s = b.state("s", DType::F32, shape!["blocks", 2, 2]);
    let flat = s.reshape(shape!["blocks", 4]);
    let once = flat.scatter(ids, x, ScatterMode::Set);
    let twice = once.scatter(ids, x * 2.0, ScatterMode::Add);
    b.output("before", s * 1.0);
    b.output("difference", twice - flat);
    b.update("s", twice.reshape(shape!["blocks", 2, 2]));
    feed(Case::new(b)).check("old and new");
}

#[test]
fn states_may_exchange_their_values() {
    let feed = feeds(Random(92));
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 4]);
    let ids = b.input("ids", DType::I32, shape!["tokens"]);
    let (s, t) =
        (b.state("s", DType::F32, shape!["blocks", 4]), b.state("t", DType::F32, shape!["blocks", 4]));
    b.update("s", t);
    b.update("t", s.scatter(ids, x, ScatterMode::Add));
    b.output("s", s + 0.0);
    b.output("t", t + 0.0);
    feed(Case::new(b)).check("exchange");
}

#[test]
fn a_state_takes_another_as_it_was_before_the_step() {
    let feed = feeds(Random(94));
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 4]);
    let ids = b.input("ids", DType::I32, shape!["tokens"]);
    let [r, s, t] = ["r", "s", "t"].map(|name| b.state(name, DType::F32, shape!["blocks", 4]));
    b.update("r", t);
    b.update("s", (r + 1.0).scatter(ids, x, ScatterMode::Add));
    b.update("t", s);
    for (name, state) in [("r", r), ("s", s), ("t", t)] {
        b.output(name, state * 1.0);
    }
    feed(Case::new(b)).check("a ring");
}

#[test]
fn a_state_without_an_update_stays_as_it_is() {
    let feed = feeds(Random(93));
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 4]);
    let ids = b.input("ids", DType::I32, shape!["tokens"]);
    let s = b.state("s", DType::F32, shape!["blocks", 4]);
    b.output("y", s.scatter(ids, x, ScatterMode::Add));
    feed(Case::new(b)).check("no update");
}

fn cache() -> Graph {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 4]);
    let ids = b.input("ids", DType::I32, shape!["tokens"]);
    let s = b.state("s", DType::F32, shape!["blocks", 4]);
    let written = s.scatter(ids, x, ScatterMode::Set);
    b.update("s", written);
    b.output("y", written);
    b.finish().unwrap()
}

fn write(program: &mut dyn Program, ids: &[i32], numbers: &[f32]) -> Vec<f64> {
    let mut feeds = Feeds::new();
    feeds.insert("ids", HostTensor::new(&[ids.len()], ids));
    feeds.insert("x", HostTensor::new(&[ids.len(), 4], numbers));
    step(program, &feeds, &["y"])[0].to_f64()
}

#[test]
fn entries_of_a_state_are_copied_and_bounds_are_checked() {
    let (graph, dims) = (cache(), Bindings::from([("blocks".into(), 3)]));
    let mut program = engine().compile(&graph, &Weights::default(), &dims).unwrap();
    let mut reference = ReferenceEngine.compile(&graph, &Weights::default(), &dims).unwrap();
    for p in [&mut program, &mut reference] {
        write(&mut **p, &[0], &[1.0, 2.0, 3.0, 4.0]);
        p.copy_state("blocks", &[(0, 2), (1, 0)]).unwrap();
        assert!(p.copy_state("blocks", &[(0, 3)]).is_err());
        p.copy_state("slots", &[]).unwrap();
        assert_eq!(write(&mut **p, &[], &[]), [0., 0., 0., 0., 0., 0., 0., 0., 1., 2., 3., 4.]);
    }
}

#[test]
fn a_step_that_fails_says_what_is_wrong() {
    let (graph, dims) = (cache(), Bindings::from([("blocks".into(), 3)]));
    assert!(engine().compile(&graph, &Weights::default(), &Bindings::new()).is_err(), "blocks are not bound");
    let mut program = engine().compile(&graph, &Weights::default(), &dims).unwrap();
    let mut feeds = Feeds::new();
    feeds.insert("ids", HostTensor::new(&[1], &[0i32]));
    assert!(program.submit(&feeds, &["y"]).is_err(), "x is missing");
    feeds.insert("x", HostTensor::new(&[2, 4], &[0f32; 8]));
    assert!(program.submit(&feeds, &["y"]).is_err(), "x has more tokens than ids");
    assert!(program.collect(mlxcel_engine::Ticket(1)).is_err());
    assert_eq!(write(&mut *program, &[2], &[1.0; 4])[8..], [1.0; 4]);
}
