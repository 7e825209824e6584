//! What a program has before its first step: uploaded weights, what is computed from them once, and constants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mlxcel_engine::{EngineError, WeightSource};
use mlxcel_ir::{Bindings, Graph, Op};

use crate::handle::{Array, Code, Program};
use crate::library::Api;
use crate::lower::{Layout, Statics, StepShape, constants, lower};
use crate::options::{Device, Mode};
use crate::owner::{Owner, failed};
use crate::repack::Stored;
use crate::weights::{Uploaded, Uploads};

/// What a program is made from.
pub(crate) struct Parts<'a> {
    pub(crate) api: &'a Arc<Api>,
    pub(crate) uploads: &'a Uploads,
    pub(crate) traces: &'a Arc<AtomicU64>,
    pub(crate) device: Device,
    pub(crate) mode: Mode,
    pub(crate) source: &'a dyn WeightSource,
}

/// One array of the statics.
#[derive(Clone, Debug)]
pub(crate) enum Static {
    Weight(Arc<Uploaded>, usize),
    Own(Arc<Array>),
}

impl Static {
    fn array(&self) -> &Array {
        match self {
            Static::Weight(uploaded, i) => &uploaded.arrays[*i],
            Static::Own(array) => array,
        }
    }
}

/// Weights that were computed from others, by name.
pub(crate) type Made = BTreeMap<String, (Stored, Vec<Static>)>;

/// The statics of a graph in the order of their numbers.
pub(crate) fn gather(
    parts: &Parts<'_>,
    graph: &Graph,
    made: &Made,
) -> Result<(Statics, Vec<Static>), EngineError> {
    let (mut numbers, mut arrays) = (Statics::default(), vec![]);
    for (index, node) in graph.weights() {
        let Op::Weight { name, dtype, .. } = &node.op else { continue };
        if let Some((stored, computed)) = made.get(name) {
            numbers.add_weight(index, *stored);
            arrays.extend(computed.iter().cloned());
            continue;
        }
        let uploaded = parts.uploads.get(parts.api, node, parts.source)?;
        numbers.add_weight(index, Stored::of(*dtype));
        arrays.extend((0..uploaded.arrays.len()).map(|i| Static::Weight(uploaded.clone(), i)));
    }
    for tensor in constants(graph) {
        numbers.add_constant(tensor);
        let array = Array::new(parts.api, tensor.dtype(), tensor.shape(), tensor.bytes());
        arrays.push(Static::Own(Arc::new(array.map_err(failed("uploading a constant"))?)));
    }
    Ok((numbers, arrays))
}

/// Puts a program with these statics on the owner's thread.
pub(crate) fn install(owner: &Owner, arrays: Vec<Static>) -> Result<(), EngineError> {
    owner.call("while it made a program", move |session| {
        let statics: Vec<&Array> = arrays.iter().map(Static::array).collect();
        session.program = Some(Program::new(&session.api, &session.context, &statics)?);
        Ok(())
    })
}

/// Computes what depends on weights only; the results stay on the device.
pub(crate) fn load(parts: &Parts<'_>, owner: &Owner, graph: &Graph) -> Result<Made, EngineError> {
    if graph.outputs().is_empty() {
        return Ok(Made::new());
    }
    let (numbers, arrays) = gather(parts, graph, &Made::new())?;
    let outputs: Vec<_> = graph.outputs().iter().map(|(_, v)| *v).collect();
    let sizes = Bindings::new();
    let step = StepShape { sizes: &sizes, outputs: &outputs, layout: Layout::Ragged, greedy: false };
    let lowered = lower(graph, &numbers, &step)?;
    let count = lowered.outputs.iter().map(|s| s.arrays()).sum();
    let computed = owner.call("while it prepared weights", move |session| {
        let statics: Vec<&Array> = arrays.iter().map(Static::array).collect();
        let mut program = Program::new(&session.api, &session.context, &statics)?;
        let mode = Mode::Lazy.code();
        let code = Code::new(&session.api, &program, &lowered.words, &lowered.labels, mode)?;
        Ok((program.run(&code, &[], count)?, lowered.outputs))
    });
    let (computed, kinds) = computed?;
    let mut computed = computed.into_iter().map(|a| Static::Own(Arc::new(a)));
    let names = graph.outputs().iter().map(|(name, _)| name.clone());
    Ok(names.zip(kinds).map(|(n, s)| (n, (s, computed.by_ref().take(s.arrays()).collect()))).collect())
}
