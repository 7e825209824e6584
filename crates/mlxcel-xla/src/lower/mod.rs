//! From a graph with symbols to primitives of fixed shapes: sizes are bound, composites that have a better form here
//! take it, the rest is decomposed, and packed weights are unpacked where they are used. Nothing here writes text.

mod attention;
mod experts;
mod inputs;
mod unpack;
mod widen;

use mlxcel_ir::passes::{common_subexpressions, dead_code};
use mlxcel_ir::{Bindings, Builder, DType, Graph, IrError, Op, Tensor, Type, Value, decompose};

use crate::error::XlaError;
use crate::pack::Keeping;
pub(crate) use inputs::{JOINED, join_inputs};
pub(crate) use unpack::Packing;
pub(crate) use widen::{is_widened, wide_name};

/// What is known of the step that a graph is lowered for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepKind {
    /// The step is a decode or a chunk of one sequence, so that attention need not compare sequences.
    pub is_split: bool,
    /// Every row takes the likeliest token, so that nothing has to be sorted.
    pub is_greedy: bool,
    /// Products of attention may be rounded to the type of the values, as fused kernels do.
    pub narrow_attention: bool,
    /// How packed weights lie on the device.
    pub keeping: Keeping,
}

/// The graph with only these outputs; every update stays.
pub(crate) fn select_outputs(graph: &Graph, outputs: &[&str]) -> Result<Graph, XlaError> {
    let mut out = Graph::default();
    for node in graph.nodes() {
        out.push(node.op.clone(), node.inputs.clone(), node.regions.clone(), &node.label)?;
    }
    for name in outputs {
        let found = graph.outputs().iter().find(|(n, _)| n == name);
        let (_, value) = found.expect("the program looked the outputs up");
        // An output that is asked for twice is computed once.
        if !out.outputs().iter().any(|(n, _)| n == name) {
            out.add_output(name, *value)?;
        }
    }
    for (name, value) in graph.updates() {
        out.add_update(name, *value)?;
    }
    Ok(dead_code(&out)?)
}

/// Primitives of fixed shapes.
pub(crate) fn lower(graph: &Graph, sizes: &Bindings, kind: StepKind) -> Result<Graph, XlaError> {
    let bound = graph.bind(sizes)?;
    let own = rewrite_composites(&bound, kind)?;
    let primitives = decompose(&own, &|op, _| matches!(op, Op::ArgMax { .. }))?;
    let mut unpacked = unpack::unpack(&primitives, kind.keeping)?;
    if kind.keeping.widens {
        unpacked = widen::widen(&unpacked)?;
    }
    Ok(dead_code(&common_subexpressions(&unpacked)?)?)
}

/// Composites in the forms of this crate.
fn rewrite_composites(graph: &Graph, kind: StepKind) -> Result<Graph, XlaError> {
    Ok(graph.rewrite(|out, node, inputs| {
        let types: Vec<Type> = inputs.iter().map(|v| out.ty(*v).clone()).collect();
        let body = match &node.op {
            // A cache of codes is read as its decomposition says.
            Op::PagedAttention(spec) if kind.is_split && types.iter().all(|t| t.dtype != DType::I8) => {
                let narrow = kind.narrow_attention;
                region(&types, |b, x| attention::paged(b, x, spec, narrow))
            }
            Op::Sample if kind.is_greedy => region(&types, |_, x| vec![x[0].argmax(1)]),
            Op::ExpertLinear { .. } if experts::are_few(&types) => {
                region(&types, |_, x| vec![experts::linear(x)])
            }
            _ => return Ok(None),
        };
        let results: Vec<Value> = out.inline(&body?, inputs)?;
        Ok(Some(results))
    })?)
}

/// A graph of arguments, to be put in the place of a node.
fn region(
    types: &[Type],
    body: impl for<'r> FnOnce(&'r Builder, &[Tensor<'r>]) -> Vec<Tensor<'r>>,
) -> Result<Graph, IrError> {
    let b = Builder::new();
    let declare = |(i, t): (usize, &Type)| b.input(&format!("arg{i}"), t.dtype, t.shape.clone());
    let arguments: Vec<Tensor<'_>> = types.iter().enumerate().map(declare).collect();
    for (i, t) in body(&b, &arguments).into_iter().enumerate() {
        b.output(&format!("out{i}"), t);
    }
    b.finish()
}
