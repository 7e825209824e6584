//! From a graph and the sizes of a step to what the device does. Every size is a number here; what cannot be run is
//! refused here, before anything was started.

mod contract;
mod control;
mod elementwise;
mod experts;
mod linear;
mod many;
mod model;
mod movement;
mod reduce;
mod stream;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Bindings, DType, Dim, Graph, HostTensor, Node, Op, Type, Value};

use crate::context::Context;
use crate::driver::{Address, Shape};
use crate::memory::Block;
use crate::params::Params;
use crate::tape::{Root, RootKind, Step};
use crate::view::{RootId, View, size};
use crate::weights::Stored;

pub(crate) use linear::decodes;
pub(crate) use model::HEAD_MAX;

pub(crate) type Result<T> = std::result::Result<T, EngineError>;

/// What a program has on the device beside the arena.
#[derive(Default)]
pub(crate) struct Leaves {
    pub(crate) weights: HashMap<u32, Stored>,
    /// Address of each state by name.
    pub(crate) states: HashMap<String, Address>,
    pub(crate) constants: Constants,
}

/// Constants on the device, each once.
#[derive(Default)]
pub(crate) struct Constants {
    known: HashMap<HostTensor, Address>,
    blocks: Vec<Block>,
    /// Numbers that kernels count with and leave at zero.
    counts: Option<Block>,
}

impl Constants {
    pub(crate) fn address(&mut self, ctx: &Arc<Context>, t: &HostTensor) -> Result<Address> {
        if let Some(&at) = self.known.get(t) {
            return Ok(at);
        }
        let block = Block::new(ctx, t.bytes().len() as u64, "a constant")?;
        ctx.driver.upload(block.at, t.bytes().as_ptr(), t.bytes().len() as u64, ctx.stream)?;
        ctx.wait()?;
        let at = block.at;
        self.blocks.push(block);
        self.known.insert(t.clone(), at);
        Ok(at)
    }

    /// Room for so many counts of 32 bits, all zero.
    pub(crate) fn counts(&mut self, ctx: &Arc<Context>, wanted: usize) -> Result<Address> {
        let bytes = (wanted * 4).max(COUNTS) as u64;
        let block = match self.counts.take().filter(|b| b.bytes >= bytes) {
            Some(block) => block,
            None => Block::zeroed(ctx, bytes, "counts of shares")?,
        };
        Ok(self.counts.insert(block).at)
    }
}

/// Bytes of counts; more than any device has multiprocessors, so that they are made once.
const COUNTS: usize = 4 << 10;

/// A value while a graph is lowered.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    Tensor(View),
    /// A weight in a packed format.
    Packed(Stored),
}

/// A step in the making.
pub(crate) struct Lower<'a> {
    pub(crate) ctx: &'a Arc<Context>,
    pub(crate) leaves: &'a mut Leaves,
    pub(crate) bindings: &'a Bindings,
    pub(crate) roots: Vec<Root>,
    pub(crate) steps: Vec<Step>,
    /// Inputs by name.
    pub(crate) fed: Vec<(String, View)>,
    /// The tables of IQ2_XXS and IQ3_XXS.
    tables: Address,
    /// The last streamed product so far, and what the first one reads first.
    chain: Option<(stream::Chained, stream::Ranges)>,
    /// Whether it leaves most of the shared memory to the next one.
    is_beside: bool,
}

/// What a graph gives.
pub(crate) struct Lowered {
    pub(crate) outputs: Vec<View>,
}

/// The values of one graph or region.
pub(crate) struct Frame<'g> {
    graph: &'g Graph,
    values: Vec<Vec<Option<Held>>>,
    uses: Vec<Vec<usize>>,
    needed: Vec<bool>,
    /// The needed nodes that read each node, once for each operand.
    readers: Vec<Vec<usize>>,
    /// Nodes that are computed as part of another.
    done: Vec<bool>,
    /// Rotations that are left to the attention that reads them; their value is what is to be rotated.
    unrotated: HashSet<u32>,
    /// Norms that are left to the products that read them, with weight and epsilon; their value is what is to be normed.
    unnormed: HashMap<Value, (View, f64)>,
    /// Products to which the residual was already added.
    added: HashSet<u32>,
}

