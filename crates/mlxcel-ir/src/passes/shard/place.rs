//! How values lie on the members, and how one is brought into the form that an op needs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Choices, Cut, Member};
use crate::dtype::DType;
use crate::error::IrError;
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::shape::{Dim, Shape, product};

/// What a member has of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// All of it.
    Whole,
    /// A part along an axis: the axis is made of segments of these sizes, and a member has its share of each.
    Split { axis: usize, segments: Vec<usize> },
    /// Something to be added to what the others have.
    Partial,
}

/// A value of the old graph in the new one.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) place: Place,
    /// Leaves have none until somebody needs them, whole or cut.
    pub(super) value: Option<Value>,
    /// The layers from which a cut came.
    pub(super) origins: BTreeSet<u32>,
}

/// An op could not have its operands as it needs them.
#[derive(Debug)]
pub(super) struct Conflict {
    pub(super) node: u32,
    pub(super) origins: BTreeSet<u32>,
    /// Whether putting the operand together would help.
    pub(super) needs_whole: bool,
    pub(super) reason: String,
}

#[derive(Debug)]
pub(super) enum Stop {
    Conflict(Conflict),
    Graph(IrError),
}

impl From<IrError> for Stop {
    fn from(error: IrError) -> Self {
        Stop::Graph(error)
    }
}

pub(super) type Fallible<T> = Result<T, Stop>;

/// A conflict; where and whose it is, [`Pass::run`] adds.
pub(super) fn conflict<T>(reason: impl Into<String>) -> Fallible<T> {
    let origins = BTreeSet::new();
    Err(Stop::Conflict(Conflict { node: 0, origins, needs_whole: false, reason: reason.into() }))
}

pub(super) struct Pass<'g> {
    pub(super) source: &'g Graph,
    pub(super) member: Member,
    pub(super) choices: &'g Choices,
    pub(super) out: Graph,
    pub(super) cuts: BTreeMap<String, Cut>,
    pub(super) placed: Vec<Vec<Placed>>,
    /// Nodes that depend on weights and constants only.
    pub(super) is_fixed: Vec<bool>,
    /// Who reads each node.
    pub(super) users: Vec<Vec<u32>>,
    local: BTreeMap<(Value, usize, Vec<usize>), Value>,
}

impl<'g> Pass<'g> {
    pub(super) fn new(source: &'g Graph, member: Member, choices: &'g Choices) -> Self {
        let mut users = vec![vec![]; source.nodes().len()];
        let mut is_fixed: Vec<bool> = vec![];
        for (i, node) in source.nodes().iter().enumerate() {
            node.inputs.iter().for_each(|v| users[v.node as usize].push(i as u32));
            let made = node.inputs.iter().all(|v| is_fixed[v.node as usize]) && node.regions.is_empty();
            is_fixed.push(made && !matches!(node.op, Op::Input { .. } | Op::State { .. } | Op::Size { .. }));
        }
        let (out, cuts, placed, local) = (Graph::default(), BTreeMap::new(), vec![], BTreeMap::new());
        Pass { source, member, choices, out, cuts, placed, is_fixed, users, local }
    }

    /// Goes through the whole graph.
    pub(super) fn run(&mut self) -> Fallible<()> {
        for (index, node) in self.source.nodes().iter().enumerate() {
            let index = index as u32;
            let placed = self.node(index, node).map_err(|stop| self.blame(index, node, stop))?;
            self.placed.push(placed);
        }
        for (name, v) in self.source.outputs() {
            let value = self.whole(*v).map_err(|stop| self.blame_value(*v, stop))?;
            self.out.add_output(name, value)?;
        }
        for (name, v) in self.source.updates() {
            let value = match self.at(*v).place {
                Place::Split { .. } => self.at(*v).value.expect("only whole leaves have no value"),
                _ => self.whole(*v)?,
            };
            self.out.add_update(name, value)?;
        }
        Ok(())
    }

