//! One block of instructions under construction: registers, arguments and the values of its graph's nodes.

use std::collections::BTreeMap;

use mlxcel_engine::EngineError;
use mlxcel_ir::{BinaryOp, Dim, Graph, Node, Op, Shape, Value};

use super::ops::is_f8;
use super::{Instr, Statics, StepShape};
use crate::handle::dtype_code;
use crate::repack::Stored;

/// Where the value of a node is.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    Plain(i64),
    /// A packed matrix is several arrays.
    Packed(Stored, Vec<i64>),
}

pub(super) struct Frame<'a> {
    pub(super) graph: &'a Graph,
    pub(super) statics: &'a Statics,
    pub(super) step: &'a StepShape<'a>,
    values: Vec<Vec<Slot>>,
    /// Activations that are computed with the product that wants them.
    gates: Vec<bool>,
    registers: i64,
    arguments: Vec<i64>,
    body: Vec<i64>,
    count: i64,
    labels: Vec<String>,
    /// In a region, constants are further arguments: their numbers among the statics and their registers.
    hoisted: Option<BTreeMap<usize, i64>>,
    label: i64,
}

impl<'a> Frame<'a> {
    pub(super) fn new(graph: &'a Graph, statics: &'a Statics, step: &'a StepShape<'a>) -> Self {
        Frame {
            graph,
            statics,
            step,
            values: vec![vec![]; graph.nodes().len()],
            gates: vec![],
            registers: 0,
            arguments: vec![],
            body: vec![],
            count: 0,
            labels: vec![],
            hoisted: None,
            label: 0,
        }
    }

    /// The arguments of the main block: statics, states, inputs.
    pub(super) fn take_arguments(&mut self) {
        let first = self.registers;
        self.registers += self.statics.count as i64;
        self.arguments.extend(first..self.registers);
        let graph = self.graph;
        for (node, _) in graph.states().chain(graph.inputs()) {
            let r = self.argument();
            self.values[node as usize] = vec![Slot::Plain(r)];
        }
    }

    fn argument(&mut self) -> i64 {
        self.registers += 1;
        self.arguments.push(self.registers - 1);
        self.registers - 1
    }

