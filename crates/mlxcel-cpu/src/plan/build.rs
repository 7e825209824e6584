//! From a graph to a plan. Everything that cannot be run is refused here, never when a step runs.

use std::collections::HashMap;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Bindings, Graph, Node, Op, Type, Value};

use super::lives::{Lives, RootKind, continued, needed};
use super::slots::{Need, assign};
use super::{Arena, DimTable, Kernel, Leaf, Place, Placed, Plan, Region, Step};
use crate::kernels::elementwise::Code;
use crate::layout::RANK_MAX;
use crate::stored::Stored;

/// What symbols are taken to be when the sizes of slots are compared.
const NOMINAL: usize = 64;

/// Weights and states by name, in the order the program keeps them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaves {
    /// Numbers of weights by the node that stands for them, computed ones included.
    pub(crate) weights: HashMap<u32, usize>,
    pub(crate) states: HashMap<String, usize>,
    /// Sizes known when the graph is compiled.
    pub(crate) dims: Bindings,
}

/// A plan that computes `wanted` and all state updates.
pub(crate) fn build(graph: &Graph, leaves: &Leaves, wanted: &[Value]) -> Result<Plan, EngineError> {
    let ends = || wanted.iter().copied().chain(graph.updates().iter().map(|(_, v)| *v));
    let needed = needed(graph, ends());
    let lives = Lives::new(graph, &needed, ends());
    let mut b = Planner { graph, leaves, lives, plan: empty(), made_at: vec![] };
    let mut arguments = 0;
    for (i, node) in graph.nodes().iter().enumerate() {
        let argument = matches!(node.op, Op::Input { .. });
        if needed[i] {
            b.node(i, node, arguments)?;
        }
        arguments += argument as usize;
    }
    b.finish(wanted)
}

fn empty() -> Plan {
    Plan {
        steps: vec![],
        leaves: vec![],
        constants: vec![],
        values: 0,
        slots: 0,
        results: vec![],
        updates: vec![],
        dims: DimTable::default(),
    }
}

struct Planner<'g> {
    graph: &'g Graph,
    leaves: &'g Leaves,
    lives: Lives,
    plan: Plan,
    /// Roots that need slots, with the node and type that make them.
    made_at: Vec<(usize, usize, Type)>,
}

