//! Running, once, what of a graph depends on weights only.

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_engine::{EngineError, FoldedWeights, WeightSource, segments};
use mlxcel_ir::{Bindings, Graph, Value};

use crate::context::Context;
use crate::plan::{Arena, Leaves, build};
use crate::run::{Sources, run};
use crate::statics;
use crate::weight::Matrix;

/// The outputs of a graph without inputs or states: rearranged rows stay where they lie, the rest is computed.
pub(crate) fn fold(
    ctx: &Context,
    load: &Graph,
    weights: &dyn WeightSource,
) -> Result<FoldedWeights, EngineError> {
    let mut segments = segments(load, weights, &FoldedWeights::new())?;
    let mut folded = FoldedWeights::new();
    let mut computed: Vec<(&String, Value)> = vec![];
    for (name, v) in load.outputs() {
        match segments.get(&v.node) {
            Some(rows) => {
                folded.insert(name.clone(), rows.clone());
            }
            None => computed.push((name, *v)),
        }
    }
    let ends: Vec<Value> = computed.iter().map(|(_, v)| *v).collect();
    let kept = crate::plan::needed(load, ends.iter().copied());
    segments.retain(|node, _| kept[*node as usize]);
    let mut statics = statics::matrices(load, segments, &ends)?;
    statics.pack(ctx, None)?;
    let leaves = Leaves { weights: statics.of_node, ..Leaves::default() };
    let plan = build(load, &leaves, &ends)?;
    let arrays: Vec<_> = statics.matrices.iter().map(Matrix::view).collect();
    let sources =
        Sources { arguments: &[], weights: &statics.matrices, arrays: &arrays, states: &[], roles: None };
    let (bindings, mut arena) = (Bindings::new(), Arena::default());
    let done = ctx.threads.enter(|| run(ctx, &plan, &bindings, sources, &mut arena))?;
    for ((name, _), view) in computed.into_iter().zip(done.results) {
        let dense = ctx.dense(&view)?;
        let parts = vec![Bytes::copied(&[dense.view.bytes()])];
        folded.insert(name.clone(), vec![WeightTensor::new(view.dtype, view.shape().to_vec(), parts)?]);
    }
    Ok(folded)
}
