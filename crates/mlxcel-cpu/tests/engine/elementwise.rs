//! Ops on single elements, in every type, with broadcasting and strided operands.

use mlxcel_ir::{Activation, Builder, DType, HostTensor, Tensor, shape};

use crate::support::{Case, Random};

const SHAPE: [usize; 3] = [3, 5, 7];

/// The binary ops that a type has.
fn arithmetic<'g>(a: Tensor<'g>, b: Tensor<'g>) -> Vec<Tensor<'g>> {
    let mut all = vec![a.eq(b), a.ne(b), a.lt(b), a.le(b), a.gt(b), a.ge(b)];
    let d = a.dtype();
    if d != DType::Bool {
        all.extend([a + b, a - b, a * b, a / b, a % b, a.max(b), a.min(b)]);
    }
    if d.is_int() {
        all.extend([a << b, a >> b]);
    }
    if !d.is_float() {
        all.extend([a & b, a | b, a ^ b, !a]);
    }
    if d.is_float() || d.is_int() {
        all.extend([-a, a.abs(), a.sign()]);
    }
    all
}

#[test]
fn arithmetic_is_that_of_the_reference_in_every_type() {
    let mut r = Random(1);
    for d in DType::PLAIN {
        let b = Builder::new();
        let x = b.input("x", d, shape![3, "n", 7]);
        let y = b.input("y", d, shape!["n", 1]);
        let both = arithmetic(x, y).into_iter().chain(arithmetic(x.transpose(&[2, 1, 0]), y));
        for (i, t) in both.enumerate() {
            b.output(&format!("o{i}"), t);
        }
        let (x, y) = (r.tensor(d, &SHAPE), r.tensor(d, &[5, 1]));
        Case::new(b).feed("x", x).feed("y", y).check(&format!("{d}"));
    }
}

#[test]
fn every_type_casts_to_every_other() {
    let mut r = Random(2);
    for from in DType::PLAIN {
        let b = Builder::new();
        let x = b.input("x", from, shape![3, 5, 7]);
        for to in DType::PLAIN {
            b.output(&to.to_string(), x.cast(to));
        }
        Case::new(b).feed("x", r.tensor(from, &SHAPE)).check(&format!("from {from}"));
    }
}

#[test]
fn functions_of_one_number_are_those_of_the_reference() {
    for d in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let b = Builder::new();
        let x = b.input("x", d, shape!["n"]);
        let positive = x.abs() + 0.25;
        let of_all =
            [x.exp(), x.sin(), x.cos(), x.tanh(), x.erf(), x.sigmoid(), x.floor(), x.ceil(), x.round()];
        let of_positive = [positive.log(), positive.log1p(), positive.sqrt(), positive.rsqrt()];
        for (i, t) in of_all.into_iter().chain(of_positive).enumerate() {
            b.output(&format!("o{i}"), t);
        }
        b.output("pow", positive.pow(x));
        let values: Vec<f64> = (0..1500).map(|i| (i as f64 - 750.0) * 0.011).collect();
        Case::new(b).feed("x", HostTensor::from_f64(d, &[1500], &values)).check(&format!("{d}"));
    }
}

#[test]
fn activations_are_their_decompositions() {
    use Activation::*;
    for d in [DType::F64, DType::F32, DType::BF16] {
        let b = Builder::new();
        let x = b.input("x", d, shape!["n", 3]);
        for kind in [Relu, Relu2, Silu, Gelu, GeluTanh, QuickGelu, Softplus] {
            b.output(&format!("{kind:?}"), x.activation(kind));
        }
        let values: Vec<f64> = (0..1500).map(|i| (i as f64 - 750.0) * 0.013).collect();
        Case::new(b).feed("x", HostTensor::from_f64(d, &[500, 3], &values)).check(&format!("{d}"));
    }
}

#[test]
fn gated_activations_are_activations_and_products() {
    use Activation::*;
    let mut r = Random(9);
    for d in [DType::F32, DType::BF16] {
        let b = Builder::new();
        let both = b.input("both", d, shape!["n", 70]);
        let (x, y, row) = (both.slice(1, 0, 33), both.slice(1, 33, 66), b.input("row", d, shape![33]));
        let whole = b.input("whole", d, shape!["n", 33]);
        for kind in [Relu, Relu2, Silu, Gelu, GeluTanh, QuickGelu, Softplus] {
            b.output(&format!("{kind:?} first"), x.activation(kind) * y);
            b.output(&format!("{kind:?} second"), whole * y.activation(kind));
            b.output(&format!("{kind:?} itself"), whole * whole.activation(kind));
            b.output(&format!("{kind:?} row"), row * x.activation(kind));
            b.output(
                &format!("{kind:?} turned"),
                (x.transpose(&[1, 0]).activation(kind)) * y.transpose(&[1, 0]),
            );
        }
        let case = Case::new(b).feed("both", r.tensor(d, &[700, 70])).feed("row", r.tensor(d, &[33]));
        case.feed("whole", r.tensor(d, &[700, 33])).check(&format!("{d}"));
    }
}

#[test]
fn a_selection_takes_from_both_sides_and_nan_stays_nan() {
    let b = Builder::new();
    let (x, y) = (b.input("x", DType::F32, shape!["n"]), b.input("y", DType::F32, shape![]));
    b.output("chosen", x.gt(y).select(x, y));
    b.output("max", x.max(y));
    b.output("min", x.min(y));
    b.output("relu", x.activation(Activation::Relu));
    b.output("exp", x.exp());
    let values = [f32::NAN, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, 0.0];
    let case = Case::new(b).feed("x", HostTensor::new(&[6], &values)).feed("y", HostTensor::scalar(0.5f32));
    case.check("odd numbers");
}

#[test]
fn large_and_empty_tensors_run_alike() {
    let mut r = Random(3);
    for n in [0, 1, 511, 513, 70_000] {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["n", 2]);
        let y = b.input("y", DType::F32, shape!["n", 1]);
        let z = (x * y + 1.0).activation(Activation::Silu) - x.sigmoid() * y;
        b.output("z", z);
        b.output("t", (x.transpose(&[1, 0]) + y.reshape(shape![1, "n"])).exp());
        let case =
            Case::new(b).feed("x", r.tensor(DType::F32, &[n, 2])).feed("y", r.tensor(DType::F32, &[n, 1]));
        case.check(&format!("{n} rows"));
    }
}

#[test]
fn unsigned_numbers_beyond_the_signed_range_keep_their_order() {
    let b = Builder::new();
    let (x, y) = (b.input("x", DType::U64, shape!["n"]), b.input("y", DType::U64, shape!["n"]));
    for (i, t) in arithmetic(x, y).into_iter().chain([x.cast(DType::F32), x.cast(DType::F64)]).enumerate() {
        b.output(&format!("o{i}"), t);
    }
    b.output("sorted", x.sort_ascending(0)[0]);
    b.output("largest", x.reduce(mlxcel_ir::ReduceOp::Max, &[0]));
    let (x, y) = ([u64::MAX, 1, 1 << 63, 7, 0], [1, u64::MAX, 3, 0, 0]);
    Case::new(b).feed("x", HostTensor::new(&[5], &x)).feed("y", HostTensor::new(&[5], &y)).check("u64");
}
