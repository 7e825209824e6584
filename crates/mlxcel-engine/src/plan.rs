//! What an engine will do with a graph, op by op.

use mlxcel_ir::{Graph, Node, Type};

use crate::Engine;

/// Which way an op goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The engine has a kernel for it.
    Native,
    /// The engine runs its decomposition.
    Decomposed,
}

/// One op of a plan.
#[derive(Clone, Debug)]
pub struct PlanLine<'a> {
    pub node: &'a Node,
    pub choice: Choice,
}

/// The choice for each op that is not a leaf, in order.
pub fn plan<'a>(graph: &'a Graph, engine: &dyn Engine) -> Vec<PlanLine<'a>> {
    let computed = graph.nodes().iter().filter(|n| !n.op.is_leaf());
    computed
        .map(|node| {
            let types: Vec<Type> = node.inputs.iter().map(|v| graph.ty(*v).clone()).collect();
            let native = !node.op.is_composite() || engine.native(&node.op, &types);
            PlanLine { node, choice: if native { Choice::Native } else { Choice::Decomposed } }
        })
        .collect()
}
