//! Running one graph on both engines, at every instruction set of the machine, and comparing what comes out.

use std::collections::BTreeMap;

use mlxcel_cpu::{CpuEngine, CpuOptions, Products, SimdLevel};
use mlxcel_engine::weights::WeightTensor;
use mlxcel_engine::{Engine, EngineError, Feeds, Program, ReferenceEngine, WeightSource};
use mlxcel_ir::{Bindings, Builder, DType, Graph, HostTensor};

/// Weights by name.
#[derive(Clone, Debug, Default)]
pub struct Weights(pub BTreeMap<String, WeightTensor>);

impl Weights {
    pub fn add(&mut self, name: &str, t: WeightTensor) {
        self.0.insert(name.to_string(), t);
    }
}

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        self.0.get(name).cloned().ok_or_else(|| EngineError::MissingFeed { name: name.to_string() })
    }
}

/// Numbers that depend on nothing but the seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = (self.0 >> 33) as u32;
        (x ^ (x >> 15)).wrapping_mul(0x846c_a68b) ^ (x >> 7)
    }

    /// Between −1 and 1.
    pub fn number(&mut self) -> f64 {
        self.bits() as f64 / u32::MAX as f64 * 2.0 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    pub fn tensor(&mut self, dtype: DType, shape: &[usize]) -> HostTensor {
        let count: usize = shape.iter().product();
        let scale = match dtype {
            DType::Bool => 1.0,
            d if d.is_float() => 2.0,
            _ => 100.0,
        };
        let number = |r: &mut Random| match dtype {
            DType::Bool => r.below(2) as f64,
            d if d.is_float() => r.number() * scale,
            d if d.is_signed() => (r.number() * scale).round(),
            _ => (r.number().abs() * scale).round(),
        };
        let values: Vec<f64> = (0..count).map(|_| number(self)).collect();
        HostTensor::from_f64(dtype, shape, &values)
    }

    /// Doubles are numbers that single precision holds, since weights are decoded to it.
    pub fn weight(&mut self, dtype: DType, shape: &[usize]) -> WeightTensor {
        let t = self.tensor(if dtype == DType::F64 { DType::F32 } else { dtype }, shape);
        WeightTensor::from_host(HostTensor::from_f64(dtype, shape, &t.to_f64()))
    }
}

/// An engine for each instruction set of the machine, with one thread and with three.
pub fn engines() -> Vec<CpuEngine> {
    engines_with(Products::default())
}

pub fn engines_with(products: Products) -> Vec<CpuEngine> {
    let all = SimdLevel::available();
    let make = |(i, level): (usize, &SimdLevel)| {
        let threads = Some(if i % 2 == 0 { 3 } else { 1 });
        CpuEngine::new(CpuOptions { threads, level: Some(*level), products, ..CpuOptions::default() })
            .unwrap()
    };
    all.iter().enumerate().map(make).collect()
}

pub fn engine() -> CpuEngine {
    CpuEngine::new(CpuOptions { threads: Some(2), level: None, ..CpuOptions::default() }).unwrap()
}

/// The step's outputs, all of them if none is named.
pub fn step(program: &mut dyn Program, feeds: &Feeds, outputs: &[&str]) -> Vec<HostTensor> {
    let ticket = program.submit(feeds, outputs).unwrap();
    program.collect(ticket).unwrap()
}

/// How far results of a type may be from the reference, relative to the largest number.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 5e-6,
        DType::F16 => 3e-3,
        DType::BF16 => 2e-2,
        DType::F8E4M3 => 0.2,
        DType::F8E5M2 => 0.4,
        _ => 0.0,
    }
}

/// Asserts that two tensors are the same up to the rounding of their type.
pub fn assert_close(found: &HostTensor, expected: &HostTensor, what: &str) {
    assert_near(found, expected, tolerance(expected.dtype()), what);
}

/// Asserts that two tensors differ by no more than `tolerance` of the largest number.
pub fn assert_near(found: &HostTensor, expected: &HostTensor, tolerance: f64, what: &str) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{what}");
    let (a, b) = (found.to_f64(), expected.to_f64());
    let top = b.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        let same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * top;
        assert!(same, "{what}: element {i} is {x}, expected {y} (largest {top})");
    }
}

/// A graph with everything it needs to run.
pub struct Case {
    pub graph: Graph,
    pub weights: Weights,
    pub feeds: Feeds,
    pub dims: Bindings,
}

impl Case {
    pub fn new(builder: Builder) -> Self {
        let graph = builder.finish().unwrap();
        Case { graph, weights: Weights::default(), feeds: Feeds::new(), dims: Bindings::new() }
    }

    pub fn feed(mut self, name: &str, t: HostTensor) -> Self {
        self.feeds.insert(name, t);
        self
    }

    pub fn weight(mut self, name: &str, t: WeightTensor) -> Self {
        self.weights.add(name, t);
        self
    }

    pub fn dim(mut self, name: &str, n: usize) -> Self {
        self.dims.insert(name.to_string(), n);
        self
    }

    pub fn outputs(&self) -> Vec<&str> {
        self.graph.outputs().iter().map(|(n, _)| n.as_str()).collect()
    }

    pub fn run(&self, engine: &dyn Engine) -> Vec<HostTensor> {
        let mut program = engine.compile(&self.graph, &self.weights, &self.dims).unwrap();
        step(&mut *program, &self.feeds, &self.outputs())
    }

    /// Three steps on every engine give what the reference gives: one that makes its memory, one that finds it made, and one
    /// that knows what it is about.
    pub fn check(&self, what: &str) {
        let outputs = self.outputs();
        let mut reference = ReferenceEngine.compile(&self.graph, &self.weights, &self.dims).unwrap();
        let expected = [0; 3].map(|_| step(&mut *reference, &self.feeds, &outputs));
        for engine in engines() {
            let device = engine.caps().device;
            let mut program = engine.compile(&self.graph, &self.weights, &self.dims).unwrap();
            for (round, expected) in expected.iter().enumerate() {
                let found = step(&mut *program, &self.feeds, &outputs);
                for ((f, e), name) in found.iter().zip(expected).zip(&outputs) {
                    assert_close(f, e, &format!("{what}: {name}, step {round}, {device}"));
                }
            }
        }
    }
}