    /// Says where a conflict is and which layers led to it.
    fn blame(&self, index: u32, node: &Node, stop: Stop) -> Stop {
        let Stop::Conflict(mut c) = stop else { return stop };
        c.node = index;
        c.origins = node.inputs.iter().flat_map(|v| self.at(*v).origins.iter().copied()).collect();
        Stop::Conflict(c)
    }

    fn blame_value(&self, v: Value, stop: Stop) -> Stop {
        let Stop::Conflict(mut c) = stop else { return stop };
        (c.node, c.origins) = (v.node, self.at(v).origins.clone());
        Stop::Conflict(c)
    }

    pub(super) fn at(&self, v: Value) -> &Placed {
        &self.placed[v.node as usize][v.result as usize]
    }

    pub(super) fn push(&mut self, op: Op, inputs: Vec<Value>, label: &str) -> Fallible<Value> {
        let node = self.out.push(op, inputs, vec![], label)?;
        Ok(Value { node, result: 0 })
    }

    /// The value as every member has it.
    pub(super) fn whole(&mut self, v: Value) -> Fallible<Value> {
        let Placed { place, value, origins } = self.at(v).clone();
        let made = match (place, value) {
            (Place::Whole, Some(value)) => return Ok(value),
            (Place::Whole, None) => {
                let node = self.source.node(v);
                self.push(node.op.clone(), vec![], &node.label)?
            }
            (Place::Partial, value) => {
                let value = value.expect("only whole leaves have no value");
                self.push(Op::AllReduce, vec![value], &self.source.node(v).label)?
            }
            (Place::Split { axis, segments }, value) => {
                let known = origins.iter().all(|o| self.choices.gathered.contains(o));
                if !known || origins.is_empty() || segments.len() != 1 {
                    let reason = format!("the whole of {} is needed", self.source.ty(v));
                    let Err(Stop::Conflict(mut c)) = conflict::<Value>(reason) else { unreachable!() };
                    c.needs_whole = true;
                    return Err(Stop::Conflict(c));
                }
                let value = value.expect("only whole leaves have no value");
                let op = Op::AllGather { axis, members: self.member.members };
                self.push(op, vec![value], &self.source.node(v).label)?
            }
        };
        let placed = &mut self.placed[v.node as usize][v.result as usize];
        *placed = Placed { place: Place::Whole, value: Some(made), origins: BTreeSet::new() };
        Ok(made)
    }

    /// The member's part of the value along an axis.
    pub(super) fn split(&mut self, v: Value, axis: usize, segments: &[usize]) -> Fallible<Value> {
        let Placed { place, value, .. } = self.at(v).clone();
        match place {
            Place::Split { axis: a, segments: s } if a == axis && s == segments => {
                Ok(value.expect("only whole leaves have no value"))
            }
            Place::Split { .. } => conflict(format!("{} is cut in two ways", self.source.ty(v))),
            Place::Partial => {
                self.whole(v)?;
                self.local(v, axis, segments)
            }
            Place::Whole => self.local(v, axis, segments),
        }
    }

    /// The parts of segments that are this member's, in places of the whole axis.
    pub(super) fn ranges(&self, segments: &[usize]) -> Fallible<Vec<Range<usize>>> {
        let Member { rank, members } = self.member;
        let mut start = 0;
        let mut ranges = vec![];
        for &size in segments {
            if size % members != 0 {
                return conflict(format!("{size} is not a multiple of {members}"));
            }
            let share = size / members;
            ranges.push(start + rank * share..start + (rank + 1) * share);
            start += size;
        }
        Ok(ranges)
    }

    /// The shape with an axis as long as a member's part of it.
    pub(super) fn local_shape(&self, shape: &Shape, axis: usize) -> Shape {
        let mut shape = shape.clone();
        let size = shape[axis].as_fixed().expect("only fixed axes are cut");
        shape[axis] = Dim::fixed(size / self.member.members);
        shape
    }

