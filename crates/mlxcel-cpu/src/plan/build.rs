//! From a graph to a plan. Everything that cannot be run is refused here, never when a step runs.

use std::collections::HashMap;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Bindings, Dim, Graph, Node, Op, PagedSpec, Type, Value};

use super::feeds::{self, Block};
use super::lives::{Lives, RootKind, continued, needed, readers};
use super::norms::{self, Norm};
use super::ropes::{self, Absorbed};
use super::slots::{Need, assign};
use super::{
    Arena, Input, Kernel, Multiplied, Place, Placed, Plan, Region, Rope, Source, Span, Step, registers,
};
use crate::kernels::attention::Sequences;
use crate::kernels::elementwise::Code;
use crate::layout::RANK_MAX;
use crate::roles::TOKENS;
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
    let mut lives = Lives::new(graph, &needed, ends());
    let readers = readers(graph, &needed, ends());
    let blocks = feeds::find(graph, leaves, &needed, &readers)?;
    for block in &blocks {
        lives.prolong(Value { node: block.first as u32, result: 0 }, block.last);
        lives.prolong(block.x, block.last);
    }
    let norms = norms::find(graph, leaves, (&needed, &blocks), ends());
    for norm in &norms {
        graph.nodes()[norm.node].inputs.iter().for_each(|v| lives.prolong(*v, norm.within));
        lives.prolong(Value { node: norm.node as u32, result: 1 }, norm.within);
    }
    let absorbed = ropes::find(graph, leaves, &needed, &readers);
    for a in &absorbed {
        graph.nodes()[a.rope].inputs.iter().for_each(|v| lives.prolong(*v, a.attention));
    }
    let count = lives.count();
    let found = vec![None; count];
    let mut b = Planner {
        graph,
        leaves,
        lives,
        plan: Plan::default(),
        found,
        ends: vec![0; count],
        made_at: vec![],
        rotations: vec![],
        sequences: vec![],
        blocks,
        norms,
        absorbed,
    };
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

struct Planner<'g> {
    graph: &'g Graph,
    leaves: &'g Leaves,
    lives: Lives,
    plan: Plan,
    /// Where each value is found; registers are numbers of values until [`Planner::finish`].
    found: Vec<Option<Input>>,
    /// The last step that reads each value's register.
    ends: Vec<usize>,
    /// Roots that need slots, with the node and type that make them.
    made_at: Vec<(usize, usize, Type)>,
    rotations: Vec<Rotation>,
    /// The values that lists of sequences are made of.
    sequences: Vec<Vec<(Source, Option<Span>)>>,
    blocks: Vec<Block>,
    norms: Vec<Norm>,
    absorbed: Vec<Absorbed>,
}

/// What a rotation depends on: the values of positions and frequencies, and how they are used.
#[derive(Clone, Copy, PartialEq)]
struct Rotation {
    angles: [Source; 2],
    /// Of the frequencies: whether each token has its own.
    rank: usize,
    interleaved: bool,
    scale: f32,
}

