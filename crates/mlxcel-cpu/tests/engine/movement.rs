//! Reshaping, slicing, joining and indexing, in types of every size.

use mlxcel_ir::{Builder, DType, Dim, HostTensor, ScatterMode, Tensor, shape};

use crate::support::{Case, Random};

/// One type of each size, and one that is not a number.
const TYPES: [DType; 6] = [DType::U8, DType::Bool, DType::BF16, DType::F32, DType::I64, DType::F8E4M3];

fn check(what: &str, body: impl for<'g> Fn(&'g Builder, Tensor<'g>, Tensor<'g>) -> Vec<Tensor<'g>>) {
    let mut r = Random(11);
    for d in TYPES {
        for n in [4, 1, 0] {
            let b = Builder::new();
            let x = b.input("x", d, shape![3, "n", 5]);
            let ids = b.input("ids", DType::I32, shape!["n"]);
            for (i, t) in body(&b, x, ids).into_iter().enumerate() {
                b.output(&format!("o{i}"), t);
            }
            let ids: Vec<i32> = (0..n).map(|_| r.below(7) as i32 - 1).collect();
            let case = Case::new(b).feed("x", r.tensor(d, &[3, n, 5]));
            case.feed("ids", HostTensor::new(&[n], &ids)).check(&format!("{what} of {d}, n = {n}"));
        }
    }
}

#[test]
fn views_show_the_elements_that_copies_would() {
    check("views", |_, x, _| {
        let t = x.transpose(&[2, 0, 1]);
        vec![
            t,
            x.reshape(shape!["n", 15]),
            t.reshape(shape![15, "n"]),
            t.slice(0, 1, 4).reshape(shape!["n", 9]),
            x.slice_step(2, 0, 5, 2),
            x.slice(2, 1, 3).transpose(&[2, 1, 0]),
            x.slice(2, 0, 1).broadcast(shape![2, 3, "n", 4]),
            x.slice(2, 0, 1).broadcast(shape![3, "n", 4]).reshape(shape!["n", 12]),
            x.slice(1, 0, "n").slice(0, 2, 2),
        ]
    });
}

#[test]
fn matrices_are_turned_whole_whoever_turns_which_part() {
    let mut r = Random(15);
    // Large enough for several threads, and no multiple of anything that is copied together.
    for (d, sizes) in [(DType::F32, [3, 97, 421]), (DType::U8, [2, 523, 131]), (DType::I64, [1, 419, 307])] {
        let b = Builder::new();
        let x = b.input("x", d, sizes.map(Dim::fixed).to_vec());
        b.output("turned", x.transpose(&[0, 2, 1]));
        b.output("back", x.transpose(&[2, 1, 0]));
        b.output("some", x.slice(1, 3, 90).transpose(&[0, 2, 1]));
        Case::new(b).feed("x", r.tensor(d, &sizes)).check(&format!("{d} of {sizes:?}"));
    }
}

#[test]
fn joins_and_padding_keep_their_places() {
    check("joins", |b, x, _| {
        let t = x.transpose(&[2, 1, 0]);
        vec![
            b.concat(&[x, x, x.slice(0, 1, 2)], 0),
            b.concat(&[x, x], 1),
            b.concat(&[x.slice(2, 3, 5), x, t.transpose(&[2, 1, 0])], 2),
            x.pad(&[1, 0, 2], &[0, 2, 1], x.number(1.0)),
            t.pad(&[0, 1, 0], &[2, 0, 0], x.number(1.0)),
        ]
    });
}

#[test]
fn rows_are_taken_and_put_by_index() {
    check("indices", |_, x, ids| {
        let t = x.transpose(&[2, 1, 0]);
        let column = ids.reshape(shape!["n", 1]);
        let along = ids.reshape(shape![1, "n", 1]).broadcast(shape![3, "n", 1]);
        let rows = x.transpose(&[1, 0, 2]);
        vec![
            x.gather(ids, 0),
            x.gather(column, 2),
            t.gather(ids, 0),
            x.take_along(along, 2),
            rows.scatter(ids, x.reshape(shape!["n", 3, 5]), ScatterMode::Set),
            t.reshape(shape![5, "n", 3]).scatter(
                ids,
                x.reshape(shape!["n", 5, 3])
                    .broadcast(shape!["n", 5, 3])
                    .gather(ids, 0)
                    .slice(1, 0, 1)
                    .broadcast(shape!["n", "n", 3]),
                ScatterMode::Set,
            ),
        ]
    });
}

#[test]
fn scattered_sums_add_up_in_every_number_type() {
    let mut r = Random(12);
    for d in DType::PLAIN.into_iter().filter(|d| *d != DType::Bool) {
        let b = Builder::new();
        let x = b.input("x", d, shape![4, 3]);
        let ids = b.input("ids", DType::I64, shape!["n"]);
        let u = b.input("u", d, shape!["n", 3]);
        b.output("y", x.scatter(ids, u, ScatterMode::Add));
        let ids = HostTensor::new(&[6], &[0i64, 3, 0, -1, 9, 2]);
        let case = Case::new(b).feed("x", r.tensor(d, &[4, 3])).feed("u", r.tensor(d, &[6, 3]));
        case.feed("ids", ids).check(&format!("{d}"));
    }
}

#[test]
fn slices_at_computed_places_are_clamped() {
    let mut r = Random(13);
    for (starts, d) in [([0, 1, 2], DType::F32), ([-5, 9, 1], DType::I8), ([2, 0, 40], DType::F64)] {
        let b = Builder::new();
        let x = b.input("x", d, shape![3, "n", 5]);
        let at = b.input("at", DType::I32, shape![3]);
        let part = b.input("part", d, shape![1, 2, 3]);
        b.output("cut", x.dynamic_slice(at, shape![1, 2, 3]));
        b.output("put", x.update_slice(part, at));
        b.output("both", x.update_slice(part, at).dynamic_slice(at, shape![2, 2, 4]));
        let case = Case::new(b).feed("x", r.tensor(d, &[3, 4, 5])).feed("part", r.tensor(d, &[1, 2, 3]));
        case.feed("at", HostTensor::new(&[3], &starts)).check(&format!("{starts:?}"));
    }
}

#[test]
fn counting_runs_along_any_axis_in_any_type() {
    for d in DType::PLAIN.into_iter().filter(|d| *d != DType::Bool) {
        let b = Builder::new();
        let _ = b.input("n", DType::I32, shape!["n"]);
        for axis in 0..3 {
            b.output(&format!("axis{axis}"), b.iota(d, shape![2, "n", 4], axis));
        }
        b.output("size", b.size(&"2*n+1".parse().unwrap()).cast(d));
        Case::new(b).feed("n", HostTensor::new(&[3], &[0i32; 3])).check(&format!("{d}"));
    }
}
