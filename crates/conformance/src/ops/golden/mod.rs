//! The fixtures: small graphs whose inputs and results were stored by `xtask/golden/ops.py`. Every tensor of a
//! file must be used and every output judged, so that a case cannot quietly test less than it stores.

mod arithmetic;
mod attention;
mod choice;
mod contraction;
mod movement;
mod norm;
mod signals;
mod stateful;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use mlxcel_engine::Feeds;
use mlxcel_ir::{DType, HostTensor, Shape, Tensor};
use mlxcel_weights::{Bytes, WeightTensor, safetensors};

use super::case::{Case, Sketch};

/// Tensors by `CASE/STEP/in|out/NAME`.
struct Fixture {
    group: &'static str,
    tensors: BTreeMap<String, HostTensor>,
}

impl Fixture {
    /// A fixture that cannot be read is a broken checkout.
    fn open(group: &'static str) -> Self {
        let path = crate::models::fixtures("ops").join(format!("{group}.safetensors"));
        let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let header = safetensors::parse_header(&file).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let tensor = |(name, info): (String, mlxcel_weights::TensorInfo)| {
            let t = HostTensor::from_bytes(info.dtype, info.shape, file[info.range].to_vec());
            (name, t.expect("the header's sizes were checked"))
        };
        Fixture { group, tensors: header.into_iter().map(tensor).collect() }
    }

    fn names(&self) -> BTreeSet<&str> {
        self.tensors.keys().filter_map(|k| k.split('/').next()).collect()
    }
}

/// A case under construction from a fixture.
pub(super) struct Golden<'f> {
    sketch: Sketch,
    fixture: &'f Fixture,
    name: String,
    /// KV block size of the engine under test.
    block_size: usize,
    used: RefCell<BTreeSet<String>>,
}

type Build = fn(&Golden<'_>);

impl<'f> Golden<'f> {
    fn stored(&self, step: usize, name: &str) -> Option<&'f HostTensor> {
        let key = format!("{}/{step}/in/{name}", self.name);
        let found = self.fixture.tensors.get(&key);
        found.inspect(|_| {
            self.used.borrow_mut().insert(key);
        })
    }

    fn given(&self, name: &str) -> HostTensor {
        let found = self.stored(0, name).cloned();
        found.unwrap_or_else(|| {
            panic!("fixture {} has no input '{name}' of {}", self.fixture.group, self.name)
        })
    }

    /// Declares a stored input with its own shape.
    fn x(&self, name: &str) -> Tensor<'_> {
        self.sketch.input(name, self.given(name))
    }

    /// Declares a stored input whose shape changes from step to step.
    fn x_as(&self, name: &str, shape: Shape) -> Tensor<'_> {
        self.sketch.input_as(name, shape, self.given(name))
    }

    /// Declares a stored tensor as a weight.
    fn w(&self, name: &str) -> Tensor<'_> {
        self.sketch.weight(name, WeightTensor::from_host(self.given(name)))
    }

    /// Declares a packed weight from the stored arrays, under a name of its own.
    fn packed(&self, name: &str, dtype: DType, shape: &[usize]) -> Tensor<'_> {
        let parts = ["w.codes", "w.scale", "w.bias"];
        let parts = parts.iter().filter_map(|p| Some(Bytes::copied(&[self.stored(0, p)?.bytes()])));
        let tensor = WeightTensor::new(dtype, shape.to_vec(), parts.collect());
        self.sketch.weight(name, tensor.unwrap_or_else(|e| panic!("{}: {e}", self.name)))
    }

    fn y(&self, name: &str, t: Tensor<'_>) {
        self.sketch.output(name, t);
    }

    /// Adds the steps after the first: stored inputs, and `extra[step]` for the rest.
    fn steps(&self, extra: &[Feeds]) {
        for (step, feeds) in extra.iter().enumerate().skip(1) {
            let prefix = format!("{}/{step}/in/", self.name);
            let stored = self.fixture.tensors.keys().filter_map(|k| k.strip_prefix(&prefix));
            let mut changed: Vec<(&str, HostTensor)> =
                stored.filter_map(|name| Some((name, self.stored(step, name)?.clone()))).collect();
            let batch = ["positions", "seq_ids", "slot_mapping", "block_table", "slot_ids"];
            changed.extend(batch.iter().filter_map(|&name| Some((name, feeds.get(name)?.clone()))));
            self.sketch.step(changed);
        }
    }

    fn finish(self) -> Case {
        let Golden { sketch, fixture, name, used, .. } = self;
        let mut case = sketch.finish();
        let mut used = used.into_inner();
        for (number, step) in case.steps.iter_mut().enumerate() {
            let expected = case.graph.outputs().iter().map(|(output, _)| {
                let key = format!("{name}/{number}/out/{output}");
                let t = fixture.tensors.get(&key).unwrap_or_else(|| panic!("no {key} in {}", fixture.group));
                used.insert(key);
                t.clone()
            });
            step.expected = Some(expected.collect());
        }
        let prefix = format!("{name}/");
        let unused = fixture.tensors.keys().find(|k| k.starts_with(&prefix) && !used.contains(*k));
        assert!(unused.is_none(), "{unused:?} of {} is stored but not tested", fixture.group);
        case
    }
}

/// Groups of fixtures and the functions that build their graphs.
const GROUPS: [(&str, &[(&str, Build)]); 11] = [
    ("elementwise", arithmetic::ELEMENTWISE),
    ("control", arithmetic::CONTROL),
    ("movement", movement::MOVEMENT),
    ("order", movement::ORDER),
    ("norm", norm::CASES),
    ("contraction", contraction::CASES),
    ("attention", attention::CASES),
    ("paged", stateful::PAGED),
    ("recurrent", stateful::RECURRENT),
    ("choice", choice::CASES),
    ("signals", signals::CASES),
];

pub(super) fn cases(block_size: usize) -> Vec<Case> {
    let mut cases = vec![];
    for (group, builders) in GROUPS {
        let fixture = Fixture::open(group);
        let known: BTreeSet<&str> = builders.iter().map(|(name, _)| *name).collect();
        assert_eq!(fixture.names(), known, "the table of {group} and its fixture list different cases");
        for (name, build) in builders {
            let golden = Golden {
                sketch: Sketch::new(name),
                fixture: &fixture,
                name: name.to_string(),
                block_size,
                used: RefCell::default(),
            };
            build(&golden);
            cases.push(golden.finish());
        }
    }
    cases
}
