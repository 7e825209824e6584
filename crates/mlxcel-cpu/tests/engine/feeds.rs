//! Gated feed-forward blocks: one step gives the bits of separate ones.

use mlxcel_cpu::{CpuEngine, CpuOptions, Products, SimdLevel};
use mlxcel_engine::weights::WeightTensor;
use mlxcel_engine::{Engine, Feeds, Program};
use mlxcel_ir::{
    Activation, Bindings, Builder, DType, GgufFormat, Graph, HostTensor, QuantFormat, Tensor, shape,
};

use crate::linear;
use crate::support::{Random, Weights, step};

/// A block, and what the last weight is multiplied with: who asks for that too gets separate steps.
struct Block {
    kind: Activation,
    /// Whether the factor comes before the gate, in the weight and in the product.
    is_turned: bool,
    gate: WeightTensor,
    factor: WeightTensor,
    down: WeightTensor,
    biases: Option<[WeightTensor; 3]>,
}

impl Block {
    fn new(random: &mut Random, [k, inner, n]: [usize; 3], formats: [DType; 2]) -> Self {
        let mut weight = |dtype: DType, rows: usize, cols: usize| match dtype {
            DType::Quant(format) => linear::packed(random, format, rows, cols),
            plain => random.weight(plain, &[rows, cols]),
        };
        let (gate, factor) = (weight(formats[0], inner, k), weight(formats[0], inner, k));
        let down = weight(formats[1], n, inner);
        Block { kind: Activation::Silu, is_turned: false, gate, factor, down, biases: None }
    }

    fn biased(self, random: &mut Random) -> Self {
        let rows = [&self.gate, &self.factor, &self.down].map(|w| w.shape[0]);
        Block { biases: Some(rows.map(|n| random.weight(DType::F32, &[n]))), ..self }
    }

    fn linear<'b>(&self, b: &'b Builder, name: &str, x: Tensor<'b>, w: &WeightTensor) -> Tensor<'b> {
        let bias = self.biases.as_ref().map(|_| b.weight(&format!("{name}_bias"), DType::F32, &w.shape[..1]));
        x.linear(b.weight(name, w.dtype, &w.shape), bias)
    }

    fn graph(&self) -> Graph {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", self.gate.shape[1]]);
        let gated = if self.is_turned {
            let factor = self.linear(&b, "factor", x, &self.factor);
            factor * self.linear(&b, "gate", x, &self.gate).activation(self.kind)
        } else {
            let gate = self.linear(&b, "gate", x, &self.gate);
            gate.activation(self.kind) * self.linear(&b, "factor", x, &self.factor)
        };
        b.output("y", self.linear(&b, "down", gated, &self.down));
        b.output("gated", gated);
        b.finish().unwrap()
    }

    fn compile(&self, level: SimdLevel, products: Products) -> Box<dyn Program> {
        let mut weights = Weights::default();
        let all = [("gate", &self.gate), ("factor", &self.factor), ("down", &self.down)];
        for (i, (name, w)) in all.into_iter().enumerate() {
            weights.add(name, w.clone());
            if let Some(biases) = &self.biases {
                weights.add(&format!("{name}_bias"), biases[i].clone());
            }
        }
        let options = CpuOptions { threads: Some(2), level: Some(level), products, ..CpuOptions::default() };
        CpuEngine::new(options).unwrap().compile(&self.graph(), &weights, &Bindings::new()).unwrap()
    }