impl Planner<'_> {
    fn node(&mut self, index: usize, node: &Node, arguments: usize) -> Result<(), EngineError> {
        let types: Vec<Type> = node.inputs.iter().map(|v| self.graph.ty(*v).clone()).collect();
        if node.types.iter().any(|t| t.rank() > RANK_MAX) {
            return Err(crate::unsupported(&node.op, &node.types));
        }
        let value = self.lives.id(Value { node: index as u32, result: 0 });
        if let Some((leaf, kind)) = self.leaf(index, node, arguments)? {
            self.lives.make(value, kind);
            self.plan.leaves.push((value, leaf));
            return Ok(());
        }
        self.refuse_packed(node, &types)?;
        let inputs: Vec<usize> = node.inputs.iter().map(|v| self.lives.id(*v)).collect();
        let places = self.places(index, node, value, &inputs);
        let kernel = self.kernel(node, &types)?;
        let mut results = Vec::with_capacity(places.len());
        for (r, (place, t)) in places.into_iter().zip(&node.types).enumerate() {
            let shape = t.shape.iter().map(|d| self.plan.dims.add(d)).collect();
            results.push(Placed { value: value + r, dtype: t.dtype, shape, place });
        }
        match &node.op {
            Op::Slice { start, end, .. } => [start, end].into_iter().for_each(|d| {
                self.plan.dims.add(d);
            }),
            Op::Size { dim } => {
                self.plan.dims.add(dim);
            }
            _ => {}
        }
        self.plan.steps.push(Step { op: node.op.clone(), kernel, inputs, results });
        Ok(())
    }

    fn leaf(
        &mut self,
        index: usize,
        node: &Node,
        arguments: usize,
    ) -> Result<Option<(Leaf, RootKind)>, EngineError> {
        if let Some(&w) = self.leaves.weights.get(&(index as u32)) {
            return Ok(Some((Leaf::Weight(w), RootKind::Fixed)));
        }
        Ok(match &node.op {
            Op::Input { .. } => Some((Leaf::Argument(arguments), RootKind::Fixed)),
            Op::State { name, .. } => {
                let updated = self.graph.updates().iter().any(|(n, _)| n == name);
                Some((Leaf::State(self.leaves.states[name]), RootKind::State { updated }))
            }
            Op::Constant(t) => {
                self.plan.constants.push(Stored::of_host(t)?);
                Some((Leaf::Constant(self.plan.constants.len() - 1), RootKind::Fixed))
            }
            _ => None,
        })
    }

    /// Packed operands only where rows are decoded.
    fn refuse_packed(&self, node: &Node, types: &[Type]) -> Result<(), EngineError> {
        let bad = types.iter().enumerate().any(|(i, t)| t.dtype.is_quant() && !reads_rows(&node.op, i));
        if bad { Err(crate::unsupported(&node.op, types)) } else { Ok(()) }
    }

    /// Where each result goes; slots are numbers of roots until [`Planner::finish`].
    fn places(&mut self, index: usize, node: &Node, value: usize, inputs: &[usize]) -> Vec<Place> {
        let continued = continued(&node.op);
        let mut places = vec![];
        for (r, t) in node.types.iter().enumerate() {
            let id = value + r;
            places.push(match &node.op {
                Op::Broadcast { .. } | Op::Transpose { .. } | Op::Slice { .. } | Op::DynamicSlice { .. } => {
                    self.lives.share(id, inputs[0], false);
                    Place::View
                }
                Op::Reshape { .. } if self.lives.is_contiguous(inputs[0]) => {
                    self.lives.share(id, inputs[0], true);
                    Place::View
                }
                Op::Reshape { .. } => {
                    let root = self.lives.share_or_make(id, inputs[0]);
                    self.made_at.push((root, index, t.clone()));
                    Place::ViewOr(root)
                }
                _ => match continued.iter().find(|(result, _)| *result == r) {
                    Some(&(_, operand)) if self.lives.can_take(index, inputs, operand) => {
                        self.lives.share(id, inputs[operand], true);
                        Place::Take(operand)
                    }
                    Some(&(_, operand)) => Place::Copy(self.slot(id, index, t), operand),
                    None => Place::Slot(self.slot(id, index, t)),
                },
            });
        }
        places
    }

    fn slot(&mut self, value: usize, index: usize, t: &Type) -> usize {
        let root = self.lives.make(value, RootKind::Slot);
        self.made_at.push((root, index, t.clone()));
        root
    }

    fn kernel(&mut self, node: &Node, types: &[Type]) -> Result<Kernel, EngineError> {
        if node.op.is_elementwise() || node.op == Op::Fused {
            return Ok(Kernel::Elementwise(Code::compile(node, types)?));
        }
        if node.regions.is_empty() {
            return Ok(Kernel::Op);
        }
        let region = |g: &Graph| {
            let wanted: Vec<Value> = g.outputs().iter().map(|(_, v)| *v).collect();
            let plan = build(g, &Leaves { dims: self.leaves.dims.clone(), ..Leaves::default() }, &wanted)?;
            Ok(Region { plan, arena: Arena::default().into() })
        };
        Ok(Kernel::Regions(node.regions.iter().map(region).collect::<Result<_, EngineError>>()?))
    }

    fn finish(mut self, wanted: &[Value]) -> Result<Plan, EngineError> {
        let mut nominal = self.leaves.dims.clone();
        for symbol in self.graph.symbols() {
            nominal.entry(symbol.to_string()).or_insert(NOMINAL);
        }
        let bytes = |t: &Type| {
            let elements = t.elements().eval(&nominal).unwrap_or(usize::MAX);
            elements.saturating_mul(t.dtype.size().unwrap_or(1))
        };
        let needs: Vec<Need> = self
            .made_at
            .iter()
            .map(|(root, at, t)| Need { root: *root, made_at: *at, bytes: bytes(t) })
            .collect();
        let (slot_of, slots) = assign(&self.lives, &needs);
        let slot = |root: usize| slot_of[root].expect("every root that a place names was assigned");
        for result in self.plan.steps.iter_mut().flat_map(|s| &mut s.results) {
            result.place = match result.place {
                Place::Slot(root) => Place::Slot(slot(root)),
                Place::ViewOr(root) => Place::ViewOr(slot(root)),
                Place::Copy(root, operand) => Place::Copy(slot(root), operand),
                other => other,
            };
        }
        self.plan.slots = slots;
        self.plan.values = self.lives.count();
        self.plan.results = wanted.iter().map(|v| self.lives.id(*v)).collect();
        let update = |(name, v): &(String, Value)| (self.leaves.states[name], self.lives.id(*v));
        self.plan.updates = self.graph.updates().iter().map(update).collect();
        Ok(self.plan)
    }
}

/// Whether an op reads operand `at` row by row in any format.
pub(crate) fn reads_rows(op: &Op, at: usize) -> bool {
    match op {
        Op::Linear { .. } | Op::ExpertLinear { .. } => at == 1,
        Op::Embedding { .. } | Op::Dequantize { .. } => at == 0,
        _ => false,
    }
}
