//! Passes: functions from graph to graph that keep its meaning. Each has its file and its tests; none knows an
//! engine. Regions are rewritten too, with their inputs kept as they are, since arguments go by position.

mod common_subexpressions;
mod dead_code;
mod fold_constants;
mod fold_weights;
mod fuse_elementwise;
mod fuse_residual_norm;
mod gather_early;
mod identities;
mod join_linears;
mod shard;
#[cfg(test)]
mod testing;

pub use common_subexpressions::common_subexpressions;
pub use dead_code::dead_code;
pub use fold_constants::fold_constants;
pub use fold_weights::{Folded, fold_weights};
pub use fuse_elementwise::fuse_elementwise;
pub use fuse_residual_norm::fuse_residual_norm;
pub use gather_early::gather_early;
pub use join_linears::join_linears;
pub use shard::{Cut, Member, Sharded, shard};

use crate::error::IrError;
use crate::graph::{Graph, Node, Value};

/// The pipeline every engine wants. Elementwise fusion and weight folding are separate: engines choose them.
pub fn optimize(graph: &Graph) -> Result<Graph, IrError> {
    let graph = dead_code(graph)?;
    let graph = gather_early(&graph)?;
    let graph = fold_constants(&graph)?;
    let graph = common_subexpressions(&graph)?;
    let graph = fuse_residual_norm(&graph)?;
    dead_code(&graph)
}

/// A new graph made from an old one node by node, in any order that respects operands.
struct Rebuild<'g> {
    source: &'g Graph,
    out: Graph,
    /// What stands for the results of each old node, once it is emitted.
    map: Vec<Option<Vec<Value>>>,
}

impl<'g> Rebuild<'g> {
    fn new(source: &'g Graph) -> Self {
        Rebuild { source, out: Graph::default(), map: vec![None; source.nodes().len()] }
    }

    /// The new value of an old one.
    fn value(&self, v: Value) -> Value {
        self.map[v.node as usize].as_ref().expect("operands are emitted before their users")
            [v.result as usize]
    }

    fn operands(&self, node: &Node) -> Vec<Value> {
        node.inputs.iter().map(|&v| self.value(v)).collect()
    }

    fn set(&mut self, index: usize, results: Vec<Value>) {
        self.map[index] = Some(results);
    }

    /// Copies a node with `regions` in place of its own.
    fn copy(&mut self, index: usize, regions: Vec<Graph>) -> Result<(), IrError> {
        let node = &self.source.nodes()[index];
        let new = self.out.push(node.op.clone(), self.operands(node), regions, &node.label)?;
        let results = self.out.results(new);
        self.set(index, results);
        Ok(())
    }

    /// The new graph with the outputs and updates of the old one.
    fn finish(mut self) -> Result<Graph, IrError> {
        for (name, v) in self.source.outputs() {
            self.out.add_output(name, self.value(*v))?;
        }
        for (name, v) in self.source.updates() {
            self.out.add_update(name, self.value(*v))?;
        }
        Ok(self.out)
    }
}

/// Applies a pass to the regions of a node.
fn each_region(node: &Node, pass: impl Fn(&Graph) -> Result<Graph, IrError>) -> Result<Vec<Graph>, IrError> {
    node.regions.iter().map(pass).collect()
}

/// Which nodes are read by an output or an update.
fn escaping(graph: &Graph) -> Vec<bool> {
    let mut escapes = vec![false; graph.nodes().len()];
    for (_, v) in graph.outputs().iter().chain(graph.updates()) {
        escapes[v.node as usize] = true;
    }
    escapes
}