impl<'g> Planner<'g> {
    fn node(&mut self, index: usize, node: &Node, arguments: usize) -> Result<(), EngineError> {
        let types: Vec<Type> = node.inputs.iter().map(|v| self.graph.ty(*v).clone()).collect();
        if node.types.iter().any(|t| t.rank() > RANK_MAX) {
            return Err(crate::unsupported(&node.op, &node.types));
        }
        let value = self.lives.id(Value { node: index as u32, result: 0 });
        if let Some((source, kind)) = self.leaf(index, node, arguments)? {
            self.lives.make(value, kind);
            self.found[value] = Some(Input { from: source, shape: None });
            return Ok(());
        }
        self.refuse_packed(node, &types)?;
        if self.blocks.iter().any(|block| block.absorbs(index))
            || self.norms.iter().any(|norm| norm.node == index)
            || self.absorbed.iter().any(|a| a.rope == index)
        {
            return Ok(());
        }
        let norm = self.norms.iter().find(|norm| norm.within == index).copied();
        if let Some(block) = self.blocks.iter().find(|block| block.last == index).copied() {
            self.block(&block, norm);
            return Ok(());
        }
        if let Some(norm) = norm {
            self.product(index, norm);
            return Ok(());
        }
        let mut inputs = self.inputs(index, node);
        if let Op::Reshape { .. } = node.op
            && self.lives.is_contiguous(inputs[0])
        {
            // The same memory under another shape: no step.
            self.lives.share(value, inputs[0], true);
            let shape = self.shape(&node.types[0]);
            self.found[value] = Some(Input { shape: Some(shape), ..self.find(inputs[0]) });
            return Ok(());
        }
        let kernel = match &node.op {
            Op::PagedAttention(spec) => self.paged(index, spec, &mut inputs),
            _ => self.kernel(node, &types, &inputs)?,
        };
        let places = self.places(index, node, value, &inputs);
        let results = places.into_iter().zip(&node.types).enumerate();
        let results: Vec<_> = results.map(|(r, (place, t))| (value + r, t, place)).collect();
        self.step(&node.op, &results, &inputs, kernel);
        Ok(())
    }

    /// The operands of a node that is computed at `index`. Of a sum the first is one whose memory it can take, if any is.
    fn inputs(&self, index: usize, node: &Node) -> Vec<usize> {
        let mut inputs: Vec<usize> = node.inputs.iter().map(|v| self.lives.id(*v)).collect();
        let is_sum = matches!(node.op, Op::AddRmsNorm { .. });
        if is_sum && !self.lives.can_take(index, &inputs, 0) && self.lives.can_take(index, &inputs, 1) {
            inputs.swap(0, 1);
        }
        inputs
    }

    /// One step for a block, with room for its first product.
    fn block(&mut self, block: &Block, norm: Option<Norm>) {
        let graph = self.graph;
        let ends = [block.last, block.first].map(|i| (i, &graph.nodes()[i]));
        let mut inputs = norm.map_or_else(|| vec![self.lives.id(block.x)], |norm| self.inputs_of(norm));
        for (_, node) in [ends[1], ends[0]] {
            inputs.extend(node.inputs[1..].iter().map(|v| self.lives.id(*v)));
        }
        let mut results: Vec<_> = ends.map(|(i, node)| self.result(i, block.last, node)).into();
        let multiplied = self.multiplied(&graph.nodes()[block.last], (norm, &inputs), &mut results);
        self.step(&ends[0].1.op, &results, &inputs, Kernel::Feed(block.feed, multiplied));
    }

    /// One step for a product and the norm before it.
    fn product(&mut self, index: usize, norm: Norm) {
        let graph = self.graph;
        let node = &graph.nodes()[index];
        let mut inputs = self.inputs_of(norm);
        inputs.extend(node.inputs[1..].iter().map(|v| self.lives.id(*v)));
        let mut results = vec![self.result(index, index, node)];
        let multiplied = self.multiplied(node, (Some(norm), &inputs), &mut results);
        self.step(&node.op, &results, &inputs, Kernel::Rows(multiplied));
    }

    fn inputs_of(&self, norm: Norm) -> Vec<usize> {
        self.inputs(norm.within, &self.graph.nodes()[norm.node])
    }

    /// The only result of a node, in memory of its own from step `at` on.
    fn result(&mut self, index: usize, at: usize, node: &'g Node) -> (usize, &'g Type, Place) {
        let value = self.lives.id(Value { node: index as u32, result: 0 });
        (value, &node.types[0], Place::Slot(self.slot(value, at, &node.types[0])))
    }

