//! Products with stored weights: every format, batch invariance, experts, embeddings.

use mlxcel_cpu::CpuEngine;
use mlxcel_engine::Engine;
use mlxcel_engine::weights::quant::encode_affine;
use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_ir::{
    Builder, DType, GgufFormat, HostTensor, QuantFormat, RouteGroups, RouteScore, RouteSpec, ScaleType, shape,
};

use crate::support::{Case, Random, assert_near, engines};

/// A packed weight of random codes, whose scales are small halves.
pub fn packed(r: &mut Random, format: QuantFormat, rows: usize, cols: usize) -> WeightTensor {
    let dtype = DType::Quant(format);
    match format {
        QuantFormat::Gguf(g) => {
            let bytes = dtype.storage_bytes(&[rows, cols]).unwrap();
            let mut data: Vec<u8> = (0..bytes).map(|_| r.bits() as u8).collect();
            let (_, size) = g.block();
            data.chunks_mut(size).for_each(|block| tame(r, g, block));
            WeightTensor::new(dtype, vec![rows, cols], vec![Bytes::copied(&[&data])]).unwrap()
        }
        QuantFormat::MxFp4 => {
            let codes: Vec<u8> = (0..rows * cols / 2).map(|_| r.bits() as u8).collect();
            let scales: Vec<u8> = (0..rows * cols / 32).map(|_| 120 + r.below(8) as u8).collect();
            let parts = vec![Bytes::copied(&[&codes]), Bytes::copied(&[&scales])];
            WeightTensor::new(dtype, vec![rows, cols], parts).unwrap()
        }
        QuantFormat::Affine { bits, group, scale } => {
            let values: Vec<f32> = (0..rows * cols).map(|_| r.number() as f32).collect();
            let t = encode_affine(&values, cols, bits, group).unwrap();
            let narrow = |part: &Bytes| {
                let floats: Vec<f64> =
                    part.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64).collect();
                Bytes::copied(&[HostTensor::from_f64(scale.dtype(), &[floats.len()], &floats).bytes()])
            };
            let parts = vec![t.parts[0].clone(), narrow(&t.parts[1]), narrow(&t.parts[2])];
            WeightTensor::new(dtype, vec![rows, cols], parts).unwrap()
        }
    }
}

/// Replaces the scales of a block, which random bits may make infinite.
fn tame(r: &mut Random, g: GgufFormat, block: &mut [u8]) {
    let half = |r: &mut Random| half_bytes(0.01 + 0.01 * r.number().abs());
    let size = block.len();
    let at: &[usize] = match g {
        GgufFormat::Q4_1 | GgufFormat::Q5_1 | GgufFormat::Q4K | GgufFormat::Q5K => &[0, 2],
        GgufFormat::Q2K => &[80, 82],
        GgufFormat::Q3K => &[108],
        GgufFormat::Q6K => &[208],
        GgufFormat::MxFp4 => {
            block[0] = 120 + r.below(8) as u8;
            return;
        }
        _ => &[0],
    };
    for &place in at {
        assert!(place + 2 <= size);
        block[place..place + 2].copy_from_slice(&half(r));
    }
}

fn half_bytes(v: f64) -> [u8; 2] {
    HostTensor::from_f64(DType::F16, &[], &[v]).bytes().try_into().unwrap()
}

pub fn formats() -> Vec<QuantFormat> {
    let mut all: Vec<QuantFormat> = GgufFormat::ALL.into_iter().map(QuantFormat::Gguf).collect();
    all.push(QuantFormat::MxFp4);
    for bits in [2, 3, 4, 5, 6, 8] {
        all.push(QuantFormat::Affine { bits, group: 64, scale: ScaleType::F16 });
    }
    all.push(QuantFormat::Affine { bits: 4, group: 32, scale: ScaleType::BF16 });
    all.push(QuantFormat::Affine { bits: 4, group: 128, scale: ScaleType::F32 });
    all.push(QuantFormat::Affine { bits: 8, group: 24, scale: ScaleType::F32 });
    all
}

