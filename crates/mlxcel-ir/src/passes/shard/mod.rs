//! Tensor parallelism as a pass: the graph that one member of a group runs with its share of the weights, heads and
//! states. Linear layers are cut by their outputs or, where their input is cut already, by their inputs; what then is
//! a part of a sum is added up among the members (`all_reduce`). Everything else follows from how values lie.
//!
//! Layers that begin a cut (`Choices`) are all tried. Where an op needs the whole of a cut value, the layers it came
//! from are kept whole, or an output layer is put together (`all_gather`), and the graph is gone through again.
//! Attention, recurrences and experts that would stay whole are refused by name. No engine and no format is known here;
//! Megatron-LM (Shoeybi et al., 2019) is where the scheme comes from.

mod place;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::IrError;
use crate::graph::{Graph, Node};
use crate::op::Op;
use place::{Conflict, Pass, Stop};

/// Which member of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub rank: usize,
    pub members: usize,
}

/// What one member runs.
#[derive(Clone, Debug)]
pub struct Sharded {
    pub graph: Graph,
    /// What the pieces of the graph's weights are, where they are not tensors of the checkpoint.
    pub cuts: BTreeMap<String, Cut>,
}

/// A part of a checkpoint's tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// Its shape as the graph sees it.
    pub shape: Vec<usize>,
    pub axis: usize,
    /// What is kept along the axis, end to end.
    pub ranges: Vec<Range<usize>>,
    /// Whether zeros are kept in place of the numbers: what one member adds to a sum, the others must not.
    pub is_zero: bool,
}

/// What was decided about layers, by node.
#[derive(Debug, Default)]
struct Choices {
    whole: BTreeSet<u32>,
    gathered: BTreeSet<u32>,
    /// Why a layer was kept whole.
    reasons: BTreeMap<u32, String>,
}

/// The graph of one member. A group of one gets the graph as it is.
pub fn shard(graph: &Graph, member: Member) -> Result<Sharded, IrError> {
    if member.members <= 1 {
        return Ok(Sharded { graph: graph.clone(), cuts: BTreeMap::new() });
    }
    let graph = super::dead_code(graph)?;
    let mut choices = Choices::default();
    loop {
        let mut pass = Pass::new(&graph, member, &choices);
        match pass.run() {
            Ok(()) => {
                refuse_whole(&graph, &choices, member)?;
                let Pass { out, mut cuts, .. } = pass;
                let out = super::dead_code(&out)?;
                let pieces: BTreeSet<&String> = out.weights().flat_map(|(_, n)| pieces(n)).collect();
                cuts.retain(|name, _| pieces.contains(name));
                return Ok(Sharded { graph: out, cuts });
            }
            Err(Stop::Graph(error)) => return Err(error),
            Err(Stop::Conflict(at)) => {
                if !choices.settle(&graph, &at) {
                    return Err(refusal(&graph, at.node, member, at.reason));
                }
            }
        }
    }
}

fn pieces(node: &Node) -> &[String] {
    match &node.op {
        Op::Weight { pieces, .. } => pieces,
        _ => &[],
    }
}

impl Choices {
    /// Decides about the layers that led to a conflict; `false` if there is nothing left to decide.
    fn settle(&mut self, graph: &Graph, at: &Conflict) -> bool {
        let mut open: Vec<u32> = at.origins.iter().copied().filter(|o| !self.whole.contains(o)).collect();
        // The op itself is kept whole only when it is not for what it is fed.
        if open.is_empty() && place::begins(&graph.nodes()[at.node as usize].op) {
            open.extend(Some(at.node).filter(|n| !self.whole.contains(n)));
        }
        for &origin in &open {
            let grows = widens(&graph.nodes()[origin as usize], graph);
            if at.needs_whole && grows && self.gathered.insert(origin) {
                continue;
            }
            self.gathered.remove(&origin);
            self.whole.insert(origin);
            self.reasons.insert(origin, at.reason.clone());
        }
        !open.is_empty()
    }
}

/// Whether a layer has more outputs than inputs, as output layers do: they are worth a gathering.
fn widens(node: &Node, graph: &Graph) -> bool {
    let Op::Linear { .. } = node.op else { return false };
    let shape = &graph.ty(node.inputs[1]).shape;
    matches!((shape[0].as_fixed(), shape[1].as_fixed()), (Some(n), Some(k)) if n > k)
}

/// Ops that hold most of a model's memory or time are shared, or the model is not.
fn refuse_whole(graph: &Graph, choices: &Choices, member: Member) -> Result<(), IrError> {
    let matters = |op: &Op| {
        matches!(op, Op::PagedAttention(_) | Op::SelectiveScan | Op::CausalConv | Op::ExpertLinear { .. })
    };
    let kept = choices.whole.iter().find(|&&n| matters(&graph.nodes()[n as usize].op));
    match kept {
        Some(&node) => Err(refusal(graph, node, member, choices.reasons[&node].clone())),
        None => Ok(()),
    }
}

fn refusal(graph: &Graph, node: u32, member: Member, reason: String) -> IrError {
    let node = &graph.nodes()[node as usize];
    let leaf = node.inputs.iter().find_map(|v| match &graph.node(*v).op {
        Op::Weight { name, .. } | Op::State { name, .. } => Some(name.as_str()),
        _ => None,
    });
    let name = if node.label.is_empty() { leaf.unwrap_or("a node without a name") } else { &node.label };
    let what = format!("{} ({name})", node.op.name());
    IrError::Unshardable { what, members: member.members, reason }
}

#[cfg(test)]
mod tests;