    /// How a step's product is fed, with the results of the norm before it.
    fn multiplied(
        &mut self,
        node: &Node,
        (norm, inputs): (Option<Norm>, &[usize]),
        results: &mut Vec<(usize, &'g Type, Place)>,
    ) -> Multiplied {
        if let Some(norm) = norm {
            let graph = self.graph;
            let value = self.lives.id(Value { node: norm.node as u32, result: 0 });
            let types = &graph.nodes()[norm.node].types;
            let places = self.places(norm.within, &graph.nodes()[norm.node], value, inputs);
            results.extend(
                places.into_iter().zip(types).enumerate().map(|(r, (place, t))| (value + r, t, place)),
            );
        }
        Multiplied { by_token: by_token(node), norm: norm.map(|norm| norm.eps) }
    }

    /// Appends a step that computes values of some types, with the dimensions that its op needs when it runs.
    fn step(&mut self, op: &Op, results: &[(usize, &Type, Place)], inputs: &[usize], kernel: Kernel) {
        let (first_input, first_result) = (self.plan.inputs.len(), self.plan.placed.len());
        for &input in inputs {
            let input = self.read(input);
            self.plan.inputs.push(input);
        }
        for &(value, t, place) in results {
            let (register, shape) = (value as u32, self.shape(t));
            self.plan.placed.push(Placed { register, dtype: t.dtype, shape, place });
            self.found[value] = Some(Input { from: Source::Register(register), shape: None });
        }
        let sizes = match op {
            Op::Slice { start, end, .. } => self.sizes([start, end]),
            Op::Size { dim } => self.sizes([dim]),
            _ => self.sizes([]),
        };
        self.plan.steps.push(Step {
            op: op.clone(),
            kernel,
            inputs: Span::since(first_input, &self.plan.inputs),
            results: Span::since(first_result, &self.plan.placed),
            sizes,
        });
    }

    fn find(&self, value: usize) -> Input {
        self.found[value].expect("operands come before their users")
    }

    /// Where a value is found, for the step that is being made.
    fn read(&mut self, value: usize) -> Input {
        let input = self.find(value);
        if let Source::Register(held) = input.from {
            self.ends[held as usize] = self.plan.steps.len();
        }
        input
    }

    /// A value that outlives the plan.
    fn keep(&mut self, value: Value) -> Input {
        let input = self.find(self.lives.id(value));
        if let Source::Register(held) = input.from {
            self.ends[held as usize] = usize::MAX;
        }
        input
    }

    fn shape(&mut self, t: &Type) -> Span {
        self.sizes(&t.shape)
    }

    fn sizes<'d>(&mut self, dims: impl IntoIterator<Item = &'d Dim>) -> Span {
        let start = self.plan.shapes.len();
        for d in dims {
            let entry = self.plan.dims.add(d);
            self.plan.shapes.push(entry as u32);
        }
        Span::since(start, &self.plan.shapes)
    }