impl<'g> Frame<'g> {
    fn new(graph: &'g Graph, ends: &[Value], given: impl Fn(u32) -> bool) -> Self {
        let needed = crate::weights::needed(graph, ends, &given);
        let mut uses: Vec<Vec<usize>> = graph.nodes().iter().map(|n| vec![0; n.types.len()]).collect();
        let mut readers = vec![vec![]; graph.nodes().len()];
        for (i, node) in graph.nodes().iter().enumerate().filter(|(i, _)| needed[*i] && !given(*i as u32)) {
            for v in &node.inputs {
                uses[v.node as usize][v.result as usize] += 1;
                readers[v.node as usize].push(i);
            }
        }
        ends.iter().for_each(|v| uses[v.node as usize][v.result as usize] += 1);
        let values = graph.nodes().iter().map(|n| vec![None; n.types.len()]).collect();
        let done = vec![false; graph.nodes().len()];
        let (unrotated, unnormed, added) = (HashSet::new(), HashMap::new(), HashSet::new());
        Frame { graph, values, uses, needed, readers, done, unrotated, unnormed, added }
    }

    fn get(&self, v: Value) -> &Held {
        self.values[v.node as usize][v.result as usize].as_ref().expect("operands come before their users")
    }
}

impl<'a> Lower<'a> {
    pub(crate) fn new(ctx: &'a Arc<Context>, leaves: &'a mut Leaves, bindings: &'a Bindings) -> Result<Self> {
        let tables = leaves.constants.address(ctx, &linear::tables())?;
        let (roots, steps, fed) = (vec![], vec![], vec![]);
        Ok(Lower { ctx, leaves, bindings, roots, steps, fed, tables, chain: None, is_beside: false })
    }

    /// A whole graph: computes `wanted`, then brings every state to its new value.
    pub(crate) fn graph(&mut self, graph: &Graph, wanted: &[Value]) -> Result<Lowered> {
        let ends: Vec<Value> =
            wanted.iter().copied().chain(graph.updates().iter().map(|(_, v)| *v)).collect();
        let mut frame = Frame::new(graph, &ends, |i| self.leaves.weights.contains_key(&i));
        let updated = |name: &str| graph.updates().iter().any(|(n, _)| n == name);
        for i in 0..graph.nodes().len() {
            let node = &graph.nodes()[i];
            // Inputs are fed whether they are needed or not.
            if let Op::Input { name, .. } = &node.op {
                let shape = self.shape(&node.types[0])?;
                let root = self.root(RootKind::Fed, node.types[0].dtype, &shape)?;
                let view = View::dense(root, node.types[0].dtype, &shape);
                self.fed.push((name.clone(), view.clone()));
                self.hold(&mut frame, i, 0, Held::Tensor(view));
                continue;
            }
            if !frame.needed[i] {
                continue;
            }
            if let Op::State { name, .. } = &node.op {
                let shape = self.shape(&node.types[0])?;
                let kind = RootKind::State { at: self.leaves.states[name], updated: updated(name) };
                let root = self.root(kind, node.types[0].dtype, &shape)?;
                let view = View::dense(root, node.types[0].dtype, &shape);
                self.hold(&mut frame, i, 0, Held::Tensor(view));
                continue;
            }
            if let Some(stored) = self.leaves.weights.get(&(i as u32)).cloned() {
                let held = self.weight(stored)?;
                self.hold(&mut frame, i, 0, held);
                continue;
            }
            self.node(&mut frame, i)?;
        }
        self.close_chain();
        self.finish(&frame, graph, wanted)
    }