    /// Compares one step with separate ones, for so many tokens of which every `one_in`th ends its sequence.
    fn check(&self, program: &mut dyn Program, tokens: usize, one_in: usize) {
        let (mut random, k) = (Random(23), self.gate.shape[1]);
        let x: Vec<f32> = (0..tokens * k).map(|_| random.number() as f32).collect();
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let known =
            positions.iter().map(|p| p + if (*p as usize + 1).is_multiple_of(one_in) { 1 } else { 5 });
        let mut feeds = Feeds::new();
        feeds.insert("x", HostTensor::new(&[tokens, k], &x));
        feeds.insert("known_lens", HostTensor::new(&[tokens], &known.collect::<Vec<i32>>()));
        feeds.insert("positions", HostTensor::new(&[tokens], &positions));
        let together = step(program, &feeds, &["y"]).remove(0).to_vec::<f32>().unwrap();
        let apart = step(program, &feeds, &["y", "gated"]).remove(0).to_vec::<f32>().unwrap();
        let what = format!("{} and {}, {:?}", self.gate.dtype, self.down.dtype, self.kind);
        assert!(together.iter().all(|y| y.is_finite()) && together.iter().any(|y| *y != 0.0), "{what}");
        let differ = together.iter().zip(&apart).position(|(a, b)| a.to_bits() != b.to_bits());
        let at = differ.map(|i| (i / self.down.shape[0], i % self.down.shape[0]));
        assert_eq!(
            at, None,
            "{what}, {tokens} tokens of which one in {one_in} is the last: first difference"
        );
    }
}

const SHAPE: [usize; 3] = [768, 512, 72];

fn quant(format: GgufFormat) -> DType {
    DType::Quant(QuantFormat::Gguf(format))
}

#[test]
fn a_block_is_one_step_with_the_bits_of_separate_ones() {
    let mut random = Random(19);
    let formats = [
        [DType::BF16, DType::BF16],
        [quant(GgufFormat::Q4K), quant(GgufFormat::Q6K)],
        [quant(GgufFormat::Q8_0), DType::BF16],
        [DType::BF16, quant(GgufFormat::Q4_1)],
        [DType::F32, DType::F32],
    ];
    for pair in formats {
        let block = Block::new(&mut random, SHAPE, pair);
        for level in SimdLevel::available() {
            for products in [Products::Exact, Products::Fast] {
                let mut program = block.compile(level, products);
                let sizes = Bindings::from([("tokens".to_string(), 64)]);
                let [one, many] = [&["y"][..], &["y", "gated"]]
                    .map(|outputs| program.working_bytes(outputs, &sizes).unwrap().unwrap());
                assert!(one < many, "{pair:?}: the block was not found");
                for (tokens, one_in) in [(1, 1), (3, 9), (37, 37), (70, 9), (70, 2), (300, 301)] {
                    block.check(&mut *program, tokens, one_in);
                }
            }
        }
    }
}

#[test]
fn gates_of_any_kind_order_and_bias_are_found() {
    let mut random = Random(29);
    let level = SimdLevel::available().pop().unwrap();
    for kind in [Activation::GeluTanh, Activation::Gelu, Activation::Relu2, Activation::QuickGelu] {
        for is_turned in [false, true] {
            let block = Block::new(&mut random, SHAPE, [quant(GgufFormat::Q4K), DType::BF16]);
            let block = Block { kind, is_turned, ..block.biased(&mut random) };
            let mut program = block.compile(level, Products::Fast);
            block.check(&mut *program, 45, 45);
        }
    }
}

/// Deeper than sums stay in tiles, more tokens than pass at a time, and lines that fill no whole step of tiles.
#[test]
fn long_prompts_and_odd_widths_are_gated_alike() {
    let mut random = Random(31);
    let level = SimdLevel::available().pop().unwrap();
    for (shape, format) in [([4352, 64, 40], DType::BF16), ([512, 48, 40], quant(GgufFormat::Q8_0))] {
        let block = Block::new(&mut random, shape, [format, DType::BF16]);
        block.check(&mut *block.compile(level, Products::Fast), 1060, 500);
    }
    // Sums of a step at a time: as many lines as a tile has are gated at once.
    let block = Block::new(&mut random, [32, 64, 40], [DType::BF16; 2]);
    block.check(&mut *block.compile(level, Products::Fast), 100, 100);
}
