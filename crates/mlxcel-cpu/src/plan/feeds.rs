//! Finding gated feed-forward blocks, `down(act(gate x) * up x)` with gate and factor as rows of one weight: they become
//! one step, so that what lies between the products need not be written.

use mlxcel_engine::EngineError;
use mlxcel_ir::{DType, Graph, Node, Op, Type, Value};

use super::Leaves;
use crate::kernels::elementwise::Code;
use crate::kernels::linear::Feed;

/// The nodes of a block, none of whose inner values anybody else reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) feed: Feed,
    pub(super) x: Value,
    /// The product with gate and factor.
    pub(super) first: usize,
    /// The slices of it, and what is made of them.
    between: [usize; 3],
    pub(super) last: usize,
}

impl Block {
    /// Whether a node is computed within the step of the block.
    pub(super) fn absorbs(&self, node: usize) -> bool {
        self.first == node || self.between.contains(&node)
    }
}

/// All blocks among the nodes that are needed.
pub(super) fn find(
    graph: &Graph,
    leaves: &Leaves,
    needed: &[bool],
    readers: &[usize],
) -> Result<Vec<Block>, EngineError> {
    let search = Search { graph, leaves, readers };
    let ends = (0..needed.len()).filter(|&i| needed[i]);
    ends.filter_map(|last| search.block(last).transpose()).collect()
}

struct Search<'a> {
    graph: &'a Graph,
    leaves: &'a Leaves,
    /// How often each node is read.
    readers: &'a [usize],
}

impl Search<'_> {
    /// The block that ends with a node, if one does.
    fn block(&self, last: usize) -> Result<Option<Block>, EngineError> {
        let nodes = self.graph.nodes();
        if !is_linear(self.leaves, &nodes[last]) || self.readers[nodes[last].inputs[0].node as usize] != 1 {
            return Ok(None);
        }
        let product = nodes[last].inputs[0].node as usize;
        let [a, b] = nodes[product].inputs[..] else { return Ok(None) };
        let halves = [a, b].map(|v| self.half(v.node as usize));
        let [Some((first, a_at)), Some((other, b_at))] = halves else { return Ok(None) };
        if first != other || a_at == b_at || self.readers[first] != 2 {
            return Ok(None);
        }
        let code = &nodes[product];
        if !(code.op.is_elementwise() || code.op == Op::Fused) {
            return Ok(None);
        }
        let types: Vec<Type> = code.inputs.iter().map(|v| self.graph.ty(*v).clone()).collect();
        let Some((kind, gate)) = Code::compile(code, &types)?.as_gated() else { return Ok(None) };
        let feed = Feed { kind, gate: [a_at, b_at][gate], has_bias: nodes[first].inputs.len() > 2 };
        let between = [a.node as usize, b.node as usize, product];
        Ok(Some(Block { feed, x: nodes[first].inputs[0], first, between, last }))
    }

    /// The product that a node is one half of, and which.
    fn half(&self, node: usize) -> Option<(usize, usize)> {
        let of = self.graph.nodes()[node].inputs.first()?.node as usize;
        let Op::Slice { axis, start, end, step: 1 } = &self.graph.nodes()[node].op else { return None };
        let whole = &self.graph.nodes()[of];
        let is_last = *axis + 1 == whole.types[0].rank();
        let n = whole.types[0].shape.last()?.as_fixed()?;
        let (start, end) = (start.as_fixed()?, end.as_fixed()?);
        let is_half = n.is_multiple_of(2) && end - start == n / 2 && start.is_multiple_of(n / 2);
        let fits = is_last && is_half && is_linear(self.leaves, whole) && self.readers[node] == 1;
        fits.then_some((of, start / (n / 2)))
    }
}

/// Whether a node multiplies `f32` numbers with weights.
pub(super) fn is_linear(leaves: &Leaves, node: &Node) -> bool {
    let of_weights = || node.inputs[1..].iter().all(|v| leaves.weights.contains_key(&v.node));
    matches!(node.op, Op::Linear { .. }) && of_weights() && node.types[0].dtype == DType::F32
}
