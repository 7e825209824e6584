//! Products of norms of sums: one step gives the bits of separate ones, and the sum is whatever memory it takes.

use mlxcel_cpu::{CpuEngine, CpuOptions, Products, SimdLevel};
use mlxcel_engine::weights::WeightTensor;
use mlxcel_engine::{Engine, Feeds, Program};
use mlxcel_ir::{Activation, Bindings, Builder, DType, GgufFormat, Graph, HostTensor, QuantFormat, shape};

use crate::linear;
use crate::support::{Random, Weights, step};

const K: usize = 512;
const INNER: usize = 256;
const N: usize = 72;

/// A product and a gated block, each with the norm of a sum: who asks for a norm, too, gets separate steps. Addends are
/// computed, so that a sum may take their memory.
fn graph(format: DType) -> Graph {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", K]);
    let weight = |name: &str, rows: usize, cols: usize| b.weight(name, format, &[rows, cols]);
    let norms = ["first norm", "second norm"].map(|name| b.weight(name, DType::F32, &[K]));
    let a = x * 1.5;
    let r = x.tanh();
    let first = a + r;
    let normed = first.rms_norm(1e-5, Some(norms[0]));
    let product = normed.linear(weight("w", K, K), None);
    let second = product + first;
    let of_second = second.rms_norm(1e-6, Some(norms[1]));
    let gate = of_second.linear(weight("gate", INNER, K), None).activation(Activation::Silu);
    let gated = gate * of_second.linear(weight("factor", INNER, K), None);
    b.output("y", gated.linear(weight("down", N, INNER), None));
    for (name, value) in [("a", a), ("r", r), ("first", first), ("second", second)] {
        b.output(name, value);
    }
    b.output("norms", normed + of_second);
    b.finish().unwrap()
}

fn compile(format: DType, level: SimdLevel, products: Products) -> Box<dyn Program> {
    let mut random = Random(61);
    let mut weights = Weights::default();
    for (name, [rows, cols]) in
        [("w", [K, K]), ("gate", [INNER, K]), ("factor", [INNER, K]), ("down", [N, INNER])]
    {
        let weight: WeightTensor = match format {
            DType::Quant(quant) => linear::packed(&mut random, quant, rows, cols),
            plain => random.weight(plain, &[rows, cols]),
        };
        weights.add(name, weight);
    }
    for name in ["first norm", "second norm"] {
        weights.add(name, random.weight(DType::F32, &[K]));
    }
    let options = CpuOptions { threads: Some(2), level: Some(level), products, ..CpuOptions::default() };
    CpuEngine::new(options).unwrap().compile(&graph(format), &weights, &Bindings::new()).unwrap()
}

/// So many tokens, of which every `one_in`th ends its sequence.
fn feeds(tokens: usize, one_in: usize) -> Feeds {
    let mut random = Random(67);
    let positions: Vec<i32> = (0..tokens as i32).collect();
    let known = positions.iter().map(|p| p + if (*p as usize + 1).is_multiple_of(one_in) { 1 } else { 5 });
    let mut feeds = Feeds::new();
    let x: Vec<f32> = (0..tokens * K).map(|_| random.number() as f32).collect();
    feeds.insert("x", HostTensor::new(&[tokens, K], &x));
    feeds.insert("known_lens", HostTensor::new(&[tokens], &known.collect::<Vec<i32>>()));
    feeds.insert("positions", HostTensor::new(&[tokens], &positions));
    feeds
}

/// Compares one step with separate ones, whatever memory sums take.
fn check(format: DType, level: SimdLevel, products: Products, steps: &[(usize, usize)]) {
    let mut program = compile(format, level, products);
    for &(tokens, one_in) in steps {
        let feeds = feeds(tokens, one_in);
        let mut bits = |outputs: &[&str]| -> Vec<Vec<u32>> {
            let results = step(&mut *program, &feeds, outputs);
            let numbers = results.iter().map(|t| t.to_vec::<f32>().unwrap());
            numbers.map(|t| t.iter().map(|x| x.to_bits()).collect()).collect()
        };
        let apart = bits(&["y", "second", "first", "r", "a", "norms"]);
        let what = format!("{format} at {level}, {products:?}, {tokens} tokens, one in {one_in}");
        assert!(apart[0].iter().all(|y| f32::from_bits(*y).is_finite()), "{what}");
        for outputs in [&["y"][..], &["y", "second"], &["y", "second", "first"]] {
            assert!(bits(outputs) == apart[..outputs.len()], "{what}: {outputs:?}");
        }
        // Memory of one addend, and of none.
        assert!(bits(&["y", "a"]) == [&apart[0][..], &apart[4]], "{what}: a");
        assert!(bits(&["y", "r", "a"]) == [&apart[0][..], &apart[3], &apart[4]], "{what}: both");
    }
}

fn quant(format: GgufFormat) -> DType {
    DType::Quant(QuantFormat::Gguf(format))
}

#[test]
fn norms_of_sums_are_multiplied_with_the_bits_of_separate_steps() {
    for format in [DType::BF16, DType::F32, quant(GgufFormat::Q4K), quant(GgufFormat::Q8_0)] {
        for level in SimdLevel::available() {
            for products in [Products::Exact, Products::Fast] {
                check(format, level, products, &[(0, 1), (1, 1), (3, 9), (37, 37), (70, 2), (300, 301)]);
            }
        }
    }
}

#[test]
fn short_prompts_of_norms_are_laid_into_tiles() {
    let level = SimdLevel::available().pop().unwrap();
    for format in [DType::BF16, quant(GgufFormat::Q8_0)] {
        check(format, level, Products::Fast, &[(37, 37)]);
    }
}