    fn leaf(
        &mut self,
        index: usize,
        node: &Node,
        arguments: usize,
    ) -> Result<Option<(Source, RootKind)>, EngineError> {
        if let Some(&w) = self.leaves.weights.get(&(index as u32)) {
            return Ok(Some((Source::Weight(w as u32), RootKind::Fixed)));
        }
        Ok(match &node.op {
            Op::Input { .. } => Some((Source::Argument(arguments as u32), RootKind::Fixed)),
            Op::State { name, .. } => {
                let updated = self.graph.updates().iter().any(|(n, _)| n == name);
                Some((Source::State(self.leaves.states[name] as u32), RootKind::State { updated }))
            }
            Op::Constant(t) => {
                self.plan.constants.push(Stored::of_host(t)?);
                Some((Source::Constant(self.plan.constants.len() as u32 - 1), RootKind::Fixed))
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

    fn kernel(&mut self, node: &Node, types: &[Type], inputs: &[usize]) -> Result<Kernel, EngineError> {
        if let Op::Rope { .. } = node.op {
            return Ok(Kernel::Rope(self.rope(node, inputs, 1)));
        }
        if node.op.is_elementwise() || node.op == Op::Fused {
            return Ok(Kernel::Elementwise(Code::compile(node, types)?));
        }
        if node.regions.is_empty() {
            let rows = (0..inputs.len()).any(|at| reads_rows(&node.op, at));
            let multiplied = Multiplied { by_token: by_token(node), norm: None };
            return Ok(if rows { Kernel::Rows(multiplied) } else { Kernel::Op });
        }
        let region = |g: &Graph| {
            let wanted: Vec<Value> = g.outputs().iter().map(|(_, v)| *v).collect();
            let plan = build(g, &Leaves { dims: self.leaves.dims.clone(), ..Leaves::default() }, &wanted)?;
            Ok(Region { plan, arena: Arena::default().into() })
        };
        Ok(Kernel::Regions(node.regions.iter().map(region).collect::<Result<_, EngineError>>()?))
    }

    /// Attention over sequences; what is rotated within it is read as it was before, and positions and frequencies stand behind its
    /// own operands.
    fn paged(&mut self, index: usize, spec: &PagedSpec, inputs: &mut Vec<usize>) -> Kernel {
        let value = |v: &usize| {
            let input = self.find(*v);
            (input.from, input.shape)
        };
        let values = inputs[Sequences::places(spec)].iter().map(value).collect();
        let list = number_of(values, &mut self.sequences);
        self.plan.sequences = self.sequences.len();
        let mut ropes = [None; 2];
        for absorbed in self.absorbed.clone().into_iter().filter(|a| a.attention == index) {
            let graph = self.graph;
            let rope = &graph.nodes()[absorbed.rope];
            let angles = inputs.len();
            inputs[absorbed.operand] = self.lives.id(rope.inputs[0]);
            inputs.extend(rope.inputs[1..].iter().map(|v| self.lives.id(*v)));
            ropes[absorbed.operand] = Some(self.rope(rope, inputs, angles));
        }
        Kernel::Paged { list, ropes }
    }

    /// A rotation whose positions and frequencies stand at a place among the operands of a step.
    fn rope(&mut self, node: &Node, inputs: &[usize], angles: usize) -> Rope {
        let Op::Rope { interleaved, scale } = node.op else { unreachable!("only these are rotations") };
        let (scale, rank) = (scale as f32, self.graph.ty(node.inputs[2]).rank());
        let from = [0, 1].map(|i| self.find(inputs[angles + i]).from);
        let table = number_of(Rotation { angles: from, rank, interleaved, scale }, &mut self.rotations);
        self.plan.rotations = self.rotations.len();
        Rope { table, angles, interleaved, scale }
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
        for result in &mut self.plan.placed {
            result.place = match result.place {
                Place::Slot(root) => Place::Slot(slot(root)),
                Place::ViewOr(root) => Place::ViewOr(slot(root)),
                Place::Copy(root, operand) => Place::Copy(slot(root), operand),
                other => other,
            };
        }
        self.plan.slots = slots;
        self.plan.results = wanted.iter().map(|v| self.keep(*v)).collect();
        for (name, v) in self.graph.updates() {
            let update = (self.leaves.states[name], self.keep(*v));
            self.plan.updates.push(update);
        }
        registers::assign(&mut self.plan, &self.ends);
        Ok(self.plan)
    }
}

/// Whether the first axis of a node's result is the tokens of the step.
fn by_token(node: &Node) -> bool {
    node.types[0].shape.first().and_then(|d| d.as_symbol()) == Some(TOKENS)
}

/// Whether an op reads operand `at` row by row in any format.
pub(crate) fn reads_rows(op: &Op, at: usize) -> bool {
    match op {
        Op::Linear { .. } | Op::ExpertLinear { .. } => at == 1,
        Op::Embedding { .. } | Op::Dequantize { .. } => at == 0,
        _ => false,
    }
}

/// The number of what is the same for the same values: a value never changes within a run.
fn number_of<T: PartialEq>(wanted: T, known: &mut Vec<T>) -> u32 {
    let number = known.iter().position(|k| *k == wanted).unwrap_or_else(|| {
        known.push(wanted);
        known.len() - 1
    });
    number as u32
}