    /// A part of what is whole: of a weight and of what is made of it at load, the rest is not even read.
    fn local(&mut self, v: Value, axis: usize, segments: &[usize]) -> Fallible<Value> {
        let key = (v, axis, segments.to_vec());
        if let Some(&known) = self.local.get(&key) {
            return Ok(known);
        }
        let ranges = self.ranges(segments)?;
        let node = self.source.node(v);
        let made = match &node.op {
            Op::State { name, dtype, shape } => {
                let shape = self.local_shape(shape, axis);
                let op = Op::State { name: name.clone(), dtype: *dtype, shape };
                self.push(op, vec![], &node.label)?
            }
            Op::Weight { .. } => match self.cut_weight(node, axis, &ranges)? {
                Some(op) => self.push(op, vec![], &node.label)?,
                None => self.slices(v, axis, ranges)?,
            },
            _ if self.is_fixed[v.node as usize] => match self.made_of(node, axis, segments)? {
                Some((op, inputs)) => self.push(op, inputs, &node.label)?,
                None => self.slices(v, axis, ranges)?,
            },
            _ => self.slices(v, axis, ranges)?,
        };
        self.local.insert(key, made);
        Ok(made)
    }

    /// Cuts a value that every member has.
    fn slices(&mut self, v: Value, axis: usize, ranges: Vec<Range<usize>>) -> Fallible<Value> {
        let ty = self.source.ty(v);
        if ty.dtype.is_quant() {
            return conflict(format!("the packed {ty} cannot be cut"));
        }
        let value = self.whole(v)?;
        let label = self.source.node(v).label.clone();
        let mut parts = vec![];
        for r in ranges {
            let op = Op::Slice { axis, start: Dim::fixed(r.start), end: Dim::fixed(r.end), step: 1 };
            parts.push(self.push(op, vec![value], &label)?);
        }
        if parts.len() == 1 { Ok(parts[0]) } else { self.push(Op::Concat { axis }, parts, &label) }
    }

