//! Which values share memory, and how long memory is needed. A root is a piece of memory; views and results written in
//! place join the root of their operand.

use mlxcel_ir::{Graph, Op, Value};

/// A piece of memory.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) kind: RootKind,
    /// The value it was made for, and all that share it.
    pub(super) members: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RootKind {
    /// Never written: feeds, weights, constants.
    Fixed,
    /// A state by number, and whether the graph replaces it.
    State {
        updated: bool,
    },
    Slot,
}

/// The values of a graph and what is known about their memory so far.
#[derive(Debug)]
pub(super) struct Lives {
    /// The first value of each node.
    first: Vec<usize>,
    /// The last node that reads a value, [`usize::MAX`] if it outlives the plan.
    last_use: Vec<usize>,
    /// The roots a value may lie in: several if only a run decides.
    roots_of: Vec<Vec<usize>>,
    /// Whether a value is row-major whatever the dimensions.
    contiguous: Vec<bool>,
    pub(super) roots: Vec<Root>,
}

impl Lives {
    pub(super) fn new(graph: &Graph, needed: &[bool], wanted: impl Iterator<Item = Value>) -> Self {
        let mut first = Vec::with_capacity(graph.nodes().len());
        let mut count = 0;
        for node in graph.nodes() {
            first.push(count);
            count += node.types.len();
        }
        let mut lives = Lives {
            first,
            last_use: vec![0; count],
            roots_of: vec![vec![]; count],
            contiguous: vec![false; count],
            roots: vec![],
        };
        for (i, node) in graph.nodes().iter().enumerate().filter(|(i, _)| needed[*i]) {
            (0..node.types.len()).for_each(|r| lives.last_use[lives.first[i] + r] = i);
            node.inputs.iter().for_each(|v| {
                let id = lives.id(*v);
                lives.last_use[id] = i;
            });
        }
        for v in wanted {
            let id = lives.id(v);
            lives.last_use[id] = usize::MAX;
        }
        lives
    }

    pub(super) fn id(&self, v: Value) -> usize {
        self.first[v.node as usize] + v.result as usize
    }

    /// Lets a value live until a later node, which reads it too.
    pub(super) fn prolong(&mut self, v: Value, node: usize) {
        let id = self.id(v);
        self.last_use[id] = self.last_use[id].max(node);
    }

    pub(super) fn count(&self) -> usize {
        self.last_use.len()
    }

    pub(super) fn is_contiguous(&self, value: usize) -> bool {
        self.contiguous[value]
    }

    /// Gives a value memory of its own.
    pub(super) fn make(&mut self, value: usize, kind: RootKind) -> usize {
        self.roots.push(Root { kind, members: vec![value] });
        self.roots_of[value].push(self.roots.len() - 1);
        self.contiguous[value] = true;
        self.roots.len() - 1
    }

    /// Lets a value share the memory of another.
    pub(super) fn share(&mut self, value: usize, with: usize, contiguous: bool) {
        for root in self.roots_of[with].clone() {
            self.roots[root].members.push(value);
            self.roots_of[value].push(root);
        }
        self.contiguous[value] = contiguous;
    }

    /// A reshape that may have to copy: shares the memory of `with`, and has some of its own.
    pub(super) fn share_or_make(&mut self, value: usize, with: usize) -> usize {
        let root = self.make(value, RootKind::Slot);
        self.share(value, with, false);
        root
    }

    /// Whether the node may write its result over operand `at`: nobody reads that memory afterwards, through any
    /// view, and no other operand of the node lies in it.
    pub(super) fn can_take(&self, node: usize, inputs: &[usize], at: usize) -> bool {
        let [root] = self.roots_of[inputs[at]].as_slice() else { return false };
        let writable = match self.roots[*root].kind {
            RootKind::Fixed => false,
            RootKind::State { updated } => updated,
            RootKind::Slot => true,
        };
        let others = inputs.iter().enumerate().filter(|(i, _)| *i != at);
        writable
            && self.contiguous[inputs[at]]
            && self.roots[*root].members.iter().all(|&m| self.last_use[m] <= node)
            && others.into_iter().all(|(_, &v)| !self.roots_of[v].contains(root))
    }

    /// The last node that needs a root.
    pub(super) fn end(&self, root: usize) -> usize {
        self.roots[root].members.iter().map(|&m| self.last_use[m]).max().unwrap_or(0)
    }
}

/// The nodes that the wanted values depend on.
pub(crate) fn needed(graph: &Graph, wanted: impl Iterator<Item = Value>) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes().len()];
    wanted.for_each(|v| needed[v.node as usize] = true);
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        if needed[i] {
            node.inputs.iter().for_each(|v| needed[v.node as usize] = true);
        }
    }
    needed
}

/// How often each node is read by those that are needed, or as an end of the graph.
pub(super) fn readers(graph: &Graph, needed: &[bool], ends: impl Iterator<Item = Value>) -> Vec<usize> {
    let mut readers = vec![0; needed.len()];
    let nodes = graph.nodes().iter().zip(needed).filter(|(_, needed)| **needed);
    nodes.flat_map(|(node, _)| &node.inputs).copied().chain(ends).for_each(|v| readers[v.node as usize] += 1);
    readers
}

/// For each result that continues an operand, the result and the operand.
pub(super) fn continued(op: &Op) -> Vec<(usize, usize)> {
    match op {
        Op::Scatter { .. } | Op::UpdateSlice | Op::AddRmsNorm { .. } => vec![(0, 0)],
        Op::PagedAttention(p) if p.value_dim.is_some() => vec![(1, 2)],
        Op::PagedAttention(_) => vec![(1, 3), (2, 4)],
        Op::SelectiveScan => vec![(1, 6)],
        Op::CausalConv => vec![(1, 3)],
        _ => vec![],
    }
}