    /// Outputs stand apart from states before these change; a state that takes another's value takes the old one.
    fn finish(&mut self, frame: &Frame<'_>, graph: &Graph, wanted: &[Value]) -> Result<Lowered> {
        let is_state = |l: &Self, v: &View| matches!(l.roots[v.root].kind, RootKind::State { .. });
        let mut outputs = vec![];
        for v in wanted {
            let view = self.tensor(frame, *v)?;
            let apart = is_state(self, &view) || !view.is_dense();
            outputs.push(if apart { self.copied(&view)? } else { view });
        }
        let mut moves = vec![];
        for (name, v) in graph.updates() {
            let view = self.tensor(frame, *v)?;
            let at = self.leaves.states[name];
            let kind = self.roots[view.root].kind;
            if matches!(kind, RootKind::State { at: here, .. } if here == at) && view.is_whole() {
                continue;
            }
            let from = if is_state(self, &view) || !view.is_dense() { self.copied(&view)? } else { view };
            moves.push((at, from));
        }
        for (at, from) in moves {
            let root = self.root(RootKind::State { at, updated: true }, from.dtype, &from.shape)?;
            let bytes = (from.elements() * size(from.dtype)) as u64;
            if bytes > 0 {
                let from = (from.root, from.byte_offset());
                self.steps.push(Step::Copy { to: (root, 0), from, bytes });
            }
        }
        Ok(Lowered { outputs })
    }

    fn weight(&mut self, stored: Stored) -> Result<Held> {
        if stored.dtype.is_quant() {
            return Ok(Held::Packed(stored));
        }
        let root = self.root(RootKind::Fixed(stored.parts[0]), stored.dtype, &stored.shape)?;
        Ok(Held::Tensor(View::dense(root, stored.dtype, &stored.shape)))
    }

    /// Lowers one node and lets go of its operands.
    fn node(&mut self, frame: &mut Frame<'_>, index: usize) -> Result<()> {
        let graph = frame.graph;
        let node = &graph.nodes()[index];
        if frame.done[index] {
            return Ok(());
        }
        let results = self.results(frame, index, node)?;
        for (r, held) in results.into_iter().enumerate() {
            self.hold(frame, index, r, held);
        }
        if frame.unrotated.contains(&(index as u32)) {
            // Its operands are still to be read.
            return Ok(());
        }
        for v in &node.inputs {
            if let Held::Tensor(view) = frame.get(*v) {
                let root = view.root;
                self.roots[root].uses -= 1;
            }
        }
        Ok(())
    }

    /// Keeps a result until its last use.
    fn hold(&mut self, frame: &mut Frame<'_>, node: usize, result: usize, held: Held) {
        if let Held::Tensor(view) = &held {
            self.roots[view.root].uses += frame.uses[node][result];
        }
        frame.values[node][result] = Some(held);
    }

    fn results(&mut self, frame: &mut Frame<'_>, index: usize, node: &Node) -> Result<Vec<Held>> {
        let types = |f: &Frame<'_>| node.inputs.iter().map(|v| f.graph.ty(*v).clone()).collect::<Vec<Type>>();
        match &node.op {
            Op::Constant(t) => {
                let at = self.leaves.constants.address(self.ctx, t)?;
                let root = self.root(RootKind::Fixed(at), t.dtype(), t.shape())?;
                Ok(vec![Held::Tensor(View::dense(root, t.dtype(), t.shape()))])
            }
            Op::Linear { .. } | Op::ExpertLinear { .. } | Op::Embedding { .. } | Op::Dequantize { .. } => {
                self.products(frame, index, node)
            }
            Op::If | Op::While { .. } | Op::Scan { .. } => {
                let results = self.control(frame, node)?;
                Ok(results.into_iter().map(Held::Tensor).collect())
            }
            Op::Rope { .. } if self.leaves_rotation(frame, index) => {
                frame.unrotated.insert(index as u32);
                Ok(vec![frame.get(node.inputs[0]).clone()])
            }
            Op::Cast(_) | Op::Fused if widens_for_sampling(frame, index) => {
                Ok(vec![frame.get(node.inputs[0]).clone()])
            }
            Op::RmsNorm { eps, weight: true } => self.norms(frame, index, node, *eps),
            Op::AddRmsNorm { eps } => self.norms(frame, index, node, *eps),
            Op::PagedAttention(spec) if frame.unrotated.contains(&node.inputs[0].node) => {
                let x = self.operands(frame, node)?;
                let ropes = [0, 1].map(|i| frame.graph.node(node.inputs[i]));
                let angles = [1, 2].map(|i| self.tensor(frame, ropes[0].inputs[i]));
                let [positions, frequencies] = angles;
                let angles = Some((&ropes[0].op, positions?, frequencies?));
                let out = self.paged(node, &x, spec, angles)?;
                Ok(out.into_iter().map(Held::Tensor).collect())
            }
            op => {
                let x = self.operands(frame, node)?;
                let out = match op {
                    _ if op.is_elementwise() || *op == Op::Fused => {
                        vec![self.elementwise(node, &x, &types(frame))?]
                    }
                    Op::Reduce { .. } | Op::Cumulative { .. } | Op::Sort { .. } | Op::ArgMax { .. } => {
                        self.reduction(node, &x)?
                    }
                    Op::DotGeneral { .. } | Op::Conv { .. } => vec![self.contraction(node, &x)?],
                    Op::AllReduce | Op::AllGather { .. } => vec![self.exchange(node, &x[0])?],
                    Op::RmsNorm { .. }
                    | Op::LayerNorm { .. }
                    | Op::AddRmsNorm { .. }
                    | Op::Softmax { .. }
                    | Op::Rope { .. }
                    | Op::PagedAttention(_)
                    | Op::SelectiveScan
                    | Op::CausalConv
                    | Op::Sample => self.model_op(node, &x)?,
                    _ => vec![self.movement(node, &x, &types(frame))?],
                };
                Ok(out.into_iter().map(Held::Tensor).collect())
            }
        }
    }

