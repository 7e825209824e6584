//! Branches, loops and scans.

use mlxcel_ir::{Builder, DType, HostTensor, ReduceOp, ScatterMode, shape};

use crate::support::{Case, Random};

#[test]
fn a_branch_runs_the_side_that_its_condition_chooses() {
    let mut r = Random(81);
    for n in [3, 0] {
        for limit in [-10.0, 10.0] {
            let b = Builder::new();
            let x = b.input("x", DType::F32, shape!["n", 2]);
            let limit_in = b.input("limit", DType::F32, shape![]);
            let condition = x.reduce(ReduceOp::Sum, &[0, 1]).gt(limit_in);
            let results = b.if_else(
                condition,
                &[x, limit_in],
                |_, a| vec![a[0] * a[1], a[0].transpose(&[1, 0])],
                |_, a| vec![a[0] + a[1], (a[0] * 2.0).transpose(&[1, 0])],
            );
            b.output("a", results[0]);
            b.output("b", results[1]);
            let case = Case::new(b).feed("x", r.tensor(DType::F32, &[n, 2]));
            case.feed("limit", HostTensor::scalar(limit as f32)).check(&format!("limit {limit}, n = {n}"));
        }
    }
}

#[test]
fn a_loop_repeats_and_may_swap_what_it_carries() {
    let mut r = Random(82);
    for rounds in [0, 1, 7] {
        let b = Builder::new();
        let (x, y) = (b.input("x", DType::F32, shape!["n"]), b.input("y", DType::F32, shape!["n"]));
        let (i, rounds_in) = (b.scalar(0i32), b.input("rounds", DType::I32, shape![]));
        let results = b.while_loop(
            &[i, x, y],
            &[rounds_in],
            |_, a| a[0].lt(a[3]),
            |_, a| vec![a[0] + 1.0, a[2], a[1] * 0.5],
        );
        results.iter().enumerate().for_each(|(i, t)| b.output(&format!("{i}"), *t));
        let case = Case::new(b).feed("x", r.tensor(DType::F32, &[5])).feed("y", r.tensor(DType::F32, &[5]));
        case.feed("rounds", HostTensor::scalar(rounds)).check(&format!("{rounds} rounds"));
    }
}

#[test]
fn a_scan_stacks_outputs_and_carries_values() {
    let mut r = Random(83);
    for tokens in [6, 1, 0] {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 3]);
        let ids = b.input("ids", DType::I32, shape!["tokens"]);
        let table = b.input("table", DType::F32, shape![4, 3]);
        let w = b.input("w", DType::F32, shape![3]);
        let results = b.scan(&[table, w], &[x.transpose(&[0, 1]), ids], &[w], |_, a| {
            let [table, running, x, id, w] = a else { unreachable!() };
            let row = table.gather(*id, 0) * 0.5 + *x;
            let table = table.scatter(id.unsqueeze(0), row.unsqueeze(0), ScatterMode::Set);
            vec![table, *running + row, row * *w, table.slice(0, 1, 3).transpose(&[1, 0])]
        });
        results.iter().enumerate().for_each(|(i, t)| b.output(&format!("{i}"), *t));
        let ids: Vec<i32> = (0..tokens as i32).map(|i| i % 4).collect();
        let case =
            Case::new(b).feed("x", r.tensor(DType::F32, &[tokens, 3])).feed("w", r.tensor(DType::F32, &[3]));
        let case = case.feed("table", r.tensor(DType::F32, &[4, 3]));
        case.feed("ids", HostTensor::new(&[tokens], &ids)).check(&format!("{tokens} tokens"));
    }
}

#[test]
fn regions_nest() {
    let mut r = Random(84);
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 2]);
    let start = b.input("start", DType::F32, shape![2]);
    let results = b.scan(&[start], &[x], &[], |b, a| {
        let positive = a[1].reduce(ReduceOp::Sum, &[0]).gt(b.scalar(0f32));
        let next = b.if_else(positive, &[a[0], a[1]], |_, c| vec![c[0] + c[1]], |_, c| vec![c[0] - c[1]]);
        vec![next[0], next[0]]
    });
    b.output("last", results[0]);
    b.output("all", results[1]);
    let case = Case::new(b).feed("x", r.tensor(DType::F32, &[9, 2]));
    case.feed("start", r.tensor(DType::F32, &[2])).check("an if in a scan");
}
