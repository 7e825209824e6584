//! Norms, softmax and rope.

use mlxcel_engine::Engine;
use mlxcel_ir::{Builder, DType, HostTensor, Op, shape};

use crate::support::{Case, Random, assert_near, engines};

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

#[test]
fn norms_are_their_decompositions() {
    let mut r = Random(41);
    for (d, rows) in TYPES.into_iter().flat_map(|d| [5, 0].map(|n| (d, n))) {
        let b = Builder::new();
        let x = b.input("x", d, shape!["n", 3, 37]);
        let (w, c) = (b.input("w", d, shape![37]), b.input("c", d, shape![37]));
        b.output("rms", x.rms_norm(1e-5, Some(w)));
        b.output("rms plain", x.rms_norm(1e-5, None));
        b.output("layer", x.layer_norm(1e-5, Some(w), Some(c)));
        b.output("layer weight", x.layer_norm(1e-5, Some(w), None));
        b.output("layer plain", x.layer_norm(1e-5, None, None));
        b.output("strided", x.transpose(&[1, 0, 2]).rms_norm(1e-6, Some(c)));
        let sum = x + x.transpose(&[0, 1, 2]) * 0.5;
        b.output("sum", sum);
        b.output("of sum", sum.rms_norm(1e-5, Some(w)));
        for axis in 0..3 {
            b.output(&format!("softmax{axis}"), x.softmax(axis));
        }
        b.output("softmax of columns", x.transpose(&[1, 2, 0]).softmax(2));
        let case = Case::new(b).feed("x", r.tensor(d, &[rows, 3, 37]));
        case.feed("w", r.tensor(d, &[37])).feed("c", r.tensor(d, &[37])).check(&format!("{d}, {rows} rows"));
    }
}

#[test]
fn rope_is_its_decomposition_at_ordinary_positions() {
    let mut r = Random(42);
    // Angles are `f32` whatever the type, so doubles would only show how they are rounded.
    let types = TYPES.into_iter().filter(|d| *d != DType::F64);
    for (d, tokens) in types.flat_map(|d| [6, 0].map(|n| (d, n))) {
        let b = Builder::new();
        let x = b.input("x", d, shape!["tokens", 3, 20]);
        let at = b.input("at", DType::I32, shape!["tokens"]);
        let f = b.input("f", DType::F32, shape![10]);
        let own = b.input("own", DType::F32, shape!["tokens", 10]);
        for (name, interleaved) in [("halves", false), ("pairs", true)] {
            let op = Op::Rope { interleaved, scale: 1.25 };
            b.output(name, x.rope(at, f, op.clone()));
            b.output(&format!("{name} partial"), x.rope(at, f.slice(0, 0, 6), op.clone()));
            b.output(&format!("{name} own"), x.rope(at, own, op.clone()));
            b.output(&format!("{name} strided"), x.transpose(&[0, 1, 2]).slice(1, 1, 3).rope(at, f, op));
        }
        let at: Vec<i32> = (0..tokens as i32).map(|t| t * 3).collect();
        let case =
            Case::new(b).feed("x", r.tensor(d, &[tokens, 3, 20])).feed("f", r.tensor(DType::F32, &[10]));
        let case = case.feed("own", r.tensor(DType::F32, &[tokens, 10]));
        case.feed("at", HostTensor::new(&[tokens], &at)).check(&format!("{d}, {tokens} tokens"));
    }
}

/// The angle is rounded to `f32` before its sine is taken, as models were trained.
#[test]
fn rope_is_right_at_positions_up_to_a_million() {
    let (tokens, half) = (64, 16);
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 1, 32]);
    let at = b.input("at", DType::I32, shape!["tokens"]);
    let f = b.input("f", DType::F32, shape![16]);
    b.output("y", x.rope(at, f, Op::Rope { interleaved: false, scale: 1.0 }));
    let positions: Vec<i32> = (0..tokens as i32).map(|t| 999_937 - t * 15_551).collect();
    let frequencies: Vec<f32> = (0..half).map(|i| 10000f32.powf(-(i as f32) / half as f32)).collect();
    let mut r = Random(43);
    let input = r.tensor(DType::F32, &[tokens, 1, 2 * half]);
    let numbers = input.to_f64();
    let mut expected = vec![0.0; numbers.len()];
    for t in 0..tokens {
        for i in 0..half {
            let angle = (positions[t] as f32 * frequencies[i]) as f64;
            let (a, c) = (numbers[t * 2 * half + i], numbers[t * 2 * half + half + i]);
            expected[t * 2 * half + i] = a * angle.cos() - c * angle.sin();
            expected[t * 2 * half + half + i] = c * angle.cos() + a * angle.sin();
        }
    }
    let expected = HostTensor::from_f64(DType::F32, &[tokens, 1, 2 * half], &expected);
    let case = Case::new(b).feed("x", input).feed("at", HostTensor::new(&[tokens], &positions));
    let case = case.feed("f", HostTensor::new(&[half], &frequencies));
    for engine in engines() {
        assert_near(&case.run(&engine)[0], &expected, 1e-6, &engine.caps().device);
    }
}
