//! What of a graph depends on weights only is computed once, when it is compiled.

use mlxcel_engine::weights::WeightTensor;
use mlxcel_ir::{Builder, DType, GgufFormat, HostTensor, QuantFormat, shape};

use crate::support::{Case, Random};

#[test]
fn transposed_joined_and_shifted_weights_give_the_same_numbers() {
    let mut r = Random(101);
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 24]);
    let w = b.weight("w", DType::F32, &[24, 40]);
    let (u, v) = (b.weight("u", DType::BF16, &[6, 24]), b.weight("v", DType::BF16, &[10, 24]));
    let norm = b.weight("norm", DType::F32, &[24]);
    b.output("transposed", x.linear(w.transpose(&[1, 0]), None));
    b.output("joined", x.linear(b.concat(&[u, v], 0), None));
    b.output("cut", x.linear(v.slice(0, 2, 7), None));
    b.output("reshaped", x.linear(u.reshape(shape![2, 3, 24]).reshape(shape![6, 24]), None));
    b.output("shifted", x.rms_norm(1e-6, Some(norm + 1.0)));
    b.output("weight itself", v.slice(0, 1, 3));
    let case =
        Case::new(b).feed("x", r.tensor(DType::F32, &[5, 24])).weight("w", r.weight(DType::F32, &[24, 40]));
    let case =
        case.weight("u", r.weight(DType::BF16, &[6, 24])).weight("v", r.weight(DType::BF16, &[10, 24]));
    case.weight("norm", r.weight(DType::F32, &[24])).check("folded");
}

#[test]
fn packed_weights_are_joined_and_cut_without_being_unpacked() {
    let mut r = Random(102);
    let q = DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0));
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 32]);
    let (u, v) = (b.weight("u", q, &[6, 32]), b.weight("v", q, &[10, 32]));
    b.output("joined", x.linear(b.concat(&[u, v], 0), None));
    let mut packed = |rows: usize| {
        let mut bytes = vec![];
        for _ in 0..rows {
            bytes.extend_from_slice(HostTensor::from_f64(DType::F16, &[], &[0.01]).bytes());
            bytes.extend((0..32).map(|_| r.bits() as u8));
        }
        let parts = vec![mlxcel_engine::weights::Bytes::copied(&[&bytes])];
        WeightTensor::new(q, vec![rows, 32], parts).unwrap()
    };
    let case = Case::new(b).weight("u", packed(6)).weight("v", packed(10));
    case.feed("x", r.tensor(DType::F32, &[3, 32])).check("packed");
}

#[test]
fn integer_and_boolean_weights_are_values_like_any_other() {
    let mut r = Random(103);
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["n", 4]);
    let (i, k) = (b.weight("i", DType::I64, &[4]), b.weight("k", DType::Bool, &[4]));
    b.output("sum", x + i.cast(DType::F32));
    b.output("kept", k.select(x, x * 0.0));
    let case = Case::new(b).feed("x", r.tensor(DType::F32, &[3, 4])).weight("i", r.weight(DType::I64, &[4]));
    case.weight("k", r.weight(DType::Bool, &[4])).check("integers");
}