    /// The op of a part of something computed from weights, and its operands; `None` if it is computed whole and cut.
    fn made_of(
        &mut self,
        node: &Node,
        axis: usize,
        segments: &[usize],
    ) -> Fallible<Option<(Op, Vec<Value>)>> {
        let Some(&x) = node.inputs.first().filter(|_| node.inputs.len() == 1) else { return Ok(None) };
        let from = self.source.ty(x).shape.clone();
        let part = match &node.op {
            op @ (Op::Unary(_) | Op::Cast(_) | Op::Activation(_) | Op::Dequantize { .. }) => {
                (op.clone(), axis)
            }
            op @ Op::Transpose { perm } => (op.clone(), perm[axis]),
            op @ Op::Slice { axis: cut, .. } if *cut != axis => (op.clone(), axis),
            Op::Reshape { shape } if segments.len() == 1 => {
                match follow(shape, axis, &from, self.member.members) {
                    Some(origin) => (Op::Reshape { shape: self.local_shape(shape, axis) }, origin),
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        let (op, origin) = part;
        let size = from[origin].as_fixed();
        let segments = match size {
            Some(size) if segments.len() == 1 => vec![size],
            _ => segments.to_vec(),
        };
        Ok(Some((op, vec![self.split(x, origin, &segments)?])))
    }

    /// A weight of the member's part alone; `None` if its pieces cannot be cut there.
    fn cut_weight(&mut self, node: &Node, axis: usize, ranges: &[Range<usize>]) -> Fallible<Option<Op>> {
        let Op::Weight { name, dtype, shape, pieces } = &node.op else {
            unreachable!("the caller has looked")
        };
        let fixed: Option<Vec<usize>> = shape.iter().map(Dim::as_fixed).collect();
        let Some(fixed) = fixed else { return Ok(None) };
        check_blocks(*dtype, axis + 1 == fixed.len(), ranges)?;
        let count = fixed[0] / pieces.len().max(1);
        if count * pieces.len() != fixed[0] {
            return Ok(None);
        }
        let text: Vec<String> = ranges.iter().map(|r| format!("{}..{}", r.start, r.end)).collect();
        let suffix = format!(" [{axis}: {}]", text.join(", "));
        let kept = if axis == 0 && pieces.len() > 1 {
            let Some(kept) = whole_pieces(pieces, count, ranges) else { return Ok(None) };
            kept
        } else {
            let mut piece_shape = fixed.clone();
            piece_shape[0] = count;
            let cut = |tensor: &String| Cut {
                tensor: tensor.clone(),
                shape: piece_shape.clone(),
                axis,
                ranges: ranges.to_vec(),
                is_zero: false,
            };
            self.cuts.extend(pieces.iter().map(|p| (format!("{p}{suffix}"), cut(p))));
            pieces.iter().map(|p| format!("{p}{suffix}")).collect()
        };
        let shape = self.local_shape(shape, axis);
        Ok(Some(Op::Weight { name: format!("{name}{suffix}"), dtype: *dtype, shape, pieces: kept }))
    }

    /// A term that only the first member adds.
    pub(super) fn once(&mut self, v: Value) -> Fallible<Value> {
        let node = self.source.node(v);
        let Op::Weight { name, dtype, shape, pieces } = &node.op else {
            return conflict("a bias that is computed cannot be added by one member only");
        };
        if self.member.rank == 0 {
            return self.whole(v);
        }
        let fixed: Option<Vec<usize>> = shape.iter().map(Dim::as_fixed).collect();
        let Some(mut fixed) = fixed.filter(|s| !pieces.is_empty() && s[0] % pieces.len() == 0) else {
            return conflict("the bias is not made of equal pieces");
        };
        fixed[0] /= pieces.len();
        let all = 0..fixed[0];
        let zero = |tensor: &String| Cut {
            tensor: tensor.clone(),
            shape: fixed.clone(),
            axis: 0,
            ranges: vec![all.clone()],
            is_zero: true,
        };
        let zeros: Vec<(String, Cut)> = pieces.iter().map(|p| (format!("{p} [zero]"), zero(p))).collect();
        let names = zeros.iter().map(|(n, _)| n.clone()).collect();
        self.cuts.extend(zeros);
        let op =
            Op::Weight { name: format!("{name} [zero]"), dtype: *dtype, shape: shape.clone(), pieces: names };
        self.push(op, vec![], &node.label)
    }
}

/// Packed rows are cut between blocks only.
fn check_blocks(dtype: DType, is_last: bool, ranges: &[Range<usize>]) -> Fallible<()> {
    let DType::Quant(format) = dtype else { return Ok(()) };
    let block = format.block_len();
    let odd = ranges.iter().find(|r| r.start % block != 0 || r.end % block != 0);
    match odd.filter(|_| is_last) {
        Some(r) => conflict(format!("{}..{} is not made of whole blocks of {block}", r.start, r.end)),
        None => Ok(()),
    }
}

/// The pieces that ranges of the first axis are made of, where they end with pieces.
fn whole_pieces(pieces: &[String], count: usize, ranges: &[Range<usize>]) -> Option<Vec<String>> {
    let aligned = ranges.iter().all(|r| r.start % count == 0 && r.end % count == 0);
    let kept = ranges.iter().flat_map(|r| &pieces[r.start / count..r.end / count]);
    aligned.then(|| kept.cloned().collect())
}

/// Whether a layer or op may begin a cut.
pub(super) fn begins(op: &Op) -> bool {
    use Op::*;
    matches!(op, Linear { .. } | ExpertLinear { .. } | PagedAttention(_) | SelectiveScan | CausalConv)
}

/// The axis of `to` along which the parts of `from` along `axis` lie, for a reshape of one to the other.
pub(super) fn follow(from: &[Dim], axis: usize, to: &[Dim], members: usize) -> Option<usize> {
    let before = product(&from[..axis]);
    let even = |d: &Dim| d.as_fixed().is_some_and(|n| n > 0 && n % members == 0);
    (0..to.len()).find(|&j| even(&to[j]) && product(&to[..j]) == before).filter(|_| even(&from[axis]))
}