    /// A norm, with or without an addition before it, as far as products do not take it over.
    fn norms(&mut self, frame: &mut Frame<'_>, index: usize, node: &Node, eps: f64) -> Result<Vec<Held>> {
        let x = self.operands(frame, node)?;
        let adds = matches!(node.op, Op::AddRmsNorm { .. });
        let added = (0..2).find(|&i| adds && frame.added.contains(&node.inputs[i].node));
        let sum = match (adds, added) {
            (false, _) => x[0].clone(),
            (true, Some(i)) => x[i].clone(),
            (true, None) => {
                let out = self.model_op(node, &x)?;
                return Ok(out.into_iter().map(Held::Tensor).collect());
            }
        };
        let weight = self.dense(&x[x.len() - 1])?;
        let v = Value { node: index as u32, result: u16::from(adds) };
        let normed = if self.leaves_norm(frame, v, &sum)? {
            frame.unnormed.insert(v, (weight, eps));
            sum.clone()
        } else {
            self.rms_norm(&sum, &weight, eps)?
        };
        Ok(if adds { vec![sum, normed] } else { vec![normed] }.into_iter().map(Held::Tensor).collect())
    }

    /// Whether a rotation can be left to the attention that alone reads it: queries and keys are rotated alike, and
    /// values are apart from keys.
    fn leaves_rotation(&self, frame: &Frame<'_>, index: usize) -> bool {
        let graph = frame.graph;
        let [reader] = frame.readers[index][..] else { return false };
        let attention = &graph.nodes()[reader];
        if !matches!(&attention.op, Op::PagedAttention(p) if p.value_dim.is_none()) {
            return false;
        }
        let [q, k] = [0, 1].map(|i| attention.inputs[i].node);
        let (a, b) = (&graph.nodes()[q as usize], &graph.nodes()[k as usize]);
        let alone = |n: u32| frame.uses[n as usize][0] == 1 && frame.readers[n as usize] == [reader];
        matches!(a.op, Op::Rope { .. })
            && a.op == b.op
            && a.inputs[1..] == b.inputs[1..]
            && q != k
            && alone(q)
            && alone(k)
    }

    fn operands(&self, frame: &Frame<'_>, node: &Node) -> Result<Vec<View>> {
        node.inputs.iter().map(|v| self.tensor(frame, *v)).collect()
    }

    /// A value that must not be packed.
    fn tensor(&self, frame: &Frame<'_>, v: Value) -> Result<View> {
        match frame.get(v) {
            Held::Tensor(view) => Ok(view.clone()),
            Held::Packed(_) => {
                let node = frame.graph.node(v);
                Err(crate::unsupported(&node.op, &node.types))
            }
        }
    }

    pub(crate) fn size_of(&self, dim: &Dim) -> Result<usize> {
        let unbound = || EngineError::Unbound { what: "a value".to_string(), dim: dim.to_string() };
        dim.eval(self.bindings).ok_or_else(unbound)
    }

