//! Reductions, running reductions, sorting and choosing.

use mlxcel_ir::{Builder, DType, HostTensor, ReduceOp, shape};

use crate::support::{Case, Random};

const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];

fn numbers() -> impl Iterator<Item = DType> {
    DType::PLAIN.into_iter().filter(|d| *d != DType::Bool)
}

#[test]
fn reductions_over_any_axes_are_those_of_the_reference() {
    let mut r = Random(21);
    for d in numbers().filter(|d| !matches!(d, DType::F8E4M3 | DType::F8E5M2)) {
        for n in [5, 0] {
            let b = Builder::new();
            let x = b.input("x", d, shape![3, "n", 4]);
            for op in OPS {
                for axes in [&[0][..], &[1], &[2], &[0, 2], &[2, 0, 1], &[]] {
                    b.output(&format!("{op:?}{axes:?}"), x.reduce(op, axes));
                    b.output(&format!("{op:?}{axes:?}t"), x.transpose(&[2, 0, 1]).reduce(op, axes));
                }
            }
            Case::new(b).feed("x", r.tensor(d, &[3, n, 4])).check(&format!("{d}, n = {n}"));
        }
    }
}

#[test]
fn long_sums_stay_precise_and_nan_is_not_lost() {
    let mut r = Random(22);
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["n", "m"]);
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
        b.output(&format!("{op:?}0"), x.reduce(op, &[0]));
        b.output(&format!("{op:?}1"), x.reduce(op, &[1]));
    }
    let mut t = r.tensor(DType::F32, &[20, 5001]).to_vec::<f32>().unwrap();
    t[7 * 5001 + 33] = f32::NAN;
    Case::new(b).feed("x", HostTensor::new(&[20, 5001], &t)).check("long lines");
}

#[test]
fn running_reductions_carry_along_any_axis() {
    let mut r = Random(23);
    for d in numbers().filter(|d| !matches!(d, DType::F8E4M3 | DType::F8E5M2)) {
        for n in [6, 0] {
            let b = Builder::new();
            let x = b.input("x", d, shape![2, "n", 3]);
            for (op, axis) in OPS.into_iter().flat_map(|op| (0..3).map(move |a| (op, a))) {
                b.output(&format!("{op:?}{axis}"), x.cumulative(op, axis));
                b.output(&format!("{op:?}{axis}t"), x.transpose(&[1, 2, 0]).cumulative(op, axis));
            }
            Case::new(b).feed("x", r.tensor(d, &[2, n, 3])).check(&format!("{d}, n = {n}"));
        }
    }
}

#[test]
fn sorting_is_stable_and_puts_nan_above_everything() {
    for d in DType::PLAIN {
        for n in [9, 1, 0] {
            let b = Builder::new();
            let x = b.input("x", d, shape![3, "n"]);
            for axis in 0..2 {
                for (i, t) in x.sort_ascending(axis).into_iter().chain(x.sort_descending(axis)).enumerate() {
                    b.output(&format!("axis{axis} {i}"), t);
                }
            }
            // Few different numbers, so that equal ones occur.
            let values: Vec<f64> = (0..3 * n).map(|i| ((i * 7) % 4) as f64 - 1.0).collect();
            Case::new(b).feed("x", HostTensor::from_f64(d, &[3, n], &values)).check(&format!("{d}, n = {n}"));
        }
    }
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["n"]);
    x.sort_descending(0)
        .into_iter()
        .chain(x.top_k(2))
        .enumerate()
        .for_each(|(i, t)| b.output(&format!("{i}"), t));
    b.output("argmax", x.argmax(0));
    Case::new(b).feed("x", HostTensor::new(&[4], &[1.0, f32::NAN, 3.0, f32::NAN])).check("NaN");
}

#[test]
fn the_largest_are_found_first_ones_first() {
    let mut r = Random(24);
    for d in [DType::F32, DType::BF16, DType::F64, DType::I32, DType::U8] {
        for rows in [4, 0] {
            let b = Builder::new();
            let x = b.input("x", d, shape!["rows", 300]);
            for k in [1, 7, 300] {
                let [values, places] = x.top_k(k);
                b.output(&format!("values{k}"), values);
                b.output(&format!("places{k}"), places);
            }
            b.output("argmax1", x.argmax(1));
            b.output("column", x.slice(1, 3, 9).transpose(&[1, 0]).argmax(0));
            let case = Case::new(b).feed("x", r.tensor(d, &[rows, 300]));
            case.check(&format!("{d}, {rows} rows"));
        }
    }
}
