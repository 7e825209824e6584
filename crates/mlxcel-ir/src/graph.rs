//! A graph: nodes in topological order, named outputs, and the new values of the declared states. Graphs are made
//! by the builder, the parser and the passes; all of them go through [`Graph::push`], so every graph is typed.

use std::collections::BTreeSet;

use crate::error::IrError;
use crate::infer::infer;
use crate::op::Op;
use crate::shape::{Bindings, Type};

/// One result of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    pub node: u32,
    pub result: u16,
}

/// An operation with its operands, nested regions and result types.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub op: Op,
    pub inputs: Vec<Value>,
    pub regions: Vec<Graph>,
    pub types: Vec<Type>,
    /// Where in the model the node came from, for messages and plans; may be empty.
    pub label: String,
}

/// A typed dataflow graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    nodes: Vec<Node>,
    /// Which of them are inputs: every step asks for these, and a model has thousands of nodes.
    inputs: Vec<u32>,
    outputs: Vec<(String, Value)>,
    updates: Vec<(String, Value)>,
}

impl Graph {
    /// Appends a node after checking its operands and inferring its result types.
    pub fn push(
        &mut self,
        op: Op,
        inputs: Vec<Value>,
        regions: Vec<Graph>,
        label: &str,
    ) -> Result<u32, IrError> {
        let index = self.nodes.len() as u32;
        let fail = |operands: &[&Type], reason: String| IrError::Op {
            op: op.name(),
            node: index,
            label: label.to_string(),
            operands: operands.iter().map(|t| t.to_string()).collect(),
            reason,
        };
        let mut operands = Vec::with_capacity(inputs.len());
        for v in &inputs {
            let t = self.nodes.get(v.node as usize).and_then(|n| n.types.get(v.result as usize));
            operands.push(t.ok_or_else(|| fail(&[], format!("operand %{} is not defined yet", v.node)))?);
        }
        let types = infer(&op, &operands, &regions).map_err(|reason| fail(&operands, reason))?;
        if types.len() > u16::MAX as usize {
            return Err(fail(&operands, format!("{} results are too many", types.len())));
        }
        if let Op::Input { .. } = op {
            self.inputs.push(index);
        }
        self.nodes.push(Node { op, inputs, regions, types, label: label.to_string() });
        Ok(index)
    }