/// `x · wᵀ + bias` in `f64` of the decoded weight.
pub fn exact(x: &HostTensor, w: &WeightTensor, bias: Option<&HostTensor>) -> HostTensor {
    let (x, k) = (x.to_f64(), w.shape[1]);
    let (w, n) = (w.to_f32(), w.shape[0]);
    let bias = bias.map(|b| b.to_f64());
    let mut out = vec![];
    for row in x.chunks(k) {
        for j in 0..n {
            let dot: f64 = row.iter().zip(&w[j * k..]).map(|(a, b)| a * *b as f64).sum();
            out.push(dot + bias.as_ref().map_or(0.0, |b| b[j]));
        }
    }
    HostTensor::from_f64(DType::F32, &[x.len() / k, n], &out)
}

fn linear_case(w: &WeightTensor, x: HostTensor, bias: Option<HostTensor>) -> Case {
    let b = Builder::new();
    let input = b.input("x", DType::F32, shape!["tokens", w.shape[1]]);
    let weight = b.weight("w", w.dtype, &w.shape);
    let c = bias.as_ref().map(|_| b.input("bias", DType::F32, shape![w.shape[0]]));
    b.output("y", input.linear(weight, c));
    let case = Case::new(b).weight("w", w.clone()).feed("x", x);
    match bias {
        Some(bias) => case.feed("bias", bias),
        None => case,
    }
}

#[test]
fn every_packed_format_multiplies_as_its_decoded_numbers() {
    let mut r = Random(51);
    for format in formats() {
        let cols = if format.block_len() == 24 { 24 * 29 } else { 768 };
        let w = packed(&mut r, format, 37, cols);
        for tokens in [1, 2, 7, 0] {
            let (x, bias) = (r.tensor(DType::F32, &[tokens, cols]), r.tensor(DType::F32, &[37]));
            let expected = exact(&x, &w, Some(&bias));
            let case = linear_case(&w, x, Some(bias));
            for engine in engines() {
                let found = &case.run(&engine)[0];
                let what = format!("{} with {tokens} tokens on {}", w.dtype, engine.caps().device);
                assert_near(found, &expected, 2e-6, &what);
            }
        }
    }
}