    pub(crate) fn shape(&self, t: &Type) -> Result<Vec<usize>> {
        t.shape.iter().map(|d| self.size_of(d)).collect()
    }

    /// A new root for a tensor.
    fn root(&mut self, kind: RootKind, dtype: DType, shape: &[usize]) -> Result<RootId> {
        let refuse = || EngineError::OutOfMemory { what: "a result".to_string(), bytes: usize::MAX };
        let bytes = dtype.storage_bytes(shape).ok_or_else(refuse)? as u64;
        Ok(self.memory(kind, bytes))
    }

    fn memory(&mut self, kind: RootKind, bytes: u64) -> RootId {
        self.roots.push(Root { kind, bytes, uses: 0 });
        self.roots.len() - 1
    }

    /// Room for a result.
    pub(crate) fn fresh(&mut self, dtype: DType, shape: &[usize]) -> Result<View> {
        let elements = shape.iter().try_fold(1usize, |a, &n| a.checked_mul(n));
        if elements.is_none_or(|n| n >= u32::MAX as usize) {
            return Err(EngineError::OutOfMemory { what: "a result".to_string(), bytes: usize::MAX });
        }
        let root = self.root(RootKind::Arena, dtype, shape)?;
        Ok(View::dense(root, dtype, shape))
    }

    pub(crate) fn fresh_like(&mut self, t: &Type) -> Result<View> {
        let shape = self.shape(t)?;
        self.fresh(t.dtype, &shape)
    }

    /// The operand itself if its elements lie in order, else a copy of it.
    pub(crate) fn dense(&mut self, v: &View) -> Result<View> {
        if v.is_dense() {
            Ok(View { strides: crate::view::strides(&v.shape), ..v.clone() })
        } else {
            self.copied(v)
        }
    }

    pub(crate) fn copied(&mut self, v: &View) -> Result<View> {
        let out = self.fresh(v.dtype, &v.shape)?;
        self.copy(&out, v)?;
        Ok(out)
    }

    /// The memory of an operand to write over, or a copy of it.
    pub(crate) fn taken(&mut self, v: &View) -> Result<View> {
        let root = &self.roots[v.root];
        let writable = match root.kind {
            RootKind::Arena => true,
            RootKind::State { updated, .. } => updated,
            RootKind::Fed | RootKind::Fixed(_) => false,
        };
        if writable && root.uses == 1 && v.is_dense() { Ok(v.clone()) } else { self.copied(v) }
    }

    /// Starts a kernel.
    pub(crate) fn launch(&mut self, name: &'static str, shape: Shape, params: Params) -> Result<()> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let function = self.ctx.function(name, shape.shared)?;
        self.steps.push(Step::Launch { function, shape, params: params.end() });
        Ok(())
    }

    /// Starts a kernel whose threads share `count` elements out.
    pub(crate) fn spread(&mut self, name: &'static str, count: usize, params: Params) -> Result<()> {
        let blocks = count.div_ceil(256).min(self.ctx.facts.multiprocessors as usize * 16);
        self.launch(name, grid([blocks, 1, 1], 256, 0), params)
    }
}

/// Whether a node does nothing but make 16-bit numbers wider for sampling, which reads them as they are.
fn widens_for_sampling(frame: &Frame<'_>, index: usize) -> bool {
    let node = &frame.graph.nodes()[index];
    let casts = match (&node.op, node.regions.first()) {
        (Op::Cast(_), _) => true,
        (_, Some(region)) => region.nodes().len() == 2 && matches!(region.nodes()[1].op, Op::Cast(_)),
        _ => false,
    };
    let [reader] = frame.readers[index][..] else { return false };
    let reader = &frame.graph.nodes()[reader];
    let sampled = reader.op == Op::Sample && reader.inputs[0].node == index as u32;
    let from = node.inputs.first().map(|v| frame.graph.ty(*v).dtype);
    casts
        && sampled
        && frame.uses[index][0] == 1
        && node.types[0].dtype == DType::F32
        && matches!(from, Some(DType::BF16 | DType::F16))
}

/// The shape of a launch.
pub(crate) fn grid(blocks: [usize; 3], threads: u32, shared: usize) -> Shape {
    let grid = blocks.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    Shape { grid, block: threads, shared: shared as u32, overlaps: true }
}