    /// A graph that nothing has checked, for tests of what checks graphs.
    #[cfg(test)]
    pub(crate) fn unchecked(
        nodes: Vec<Node>,
        outputs: Vec<(String, Value)>,
        updates: Vec<(String, Value)>,
    ) -> Graph {
        let is_input = |i: &u32| matches!(nodes[*i as usize].op, Op::Input { .. });
        let inputs = (0..nodes.len() as u32).filter(is_input).collect();
        Graph { nodes, inputs, outputs, updates }
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn node(&self, v: Value) -> &Node {
        &self.nodes[v.node as usize]
    }

    pub fn ty(&self, v: Value) -> &Type {
        &self.nodes[v.node as usize].types[v.result as usize]
    }

    pub fn outputs(&self) -> &[(String, Value)] {
        &self.outputs
    }

    /// State name and the value it takes after the step.
    pub fn updates(&self) -> &[(String, Value)] {
        &self.updates
    }

    pub fn add_output(&mut self, name: &str, v: Value) -> Result<(), IrError> {
        if self.outputs.iter().any(|(n, _)| n == name) {
            return Err(IrError::DuplicateName { what: "output", name: name.to_string() });
        }
        self.check_defined(name, v)?;
        self.outputs.push((name.to_string(), v));
        Ok(())
    }

    pub fn add_update(&mut self, state: &str, v: Value) -> Result<(), IrError> {
        self.check_defined(state, v)?;
        let declared = self.nodes.iter().find_map(|n| match &n.op {
            Op::State { name, .. } if name == state => Some(&n.types[0]),
            _ => None,
        });
        let declared = declared.ok_or_else(|| IrError::UnknownState { name: state.to_string() })?;
        if declared != self.ty(v) {
            let (declared, updated) = (declared.to_string(), self.ty(v).to_string());
            return Err(IrError::StateType { name: state.to_string(), declared, updated });
        }
        if self.updates.iter().any(|(n, _)| n == state) {
            return Err(IrError::DuplicateName { what: "state update", name: state.to_string() });
        }
        self.updates.push((state.to_string(), v));
        Ok(())
    }

    fn check_defined(&self, name: &str, v: Value) -> Result<(), IrError> {
        let known = self.nodes.get(v.node as usize).is_some_and(|n| (v.result as usize) < n.types.len());
        if known { Ok(()) } else { Err(IrError::UndefinedOutput { name: name.to_string(), node: v.node }) }
    }

    /// Leaves of one kind with their type, in order: `graph.leaves(|op| matches!(op, Op::State { .. }))`.
    pub fn leaves(&self, kind: impl Fn(&Op) -> bool) -> impl Iterator<Item = (u32, &Node)> {
        self.nodes.iter().enumerate().filter(move |(_, n)| kind(&n.op)).map(|(i, n)| (i as u32, n))
    }

    pub fn inputs(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.inputs.iter().map(|&i| (i, &self.nodes[i as usize]))
    }

    pub fn weights(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.leaves(|op| matches!(op, Op::Weight { .. }))
    }

    pub fn states(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.leaves(|op| matches!(op, Op::State { .. }))
    }

    /// All symbols in the types of the graph.
    pub fn symbols(&self) -> BTreeSet<&str> {
        let types = self.nodes.iter().flat_map(|n| &n.types);
        types.flat_map(|t| &t.shape).flat_map(|d| d.symbols()).collect()
    }

    /// Rewrites node by node into a new graph. `rule` gets the graph under construction, the old node, and its
    /// operands in the new graph; it returns the values that stand for the node's results, or `None` to copy it.
    pub fn rewrite(
        &self,
        mut rule: impl FnMut(&mut Graph, &Node, &[Value]) -> Result<Option<Vec<Value>>, IrError>,
    ) -> Result<Graph, IrError> {
        let mut out = Graph::default();
        let mut map: Vec<Vec<Value>> = Vec::with_capacity(self.nodes.len());
        let find = |map: &[Vec<Value>], v: &Value| map[v.node as usize][v.result as usize];
        for node in &self.nodes {
            let inputs: Vec<Value> = node.inputs.iter().map(|v| find(&map, v)).collect();
            let results = match rule(&mut out, node, &inputs)? {
                Some(values) => values,
                None => out.copy_node(node, inputs)?,
            };
            map.push(results);
        }
        for (name, v) in &self.outputs {
            out.add_output(name, find(&map, v))?;
        }
        for (name, v) in &self.updates {
            out.add_update(name, find(&map, v))?;
        }
        Ok(out)
    }

    /// Appends a copy of `node` with other operands and returns its results.
    pub fn copy_node(&mut self, node: &Node, inputs: Vec<Value>) -> Result<Vec<Value>, IrError> {
        let index = self.push(node.op.clone(), inputs, node.regions.clone(), &node.label)?;
        Ok(self.results(index))
    }

    /// Gives the nodes from `first` on a label, where they have none.
    pub(crate) fn relabel(&mut self, first: usize, label: &str) {
        for node in self.nodes[first..].iter_mut().filter(|n| n.label.is_empty()) {
            node.label = label.to_string();
        }
    }

    /// The results of a node as values.
    pub fn results(&self, node: u32) -> Vec<Value> {
        (0..self.nodes[node as usize].types.len()).map(|r| Value { node, result: r as u16 }).collect()
    }

    /// Copies the body of `region` with its inputs replaced by `arguments`; returns the region's outputs.
    pub fn inline(&mut self, region: &Graph, arguments: &[Value]) -> Result<Vec<Value>, IrError> {
        let mut map: Vec<Vec<Value>> = Vec::with_capacity(region.nodes.len());
        let mut arguments = arguments.iter();
        for node in &region.nodes {
            let inputs = node.inputs.iter().map(|v| map[v.node as usize][v.result as usize]).collect();
            let results = match (&node.op, arguments.len()) {
                (Op::Input { .. }, n) if n > 0 => vec![*arguments.next().expect("length was checked")],
                _ => self.copy_node(node, inputs)?,
            };
            map.push(results);
        }
        Ok(region.outputs.iter().map(|(_, v)| map[v.node as usize][v.result as usize]).collect())
    }

    /// The graph with symbols replaced by numbers, everywhere.
    pub fn bind(&self, bindings: &Bindings) -> Result<Graph, IrError> {
        let shape = |s: &crate::Shape| s.iter().map(|d| d.bind(bindings)).collect::<Vec<_>>();
        self.rewrite(|out, node, inputs| {
            let mut op = node.op.clone();
            match &mut op {
                Op::Input { shape: s, .. }
                | Op::Weight { shape: s, .. }
                | Op::State { shape: s, .. }
                | Op::Iota { shape: s, .. }
                | Op::Reshape { shape: s }
                | Op::Broadcast { shape: s }
                | Op::DynamicSlice { sizes: s } => *s = shape(s),
                Op::Size { dim } => *dim = dim.bind(bindings),
                Op::Slice { start, end, .. } => (*start, *end) = (start.bind(bindings), end.bind(bindings)),
                _ => {}
            }
            let regions: Result<Vec<_>, _> = node.regions.iter().map(|r| r.bind(bindings)).collect();
            let index = out.push(op, inputs.to_vec(), regions?, &node.label)?;
            Ok(Some(out.results(index)))
        })
    }
}
