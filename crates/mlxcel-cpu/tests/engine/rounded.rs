//! Fast products: which tokens are rounded, how far, and that it depends on nothing but the token's own sequence.

use mlxcel_cpu::{CpuEngine, CpuOptions, Products, SimdLevel};
use mlxcel_engine::weights::WeightTensor;
use mlxcel_engine::{Engine, Feeds, Program};
use mlxcel_ir::{Bindings, Builder, DType, GgufFormat, Graph, HostTensor, QuantFormat, shape};

use crate::linear;
use crate::support::{Random, Weights, step};

const K: usize = 768;
const N: usize = 72;

fn graph(w: &WeightTensor) -> Graph {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", w.shape[1]]);
    let w = b.weight("w", w.dtype, &w.shape);
    b.output("y", x.linear(w, None));
    b.finish().unwrap()
}

fn compiled(products: Products, level: SimdLevel, w: &WeightTensor) -> Box<dyn Program> {
    let options = CpuOptions { threads: Some(2), level: Some(level), products, ..CpuOptions::default() };
    let mut weights = Weights::default();
    weights.add("w", w.clone());
    CpuEngine::new(options).unwrap().compile(&graph(w), &weights, &Bindings::new()).unwrap()
}

/// Rows of `x` as the tokens of one step; `ends` says which of them are the last known of their sequence.
fn products(program: &mut dyn Program, rows: &[Vec<f32>], ends: &[bool]) -> Vec<Vec<f32>> {
    let mut feeds = Feeds::new();
    feeds.insert("x", HostTensor::new(&[rows.len(), rows[0].len()], &rows.concat()));
    let positions: Vec<i32> = (0..rows.len() as i32).collect();
    let known: Vec<i32> = positions.iter().zip(ends).map(|(p, end)| p + if *end { 1 } else { 5 }).collect();
    feeds.insert("positions", HostTensor::new(&[rows.len()], &positions));
    feeds.insert("known_lens", HostTensor::new(&[rows.len()], &known));
    let y = step(program, &feeds, &["y"]).remove(0).to_vec::<f32>().unwrap();
    y.chunks(y.len() / rows.len()).map(<[f32]>::to_vec).collect()
}

/// A weight of every format that rounding knows, and of one that it does not.
fn weights() -> Vec<WeightTensor> {
    let mut random = Random(7);
    let suit = linear::formats().into_iter().filter(|format| K.is_multiple_of(format.block_len()));
    let mut all: Vec<WeightTensor> = suit.map(|format| linear::packed(&mut random, format, N, K)).collect();
    all.extend([DType::BF16, DType::F32].map(|dtype| random.weight(dtype, &[N, K])));
    all
}

fn rows(count: usize) -> Vec<Vec<f32>> {
    rows_of(count, K)
}

fn rows_of(count: usize, width: usize) -> Vec<Vec<f32>> {
    let mut random = Random(11);
    (0..count).map(|_| (0..width).map(|_| random.number() as f32).collect()).collect()
}

/// In tiles and in pairs every packed weight meets rounded tokens, elsewhere where bytes are multiplied the quantised ones do.
fn is_rounded(level: SimdLevel, w: &WeightTensor) -> bool {
    let unpacked = ["f32", "iq2_xxs", "iq3_xxs", "affine8g24_f32"];
    let has_bytes = !["baseline", "neon"].contains(&level.to_string().as_str());
    let is_packed = !unpacked.contains(&w.dtype.to_string().as_str());
    let has_pairs = ["amx", "avx512-bf16"].contains(&level.to_string().as_str());
    is_packed && (has_pairs || has_bytes && w.dtype != DType::BF16)
}

/// The largest difference relative to the largest number.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let top = b.iter().fold(0f32, |top, y| top.max(y.abs()));
    a.iter().zip(b).fold(0f32, |far, (x, y)| far.max((x - y).abs())) / top
}

#[test]
fn the_last_known_token_is_nearly_exact_and_those_before_it_are_rounded() {
    let rows = rows(37);
    let ends: Vec<bool> = (0..rows.len()).map(|t| t % 9 == 8 || t > 33).collect();
    for level in SimdLevel::available() {
        for w in weights() {
            let exact = products(&mut *compiled(Products::Exact, level, &w), &rows, &ends);
            let fast = products(&mut *compiled(Products::Fast, level, &w), &rows, &ends);
            for (t, (fast, exact)) in fast.iter().zip(&exact).enumerate() {
                let (far, bound) = (distance(fast, exact), if ends[t] { 2e-4 } else { 2e-2 });
                assert!(far < bound, "{level}, {}, token {t}: {far}", w.dtype);
                let is_rounded = is_rounded(level, &w) && !ends[t];
                assert!(!is_rounded || far > 1e-5, "{level}, {}: token {t} was not rounded", w.dtype);
            }
        }
    }
}

#[test]
fn a_token_is_computed_alike_in_any_company() {
    let rows = rows(70);
    let mut random = Random(13);
    let some: Vec<bool> = (0..rows.len()).map(|_| random.below(3) == 0).collect();
    let all = vec![true; rows.len()];
    let levels = SimdLevel::available();
    for (w, level) in weights().iter().flat_map(|w| levels.iter().map(move |level| (w, *level))) {
        let mut program = compiled(Products::Fast, level, w);
        for ends in [&some, &all] {
            let together = products(&mut *program, &rows, ends);
            for t in (0..rows.len()).step_by(7) {
                for company in [1, 5] {
                    let part = t..(t + company).min(rows.len());
                    let few = products(&mut *program, &rows[part.clone()], &ends[part]);
                    assert_eq!(few[0], together[t], "{level}, {}, token {t} of {company}", w.dtype);
                }
            }
        }
    }
}

/// With more rows than a block of panels has.
#[test]
fn long_prompts_and_deep_rows_are_what_the_decoded_weights_give() {
    let mut random = Random(17);
    // The first is deeper than sums stay in tiles, with more tokens than pass at a time; of the second half of the tokens stay near.
    for [depth, width] in [[4352, 1000], [1024, 600]] {
        let rows = rows_of(1060, depth);
        let formats = [GgufFormat::Q8_0, GgufFormat::Q4K].map(QuantFormat::Gguf);
        let mut weights: Vec<_> = formats.map(|f| linear::packed(&mut random, f, width, depth)).into();
        weights.push(random.weight(DType::BF16, &[width, depth]));
        let level = SimdLevel::available().pop().unwrap();
        for (w, one_in) in weights.iter().flat_map(|w| [(w, 1060), (w, 50)]) {
            let ends: Vec<bool> = (1..=rows.len()).map(|t| t % one_in == 0).collect();
            let found = products(&mut *compiled(Products::Fast, level, w), &rows, &ends);
            for t in (0..rows.len()).step_by(151).chain([49, 1023, 1024, 1059]) {
                let x = HostTensor::new(&[1, depth], &rows[t]);
                let truth = linear::exact(&x, w, None).to_vec::<f32>().unwrap();
                let bound = if ends[t] { 2e-4 } else { 2e-2 };
                let far = distance(&found[t], &truth);
                assert!(far < bound, "{}, {depth}, {one_in}, token {t}: {far}", w.dtype);
            }
        }
    }
}