#[test]
fn panels_that_are_read_in_turn_multiply_as_those_that_follow_each_other() {
    let mut r = Random(58);
    let cols = 576;
    let affine = QuantFormat::Affine { bits: 4, group: 64, scale: ScaleType::F16 };
    // Places with as many panels each, and a last one with fewer.
    for rows in [8 * 16 * 3, 47 * 16, 47 * 16 - 5] {
        for format in [QuantFormat::Gguf(GgufFormat::Q4_1), QuantFormat::Gguf(GgufFormat::Q8_0), affine] {
            let w = packed(&mut r, format, rows, cols);
            for tokens in [1, 3, 4] {
                let x = r.tensor(DType::F32, &[tokens, cols]);
                let expected = exact(&x, &w, None);
                let case = linear_case(&w, x, None);
                for engine in engines() {
                    let what =
                        format!("{rows} rows of {}, {tokens} tokens, {}", w.dtype, engine.caps().device);
                    assert_near(&case.run(&engine)[0], &expected, 2e-6, &what);
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_spoils_its_own_row_and_no_other() {
    let mut r = Random(57);
    let w = packed(&mut r, QuantFormat::Gguf(GgufFormat::Q4K), 16, 512);
    for odd in [f64::NAN, f64::INFINITY] {
        let mut x = r.tensor(DType::F32, &[3, 512]).to_f64();
        x[512 + 300] = odd;
        x[1024..].fill(0.0);
        let case = linear_case(&w, HostTensor::from_f64(DType::F32, &[3, 512], &x), None);
        for engine in engines() {
            let found = case.run(&engine)[0].to_f64();
            let what = format!("{odd} on {}", engine.caps().device);
            assert!(found[..16].iter().all(|y| y.is_finite()), "{what}");
            assert!(found[16..32].iter().all(|y| !y.is_finite()), "{what}");
            assert!(found[32..].iter().all(|y| *y == 0.0), "{what}");
        }
    }
}

#[test]
fn plain_weights_of_any_width_multiply_as_the_reference_does() {
    let mut r = Random(52);
    let types = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2, DType::F64];
    for (d, [n, k]) in types.into_iter().flat_map(|d| [[5, 33], [70, 1], [17, 1040], [3, 0]].map(|s| (d, s)))
    {
        let w = r.weight(d, &[n, k]);
        for tokens in [1, 3, 13] {
            linear_case(&w, r.tensor(DType::F32, &[tokens, k]), None)
                .check(&format!("{d} {n} by {k}, {tokens} tokens"));
        }
    }
}

#[test]
fn narrow_activations_are_rounded_once() {
    let mut r = Random(53);
    for d in [DType::F16, DType::BF16, DType::F64] {
        let b = Builder::new();
        let x = b.input("x", d, shape!["tokens", 2, 48]);
        let w = b.weight("w", DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0)), &[20, 32]);
        b.output("y", x.slice(2, 8, 40).linear(w, None));
        b.output("t", x.transpose(&[1, 0, 2]).slice(2, 0, 32).linear(w, None));
        let w = packed(&mut r, QuantFormat::Gguf(GgufFormat::Q8_0), 20, 32);
        Case::new(b).weight("w", w).feed("x", r.tensor(d, &[5, 2, 48])).check(&format!("{d}"));
    }
}

/// The rows of `y` for the first tokens of `x`, as bytes.
fn first_rows(engine: &CpuEngine, w: &WeightTensor, x: &HostTensor, tokens: usize) -> Vec<u8> {
    let k = w.shape[1];
    let part = HostTensor::new(&[tokens, k], &x.to_vec::<f32>().unwrap()[..tokens * k]);
    linear_case(w, part, None).run(engine)[0].bytes().to_vec()
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it() {
    let mut r = Random(54);
    let q = |g: GgufFormat| QuantFormat::Gguf(g);
    let mut weights =
        vec![packed(&mut r, q(GgufFormat::Q4_1), 50, 1056), packed(&mut r, q(GgufFormat::Q6K), 50, 1280)];
    weights.push(packed(&mut r, QuantFormat::Affine { bits: 4, group: 64, scale: ScaleType::F16 }, 50, 1088));
    weights.push(r.weight(DType::F32, &[50, 1100]));
    weights.push(r.weight(DType::F32, &[50, 1104]));
    weights.push(r.weight(DType::BF16, &[50, 1100]));
    for engine in engines() {
        for w in &weights {
            let x = r.tensor(DType::F32, &[150, w.shape[1]]);
            let all = first_rows(&engine, w, &x, 150);
            for tokens in [1, 2, 3, 17, 64] {
                let some = first_rows(&engine, w, &x, tokens);
                let device = engine.caps().device;
                assert_eq!(some, all[..some.len()], "{} with {tokens} tokens on {device}", w.dtype);
            }
        }
    }
}

#[test]
fn pieces_of_a_weight_are_read_where_they_lie() {
    let mut r = Random(55);
    let q = QuantFormat::Gguf(GgufFormat::Q5_0);
    let parts = [9, 1, 30].map(|rows| packed(&mut r, q, rows, 64));
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 64]);
    let w = b.weight_pieces("w", DType::Quant(q), &[40, 64], ["a", "b", "c"].map(String::from).to_vec());
    b.output("y", x.linear(w, None));
    let ids = b.input("ids", DType::I32, shape!["tokens"]);
    b.output("rows", w.embedding(ids, DType::F32));
    b.output("half", w.embedding(ids, DType::F16));
    b.output("dense", w.dequantize(DType::BF16).slice(0, 8, 12));
    let mut case = Case::new(b).feed("x", r.tensor(DType::F32, &[4, 64]));
    for (name, part) in ["a", "b", "c"].into_iter().zip(parts) {
        case = case.weight(name, part);
    }
    case.feed("ids", HostTensor::new(&[4], &[0, 9, -3, 77])).check("three pieces");
}

#[test]
fn experts_multiply_only_their_tokens() {
    let mut r = Random(56);
    for format in [QuantFormat::MxFp4, QuantFormat::Affine { bits: 4, group: 32, scale: ScaleType::F16 }] {
        for tokens in [6, 0] {
            let dtype = DType::Quant(format);
            let b = Builder::new();
            let logits = b.input("logits", DType::F32, shape!["tokens", 5]);
            let x = b.input("x", DType::F32, shape!["tokens", 64]);
            let w = b.weight("w", dtype, &[5, 10, 64]);
            let bias = b.input("bias", DType::F32, shape![5, 10]);
            let spec = RouteSpec {
                top_k: 2,
                score: RouteScore::Softmax,
                renormalize: true,
                scale: 1.0,
                groups: None,
                correction: false,
            };
            let [weights, ids] = logits.moe_route(spec, None);
            b.output("weights", weights);
            b.output("ids", ids);
            b.output("shared", x.unsqueeze(1).expert_linear(w, ids, Some(bias)));
            let own = x.unsqueeze(1).broadcast(shape!["tokens", 2, 64]) * weights.unsqueeze(2);
            b.output("own", own.expert_linear(w, ids, None));
            let flat = packed(&mut r, format, 50, 64);
            let w = WeightTensor::new(dtype, vec![5, 10, 64], flat.parts).unwrap();
            let case = Case::new(b).weight("w", w).feed("x", r.tensor(DType::F32, &[tokens, 64]));
            let case = case.feed("logits", r.tensor(DType::F32, &[tokens, 5]));
            case.feed("bias", r.tensor(DType::F32, &[5, 10])).check(&format!("{dtype}, {tokens} tokens"));
        }
    }
}

#[test]
fn every_way_of_routing_is_its_decomposition() {
    let mut r = Random(57);
    for score in [RouteScore::Softmax, RouteScore::Sigmoid, RouteScore::SoftmaxOfChosen] {
        for groups in [None, Some(RouteGroups { count: 4, keep: 2 })] {
            let b = Builder::new();
            let logits = b.input("logits", DType::F32, shape!["tokens", 16]);
            let c = b.input("c", DType::F32, shape![16]);
            let spec =
                RouteSpec { top_k: 3, score, renormalize: true, scale: 2.5, groups, correction: false };
            for (i, t) in logits
                .moe_route(spec.clone(), None)
                .into_iter()
                .chain(logits.moe_route(spec, Some(c)))
                .enumerate()
            {
                b.output(&format!("{i}"), t);
            }
            let case = Case::new(b).feed("logits", r.tensor(DType::F32, &[9, 16]));
            case.feed("c", r.tensor(DType::F32, &[16])).check(&format!("{score:?} {groups:?}"));
        }
    }
}

#[test]
fn decoded_rows_are_exactly_those_of_the_weights_crate() {
    let mut r = Random(58);
    let plain = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];
    let mut weights: Vec<WeightTensor> = plain.into_iter().map(|d| r.weight(d, &[5, 300])).collect();
    for format in formats() {
        weights.push(packed(&mut r, format, 5, 768));
    }
    for w in weights {
        let b = Builder::new();
        let ids = b.input("ids", DType::I32, shape!["n"]);
        b.output("y", b.weight("w", w.dtype, &w.shape).embedding(ids, DType::F32));
        let case =
            Case::new(b).weight("w", w.clone()).feed("ids", HostTensor::new(&[5], &[0i32, 1, 2, 3, 4]));
        for engine in engines() {
            let found = case.run(&engine)[0].to_vec::<f32>().unwrap();
            assert_eq!(found, w.to_f32(), "{} on {}", w.dtype, engine.caps().device);
        }
    }
}