    /// Emits whatever the wanted values need, in the order of the graph.
    pub(super) fn compute(&mut self, wanted: &[Value]) -> Result<(), EngineError> {
        let needed = reaches(self.graph, wanted);
        let graph = self.graph;
        self.gates = gates(graph, &needed, wanted);
        for (i, node) in graph.nodes().iter().enumerate() {
            if needed[i] && !self.gates[i] && self.values[i].is_empty() {
                // Instructions of a region are named after the op that the region belongs to.
                if self.hoisted.is_none() {
                    self.labels.push(title(i, node));
                    self.label = self.labels.len() as i64 - 1;
                }
                self.values[i] = self.node(i as u32, node)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, index: u32, node: &'a Node) -> Result<Vec<Slot>, EngineError> {
        match &node.op {
            Op::Weight { .. } => Ok(vec![self.weight(index)]),
            Op::Constant(t) => {
                let number = self.statics.constants[&std::ptr::from_ref(t).addr()];
                Ok(vec![Slot::Plain(self.constant(number))])
            }
            Op::Input { .. } | Op::State { .. } => unreachable!("arguments have their registers"),
            _ => self.op(node),
        }
    }

    fn weight(&mut self, index: u32) -> Slot {
        let (stored, first) = self.statics.weights[&index];
        let regs: Vec<i64> = (first..first + stored.arrays()).map(|i| i as i64).collect();
        match stored {
            Stored::Plain => Slot::Plain(regs[0]),
            packed => Slot::Packed(packed, regs),
        }
    }

    /// The register of a constant: an argument of the main block, a further argument of a region.
    fn constant(&mut self, number: usize) -> i64 {
        let known = self.hoisted.as_ref().map(|h| h.get(&number).copied());
        match known {
            None => number as i64,
            Some(Some(r)) => r,
            Some(None) => {
                // Arguments of a region come first in their order, so hoisted ones get their register now and their
                // place at the end.
                self.registers += 1;
                let r = self.registers - 1;
                self.hoisted.as_mut().expect("it was there").insert(number, r);
                r
            }
        }
    }

    pub(super) fn slot(&self, v: Value) -> &Slot {
        &self.values[v.node as usize][v.result as usize]
    }

    /// The register of a plain value.
    pub(super) fn reg(&self, v: Value) -> i64 {
        match self.slot(v) {
            Slot::Plain(r) => *r,
            Slot::Packed(..) => unreachable!("the verifier lets few ops take packed values"),
        }
    }

    /// The activation and the other operand of a product that is computed with it.
    pub(super) fn gate(&self, product: &Node) -> Option<(&'a Node, Value)> {
        let is_gate = |v: &Value| self.gates[v.node as usize];
        match (&product.op, product.inputs.as_slice()) {
            (Op::Binary(BinaryOp::Mul), [a, b]) if is_gate(a) => {
                Some((&self.graph.nodes()[a.node as usize], *b))
            }
            (Op::Binary(BinaryOp::Mul), [a, b]) if is_gate(b) => {
                Some((&self.graph.nodes()[b.node as usize], *a))
            }
            _ => None,
        }
    }

    /// Appends an instruction with `results` results and returns their registers.
    pub(super) fn emit(&mut self, instr: Instr, inputs: &[i64], results: usize, words: &[i64]) -> Vec<i64> {
        self.emit_with_blocks(instr, inputs, results, words, &[])
    }

    /// An instruction with one result.
    pub(super) fn one(&mut self, instr: Instr, inputs: &[i64], words: &[i64]) -> i64 {
        self.emit(instr, inputs, 1, words)[0]
    }

    pub(super) fn emit_with_blocks(
        &mut self,
        instr: Instr,
        inputs: &[i64],
        results: usize,
        words: &[i64],
        blocks: &[Vec<i64>],
    ) -> Vec<i64> {
        let outputs: Vec<i64> = (self.registers..self.registers + results as i64).collect();
        self.registers += results as i64;
        self.count += 1;
        self.body.extend([instr as i64, self.label]);
        for list in [inputs, &outputs, words] {
            push_list(&mut self.body, list);
        }
        self.body.push(blocks.len() as i64);
        blocks.iter().for_each(|b| self.body.extend(b));
        outputs
    }

    /// The block with these results.
    pub(super) fn finish(&self, results: &[i64]) -> Vec<i64> {
        let mut words = vec![self.registers];
        push_list(&mut words, &self.arguments);
        words.push(self.count);
        words.extend(&self.body);
        push_list(&mut words, results);
        words
    }

    pub(super) fn labels(&self) -> String {
        self.labels.iter().map(|l| format!("{}\0", l.replace('\0', " "))).collect()
    }

    /// Encodes regions that share their arguments, and says which constants they want beside them.
    pub(super) fn regions(&mut self, regions: &'a [Graph]) -> Result<(Vec<Vec<i64>>, Vec<i64>), EngineError> {
        let mut all = std::collections::BTreeSet::new();
        // Twice: first to learn which constants there are, then with all of them as arguments of each region.
        for region in regions {
            all.extend(self.region(region, &all.clone())?.1);
        }
        let blocks = regions.iter().map(|r| Ok(self.region(r, &all)?.0));
        let blocks = blocks.collect::<Result<Vec<_>, EngineError>>()?;
        Ok((blocks, all.into_iter().map(|number| self.constant(number)).collect()))
    }

    fn region(
        &self,
        region: &'a Graph,
        constants: &std::collections::BTreeSet<usize>,
    ) -> Result<(Vec<i64>, Vec<usize>), EngineError> {
        let mut inner = Frame::new(region, self.statics, self.step);
        inner.label = self.label;
        for (node, _) in region.inputs() {
            let r = inner.argument();
            inner.values[node as usize] = vec![Slot::Plain(r)];
        }
        inner.hoisted = Some(constants.iter().map(|&number| (number, inner.argument())).collect());
        let wanted: Vec<Value> = region.outputs().iter().map(|(_, v)| *v).collect();
        inner.compute(&wanted)?;
        let results: Vec<i64> = wanted.iter().map(|v| inner.reg(*v)).collect();
        let found = inner.hoisted.as_ref().expect("it was set").keys().copied().collect();
        Ok((inner.finish(&results), found))
    }

    // ---- numbers of the step ----

    pub(super) fn size(&self, dim: &Dim, what: &str) -> Result<i64, EngineError> {
        let unbound = || EngineError::Unbound { what: what.to_string(), dim: dim.to_string() };
        let n = dim.eval(self.step.sizes).ok_or_else(unbound)?;
        i64::try_from(n).map_err(|_| unbound())
    }

    pub(super) fn sizes(&self, shape: &Shape, what: &str) -> Result<Vec<i64>, EngineError> {
        shape.iter().map(|d| self.size(d, what)).collect()
    }

    /// A shape behind its length, as the shim reads lists.
    pub(super) fn shape_words(&self, shape: &Shape, what: &str) -> Result<Vec<i64>, EngineError> {
        Ok(list(&self.sizes(shape, what)?))
    }

    pub(super) fn zeros(&mut self, dtype: mlxcel_ir::DType, shape: &[i64]) -> i64 {
        let words = [&[dtype_code(dtype)][..], &list(shape)].concat();
        self.one(Instr::Zeros, &[], &words)
    }
}

/// A list behind its length.
pub(super) fn list(items: &[i64]) -> Vec<i64> {
    let mut words = vec![];
    push_list(&mut words, items);
    words
}

fn push_list(words: &mut Vec<i64>, items: &[i64]) {
    words.push(items.len() as i64);
    words.extend(items);
}

/// What a message calls a node.
fn title(index: usize, node: &Node) -> String {
    let at = if node.label.is_empty() { String::new() } else { format!(" '{}'", node.label) };
    format!("{}{at} (node {index})", node.op.name())
}

/// Activations that one product wants and nothing else: together they are one pass over memory.
fn gates(graph: &Graph, needed: &[bool], wanted: &[Value]) -> Vec<bool> {
    let mut uses = vec![0usize; graph.nodes().len()];
    let used = graph.nodes().iter().zip(needed).filter(|(_, needed)| **needed).flat_map(|(n, _)| &n.inputs);
    used.chain(wanted).for_each(|v| uses[v.node as usize] += 1);
    let mut gates = vec![false; graph.nodes().len()];
    for (node, _) in
        graph.nodes().iter().zip(needed).filter(|(n, needed)| **needed && n.op == Op::Binary(BinaryOp::Mul))
    {
        let is_gate = |v: &&Value| {
            let (from, dtype) = (&graph.nodes()[v.node as usize], graph.ty(**v).dtype);
            matches!(from.op, Op::Activation(_)) && uses[v.node as usize] == 1 && !is_f8(dtype)
        };
        if let Some(v) = node.inputs.iter().find(is_gate) {
            gates[v.node as usize] = true;
        }
    }
    gates
}

/// Which nodes the wanted values need.
fn reaches(graph: &Graph, wanted: &[Value]) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes().len()];
    wanted.iter().for_each(|v| needed[v.node as usize] = true);
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        if needed[i] {
            node.inputs.iter().for_each(|v| needed[v.node as usize] = true);
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use mlxcel_ir::{Activation, Builder, DType, shape};

    use super::*;

    /// How many activations are computed with a product, if these values of the graph are wanted.
    fn found(build: impl FnOnce(&Builder)) -> usize {
        let b = Builder::new();
        build(&b);
        let graph = b.finish().unwrap();
        let wanted: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        gates(&graph, &reaches(&graph, &wanted), &wanted).into_iter().filter(|is_gate| *is_gate).count()
    }

    #[test]
    fn an_activation_is_a_gate_of_one_product_only() {
        let once = |b: &Builder| {
            let x = b.input("x", DType::F32, shape![4]);
            b.output("y", x.activation(Activation::Silu) * x);
        };
        assert_eq!(found(once), 1);
        let on_both_sides = |b: &Builder| {
            let x = b.input("x", DType::F32, shape![4]);
            b.output("y", x.activation(Activation::Silu) * (x + 1.0).activation(Activation::Silu));
        };
        assert_eq!(found(on_both_sides), 1);
        let squared = |b: &Builder| {
            let y = b.input("x", DType::F32, shape![4]).activation(Activation::Silu);
            b.output("y", y * y);
        };
        assert_eq!(found(squared), 0);
        let wanted_itself = |b: &Builder| {
            let x = b.input("x", DType::F32, shape![4]);
            let y = x.activation(Activation::Silu);
            b.output("y", y);
            b.output("z", y * x);
        };
        assert_eq!(found(wanted_itself), 0);
        let added = |b: &Builder| {
            let x = b.input("x", DType::F32, shape![4]);
            b.output("y", x.activation(Activation::Silu) + x);
        };
        assert_eq!(found(added), 0);
    }
}
