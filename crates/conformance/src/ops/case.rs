//! A case: a graph with its weights, what is fed to it step by step, and how close the results must come. A
//! [`Sketch`] builds one; it knows nothing of engines.

use std::cell::RefCell;
use std::collections::BTreeMap;

use mlxcel_engine::{EngineError, Feeds, WeightSource};
use mlxcel_ir::{Bindings, Builder, DType, Dim, Graph, HostTensor, Op, Shape, Tensor};
use mlxcel_weights::WeightTensor;

use super::random::Random;

/// One row of the op table.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub graph: Graph,
    pub weights: Weights,
    /// Sizes of the states.
    pub dims: Bindings,
    pub steps: Vec<Step>,
    /// Multiplies the tolerance of each output's type; zero demands the very same numbers.
    pub slack: f64,
}

/// What one step is fed, and what it must give if an outside oracle says so.
#[derive(Debug)]
pub struct Step {
    pub feeds: Feeds,
    /// In the order of the graph's outputs.
    pub expected: Option<Vec<HostTensor>>,
}

/// Weights held in memory.
#[derive(Debug, Default)]
pub struct Weights(pub(crate) BTreeMap<String, WeightTensor>);

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        let missing = || mlxcel_weights::WeightsError::UnknownTensor { name: name.to_string() };
        Ok(self.0.get(name).cloned().ok_or_else(missing)?)
    }
}

impl Case {
    pub(crate) fn output_names(&self) -> Vec<&str> {
        self.graph.outputs().iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// A case under construction. Inputs are declared together with what is fed to them.
pub(crate) struct Sketch {
    name: String,
    builder: Builder,
    parts: RefCell<Parts>,
}

struct Parts {
    random: Random,
    weights: Weights,
    dims: Bindings,
    slack: f64,
    /// Feeds of each step by input name; a step inherits what it does not change.
    steps: Vec<BTreeMap<String, HostTensor>>,
}

impl Sketch {
    pub(crate) fn new(name: &str) -> Self {
        let parts = Parts {
            random: Random::named(name),
            weights: Weights::default(),
            dims: Bindings::new(),
            slack: 1.0,
            steps: vec![BTreeMap::new()],
        };
        Sketch { name: name.to_string(), builder: Builder::new(), parts: RefCell::new(parts) }
    }

    pub(crate) fn b(&self) -> &Builder {
        &self.builder
    }

    /// An input of the fixed shape of what is fed to it.
    pub(crate) fn input(&self, name: &str, fed: HostTensor) -> Tensor<'_> {
        let shape = fed.shape().iter().map(|&d| Dim::fixed(d)).collect();
        self.input_as(name, shape, fed)
    }

    /// An input of a declared, perhaps symbolic shape.
    pub(crate) fn input_as(&self, name: &str, shape: Shape, fed: HostTensor) -> Tensor<'_> {
        self.input_padded(name, (shape, 0), fed)
    }

    /// An input with what fills its tail when it is padded.
    pub(crate) fn input_padded(&self, name: &str, (shape, pad): (Shape, i64), fed: HostTensor) -> Tensor<'_> {
        let t = self.builder.input_padded(name, fed.dtype(), shape, pad);
        self.parts.borrow_mut().steps[0].insert(name.to_string(), fed);
        t
    }

    pub(crate) fn normal_input(&self, name: &str, dtype: DType, shape: &[usize]) -> Tensor<'_> {
        self.input(name, self.normal(dtype, shape))
    }

    pub(crate) fn weight(&self, name: &str, tensor: WeightTensor) -> Tensor<'_> {
        let t = self.builder.weight(name, tensor.dtype, &tensor.shape);
        self.parts.borrow_mut().weights.0.insert(name.to_string(), tensor);
        t
    }

    pub(crate) fn normal_weight(&self, name: &str, dtype: DType, shape: &[usize]) -> Tensor<'_> {
        self.weight(name, WeightTensor::from_host(self.normal(dtype, shape)))
    }

    pub(crate) fn output(&self, name: &str, t: Tensor<'_>) {
        self.builder.output(name, t);
    }

    /// Binds a dimension of the states.
    pub(crate) fn bind(&self, name: &str, size: usize) {
        self.parts.borrow_mut().dims.insert(name.to_string(), size);
    }

    /// A further step, which feeds what the one before did except for these.
    pub(crate) fn step(&self, changed: Vec<(&str, HostTensor)>) {
        let mut parts = self.parts.borrow_mut();
        let mut feeds = parts.steps.last().cloned().unwrap_or_default();
        feeds.extend(changed.into_iter().map(|(name, t)| (name.to_string(), t)));
        parts.steps.push(feeds);
    }

    /// Changes what the first step feeds.
    pub(crate) fn first_step(&self, changed: Vec<(&str, HostTensor)>) {
        let named = changed.into_iter().map(|(name, t)| (name.to_string(), t));
        self.parts.borrow_mut().steps[0].extend(named);
    }

    /// Demands the very same numbers.
    pub(crate) fn exact(&self) {
        self.slacken(0.0);
    }

    /// Multiplies the tolerance; the caller says why.
    pub(crate) fn slacken(&self, slack: f64) {
        self.parts.borrow_mut().slack = slack;
    }

    pub(crate) fn random<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.parts.borrow_mut().random)
    }

    pub(crate) fn normal(&self, dtype: DType, shape: &[usize]) -> HostTensor {
        self.random(|r| r.normal(dtype, shape))
    }

    pub(crate) fn uniform(&self, dtype: DType, shape: &[usize], range: (f64, f64)) -> HostTensor {
        self.random(|r| r.uniform(dtype, shape, range))
    }

    pub(crate) fn whole(&self, dtype: DType, shape: &[usize], range: (i64, i64)) -> HostTensor {
        self.random(|r| r.whole(dtype, shape, range))
    }

    /// The case. A graph that does not build is a mistake in the table, not in an engine.
    pub(crate) fn finish(self) -> Case {
        let Sketch { name, builder, parts } = self;
        let parts = parts.into_inner();
        let graph = builder.finish().unwrap_or_else(|e| panic!("case '{name}' does not build: {e}"));
        let steps = parts.steps.iter().map(|fed| Step { feeds: feeds(&graph, fed, &name), expected: None });
        let (steps, dims) = (steps.collect(), parts.dims);
        Case { name, graph, weights: parts.weights, dims, steps, slack: parts.slack }
    }
}

/// What the graph declares, out of what there is.
fn feeds(graph: &Graph, fed: &BTreeMap<String, HostTensor>, case: &str) -> Feeds {
    let mut feeds = Feeds::new();
    for (_, node) in graph.inputs() {
        let Op::Input { name, .. } = &node.op else { continue };
        let t = fed.get(name).unwrap_or_else(|| panic!("case '{case}' feeds nothing to '{name}'"));
        feeds.insert(name, t.clone());
    }
    feeds
}
