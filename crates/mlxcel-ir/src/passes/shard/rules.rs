//! What each op needs of its operands, and how its results then lie.

use std::collections::BTreeSet;

use super::place::{Fallible, Pass, Place, Placed, conflict, follow};
use crate::graph::{Node, Value};
use crate::op::{BinaryOp, Op, PagedSpec, ReduceOp};
use crate::shape::Dim;

/// A cut: its axis and the segments it goes through.
type Split = (usize, Vec<usize>);

impl Pass<'_> {
    /// Appends a node and says how its results lie.
    pub(super) fn node(&mut self, index: u32, node: &Node) -> Fallible<Vec<Placed>> {
        if node.op.is_leaf() {
            let value = match node.op {
                Op::Input { .. } => Some(self.push(node.op.clone(), vec![], &node.label)?),
                _ => None,
            };
            return Ok(vec![Placed { place: Place::Whole, value, origins: BTreeSet::new() }]);
        }
        match &node.op {
            Op::Linear { bias } => self.linear(index, node, *bias),
            Op::ExpertLinear { bias } => self.experts(index, node, *bias),
            Op::PagedAttention(spec) => self.paged(index, node, spec),
            Op::SelectiveScan => {
                self.channels(index, node, &[Some(1), Some(1), Some(0), None, None, Some(0)])
            }
            Op::CausalConv => self.channels(index, node, &[Some(1), Some(0), Some(0)]),
            _ if node.inputs.iter().all(|v| self.at(*v).place == Place::Whole) => self.all_whole(node),
            _ => self.follows(node),
        }
    }

    /// Ops that go on as their operands lie.
    fn follows(&mut self, node: &Node) -> Fallible<Vec<Placed>> {
        match &node.op {
            Op::Binary(_) if self.keeps_sum(node) => self.sums(node),
            Op::Reduce { op: ReduceOp::Sum, .. } | Op::Reshape { .. } | Op::Transpose { .. }
                if self.at(node.inputs[0]).place == Place::Partial =>
            {
                self.sums(node)
            }
            op if op.is_elementwise() => self.elementwise(node),
            Op::Reshape { .. } | Op::Broadcast { .. } | Op::Transpose { .. } | Op::Slice { .. } => {
                self.moves(node)
            }
            Op::Concat { axis } => self.concat(node, *axis),
            Op::Gather { axis } => self.gather(node, *axis),
            Op::Reduce { op, axes } => self.reduce(node, *op, axes),
            Op::RmsNorm { .. } | Op::LayerNorm { .. } => {
                let last = self.source.ty(node.inputs[0]).rank() - 1;
                self.along(node, last)
            }
            Op::Softmax { axis } => self.along(node, *axis),
            Op::Rope { .. } => self.along(node, 2),
            Op::Attention(spec) => self.dense(node, (spec.mask, spec.sinks)),
            Op::DotGeneral { batch, contract, .. } => self.dot(node, batch, contract),
            _ => self.all_whole(node),
        }
    }

    /// Everything on every member.
    fn all_whole(&mut self, node: &Node) -> Fallible<Vec<Placed>> {
        let inputs = node.inputs.iter().map(|v| self.whole(*v)).collect::<Result<Vec<_>, _>>()?;
        self.emit(node, node.op.clone(), inputs, &[])
    }

    /// Appends a node; results beyond `places` are whole.
    fn emit(&mut self, node: &Node, op: Op, inputs: Vec<Value>, places: &[Place]) -> Fallible<Vec<Placed>> {
        let index = self.out.push(op, inputs, node.regions.clone(), &node.label)?;
        let origins: BTreeSet<u32> =
            node.inputs.iter().flat_map(|v| self.at(*v).origins.iter().copied()).collect();
        let placed = self.out.results(index).into_iter().enumerate().map(|(i, value)| {
            let place = places.get(i).cloned().unwrap_or(Place::Whole);
            let origins = if let Place::Split { .. } = place { origins.clone() } else { BTreeSet::new() };
            Placed { place, value: Some(value), origins }
        });
        Ok(placed.collect())
    }

    /// The same for an op that begins a cut.
    fn begin(
        &mut self,
        (index, node): (u32, &Node),
        inputs: Vec<Value>,
        places: &[Place],
    ) -> Fallible<Vec<Placed>> {
        let mut placed = self.emit(node, node.op.clone(), inputs, places)?;
        for p in placed.iter_mut().filter(|p| matches!(p.place, Place::Split { .. })) {
            p.origins.insert(index);
        }
        Ok(placed)
    }

    fn split_of(&self, v: Value) -> Option<Split> {
        match &self.at(v).place {
            Place::Split { axis, segments } => Some((*axis, segments.clone())),
            _ => None,
        }
    }

    fn size(&self, v: Value, axis: usize) -> Fallible<usize> {
        match self.source.ty(v).shape[axis].as_fixed() {
            Some(n) => Ok(n),
            None => conflict(format!("axis {axis} of {} is not fixed", self.source.ty(v))),
        }
    }

    /// By its inputs where those are cut, else by its outputs.
    fn linear(&mut self, index: u32, node: &Node, bias: bool) -> Fallible<Vec<Placed>> {
        let (x, w) = (node.inputs[0], node.inputs[1]);
        let last = self.source.ty(x).rank() - 1;
        if let Some((axis, segments)) = self.split_of(x).filter(|(axis, _)| *axis == last) {
            let mut inputs = vec![self.split(x, axis, &segments)?, self.split(w, 1, &segments)?];
            if bias {
                inputs.push(self.once(node.inputs[2])?);
            }
            return self.emit(node, node.op.clone(), inputs, &[Place::Partial]);
        }
        let x = self.whole(x)?;
        if self.choices.whole.contains(&index) {
            return self.all_whole(node);
        }
        let segments = self.segments(index, node, self.size(w, 0)?);
        let mut inputs = vec![x, self.split(w, 0, &segments)?];
        if bias {
            inputs.push(self.split(node.inputs[2], 0, &segments)?);
        }
        self.begin((index, node), inputs, &[Place::Split { axis: last, segments }])
    }

    /// Every expert by its inputs or its outputs, so that all members work on every token.
    fn experts(&mut self, index: u32, node: &Node, bias: bool) -> Fallible<Vec<Placed>> {
        let [x, w, ids] = [0, 1, 2].map(|i| node.inputs[i]);
        if let Some((axis, segments)) = self.split_of(x).filter(|(axis, _)| *axis == 2) {
            let mut inputs = vec![self.split(x, axis, &segments)?, self.split(w, 2, &segments)?];
            inputs.push(self.whole(ids)?);
            if bias {
                inputs.push(self.once(node.inputs[3])?);
            }
            return self.emit(node, node.op.clone(), inputs, &[Place::Partial]);
        }
        let x = self.whole(x)?;
        if self.choices.whole.contains(&index) {
            return self.all_whole(node);
        }
        let segments = self.segments(index, node, self.size(w, 1)?);
        let mut inputs = vec![x, self.split(w, 1, &segments)?, self.whole(ids)?];
        if bias {
            inputs.push(self.split(node.inputs[3], 1, &segments)?);
        }
        self.begin((index, node), inputs, &[Place::Split { axis: 2, segments }])
    }

    /// The outputs of a joined layer are cut where others slice them.
    fn segments(&self, index: u32, node: &Node, size: usize) -> Vec<usize> {
        let last = node.types[0].rank() - 1;
        let mut ends = BTreeSet::from([0, size]);
        for &user in &self.users[index as usize] {
            let user = &self.source.nodes()[user as usize].op;
            if let Op::Slice { axis, start, end, step: 1 } = user
                && *axis == last
            {
                ends.extend([start, end].into_iter().filter_map(Dim::as_fixed));
            }
        }
        let ends: Vec<usize> = ends.into_iter().collect();
        ends.windows(2).map(|w| w[1] - w[0]).collect()
    }

    /// By heads. A single head of keys is everybody's.
    fn paged(&mut self, index: u32, node: &Node, spec: &PagedSpec) -> Fallible<Vec<Placed>> {
        if self.choices.whole.contains(&index) {
            return self.all_whole(node);
        }
        let (q, k) = (node.inputs[0], node.inputs[1]);
        let (heads, kv_heads) = (self.size(q, 1)?, self.size(k, 1)?);
        if kv_heads != 1 && kv_heads % self.member.members != 0 {
            return conflict(format!("it has {kv_heads} heads of keys"));
        }
        if heads % self.member.members != 0 {
            return conflict(format!("it has {heads} heads"));
        }
        let per_token = if spec.value_dim.is_some() { 2 } else { 3 };
        let caches = per_token..2 * per_token - 1;
        let mut inputs = vec![self.split(q, 1, &[heads])?];
        for (i, &v) in node.inputs.iter().enumerate().skip(1) {
            let is_sinks = spec.sinks && i + 1 == node.inputs.len();
            inputs.push(match i {
                _ if is_sinks => self.split(v, 0, &[heads])?,
                _ if kv_heads == 1 => self.whole(v)?,
                i if i < per_token => self.split(v, 1, &[kv_heads])?,
                i if caches.contains(&i) => self.split(v, 2, &[kv_heads])?,
                _ => self.whole(v)?,
            });
        }
        let cut = |axis: usize, size: usize| Place::Split { axis, segments: vec![size] };
        let cache = if kv_heads == 1 { Place::Whole } else { cut(2, kv_heads) };
        self.begin((index, node), inputs, &[cut(1, heads), cache.clone(), cache])
    }

    /// Recurrences by channels: `axes` says where each operand has them; the state, behind those, in its second axis.
    fn channels(&mut self, index: u32, node: &Node, axes: &[Option<usize>]) -> Fallible<Vec<Placed>> {
        if self.choices.whole.contains(&index) {
            return self.all_whole(node);
        }
        let count = self.size(node.inputs[0], 1)?;
        let mut inputs = vec![];
        for (i, &v) in node.inputs.iter().enumerate() {
            let axis = if i == axes.len() { Some(1) } else { axes.get(i).copied().flatten() };
            inputs.push(match axis {
                Some(axis) => self.split(v, axis, &[count])?,
                None => self.whole(v)?,
            });
        }
        let place = Place::Split { axis: 1, segments: vec![count] };
        self.begin((index, node), inputs, &[place.clone(), place])
    }

    /// Whether parts of a sum stay parts of the sum of what comes out.
    fn keeps_sum(&self, node: &Node) -> bool {
        let place = |i: usize| &self.at(node.inputs[i]).place;
        match &node.op {
            Op::Binary(BinaryOp::Add | BinaryOp::Sub) => {
                *place(0) == Place::Partial && *place(1) == Place::Partial
            }
            Op::Binary(BinaryOp::Mul) => {
                matches!(
                    (place(0), place(1)),
                    (Place::Partial, Place::Whole) | (Place::Whole, Place::Partial)
                )
            }
            Op::Binary(BinaryOp::Div) => *place(0) == Place::Partial && *place(1) == Place::Whole,
            _ => false,
        }
    }

    /// Copies a node that takes parts of sums as they are.
    fn sums(&mut self, node: &Node) -> Fallible<Vec<Placed>> {
        let mut inputs = vec![];
        for &v in &node.inputs {
            inputs.push(match (&self.at(v).place, self.at(v).value) {
                (Place::Partial, Some(value)) => value,
                _ => self.whole(v)?,
            });
        }
        self.emit(node, node.op.clone(), inputs, &[Place::Partial])
    }

    fn elementwise(&mut self, node: &Node) -> Fallible<Vec<Placed>> {
        let rank = node.types[0].rank();
        let shift = |v: Value| rank - self.source.ty(v).rank();
        let mut splits = node.inputs.iter().filter_map(|&v| {
            let (axis, segments) = self.split_of(v)?;
            Some((axis + shift(v), segments))
        });
        let Some((axis, segments)) = splits.next() else { return self.all_whole(node) };
        let mut inputs = vec![];
        for &v in &node.inputs {
            let own = axis.checked_sub(rank - self.source.ty(v).rank());
            let is_long = |a: &usize| self.source.ty(v).shape[*a] != Dim::fixed(1);
            inputs.push(match own.filter(is_long) {
                Some(own) => self.split(v, own, &segments)?,
                None => self.whole(v)?,
            });
        }
        self.emit(node, node.op.clone(), inputs, &[Place::Split { axis, segments }])
    }

    fn moves(&mut self, node: &Node) -> Fallible<Vec<Placed>> {
        let v = node.inputs[0];
        let Some((axis, segments)) = self.split_of(v) else { return self.all_whole(node) };
        let from = self.source.ty(v).shape.clone();
        let (op, axis, segments) = match &node.op {
            Op::Reshape { shape } => {
                let Some(to) = follow(&from, axis, shape, self.member.members) else {
                    return conflict(format!("{from:?} cut along axis {axis} is not a part of {shape:?}"));
                };
                let size = shape[to].as_fixed().expect("follow finds fixed axes");
                let keeps = from[axis] == shape[to];
                if !keeps && segments.len() > 1 {
                    return conflict("an axis of several segments is split up");
                }
                let segments = if keeps { segments } else { vec![size] };
                (Op::Reshape { shape: self.local_shape(shape, to) }, to, segments)
            }
            Op::Broadcast { shape } => {
                let to = axis + shape.len() - from.len();
                (Op::Broadcast { shape: self.local_shape(shape, to) }, to, segments)
            }
            Op::Transpose { perm } => {
                let to = perm.iter().position(|&p| p == axis).expect("a permutation has every axis");
                (node.op.clone(), to, segments)
            }
            Op::Slice { axis: cut, .. } if *cut != axis => (node.op.clone(), axis, segments),
            Op::Slice { start, end, step, .. } => {
                let bounds = (start.as_fixed(), end.as_fixed());
                let (op, segments) = self.slice(axis, &segments, bounds, *step)?;
                (op, axis, segments)
            }
            other => unreachable!("{} is no movement", other.name()),
        };
        let value = self.at(v).value.expect("only whole leaves have no value");
        self.emit(node, op, vec![value], &[Place::Split { axis, segments }])
    }

    /// A slice of a cut axis: of whole segments, or every so many elements of all of it.
    fn slice(
        &self,
        axis: usize,
        segments: &[usize],
        bounds: (Option<usize>, Option<usize>),
        step: usize,
    ) -> Fallible<(Op, Vec<usize>)> {
        let members = self.member.members;
        let (Some(start), Some(end)) = bounds else { return conflict("its bounds are not fixed") };
        let make = |start: usize, end: usize| Op::Slice {
            axis,
            start: Dim::fixed(start),
            end: Dim::fixed(end),
            step,
        };
        if step > 1 {
            let [size] = segments else { return conflict("a stepped slice goes over segments") };
            if start >= step || end != *size || !(size / members).is_multiple_of(step) {
                return conflict(format!("steps of {step} do not fit the parts of {size}"));
            }
            return Ok((make(start, size / members), vec![size / step]));
        }
        let mut begins = vec![0];
        segments.iter().for_each(|s| begins.push(begins.last().copied().unwrap_or(0) + s));
        let at = |place: usize| begins.iter().position(|&b| b == place);
        let (Some(first), Some(last)) = (at(start), at(end)) else {
            return conflict(format!("{start}..{end} does not end with segments of {segments:?}"));
        };
        Ok((make(start / members, end / members), segments[first..last].to_vec()))
    }

    fn concat(&mut self, node: &Node, axis: usize) -> Fallible<Vec<Placed>> {
        let splits: Vec<Split> = node.inputs.iter().filter_map(|v| self.split_of(*v)).collect();
        let Some((cut, segments)) = splits.first().cloned() else { return self.all_whole(node) };
        let (mut inputs, mut joined) = (vec![], vec![]);
        for &v in &node.inputs {
            let own = match self.split_of(v) {
                _ if cut != axis => segments.clone(),
                Some((_, own)) => own,
                None => vec![self.size(v, axis)?],
            };
            inputs.push(self.split(v, cut, &own)?);
            joined.extend(own);
        }
        let segments = if cut == axis { joined } else { segments };
        self.emit(node, node.op.clone(), inputs, &[Place::Split { axis: cut, segments }])
    }

    fn gather(&mut self, node: &Node, axis: usize) -> Fallible<Vec<Placed>> {
        let (x, index) = (node.inputs[0], node.inputs[1]);
        let rank = self.source.ty(index).rank();
        match self.split_of(x) {
            Some((cut, segments)) if cut != axis => {
                let inputs = vec![self.split(x, cut, &segments)?, self.whole(index)?];
                let axis = if cut > axis { cut + rank - 1 } else { cut };
                self.emit(node, node.op.clone(), inputs, &[Place::Split { axis, segments }])
            }
            _ => self.all_whole(node),
        }
    }

    fn reduce(&mut self, node: &Node, op: ReduceOp, axes: &[usize]) -> Fallible<Vec<Placed>> {
        let x = node.inputs[0];
        let Some((axis, segments)) = self.split_of(x) else { return self.all_whole(node) };
        let value = self.split(x, axis, &segments)?;
        let place = match (axes.contains(&axis), op) {
            (false, _) => {
                let axis = axis - axes.iter().filter(|a| **a < axis).count();
                Place::Split { axis, segments }
            }
            (true, ReduceOp::Sum) => Place::Partial,
            (true, _) => return self.all_whole(node),
        };
        self.emit(node, node.op.clone(), vec![value], &[place])
    }

    /// Ops that work along one axis of their first operand, which must then not be cut.
    fn along(&mut self, node: &Node, worked: usize) -> Fallible<Vec<Placed>> {
        let x = node.inputs[0];
        let Some((axis, segments)) = self.split_of(x).filter(|(a, _)| *a != worked && *a != 0) else {
            return self.all_whole(node);
        };
        let mut inputs = vec![self.split(x, axis, &segments)?];
        for &v in &node.inputs[1..] {
            inputs.push(self.whole(v)?);
        }
        self.emit(node, node.op.clone(), inputs, &[Place::Split { axis, segments }])
    }

    /// Dense attention by heads.
    fn dense(&mut self, node: &Node, (mask, sinks): (bool, bool)) -> Fallible<Vec<Placed>> {
        let (heads, kv_heads) = (self.size(node.inputs[0], 2)?, self.size(node.inputs[1], 2)?);
        let mut inputs = vec![self.split(node.inputs[0], 2, &[heads])?];
        for &v in &node.inputs[1..3] {
            inputs.push(if kv_heads == 1 { self.whole(v)? } else { self.split(v, 2, &[kv_heads])? });
        }
        if mask {
            let v = node.inputs[3];
            let shape = &self.source.ty(v).shape;
            let own = shape.len().checked_sub(3).filter(|a| shape[*a] != Dim::fixed(1));
            inputs.push(match own {
                Some(axis) => self.split(v, axis, &[heads])?,
                None => self.whole(v)?,
            });
        }
        if sinks {
            inputs.push(self.split(node.inputs[3 + usize::from(mask)], 0, &[heads])?);
        }
        self.emit(node, node.op.clone(), inputs, &[Place::Split { axis: 2, segments: vec![heads] }])
    }

    /// Contractions: along a batch axis or a free one the result is cut, along a contracted one it is a part of a sum.
    fn dot(
        &mut self,
        node: &Node,
        batch: &[(usize, usize)],
        contract: &[(usize, usize)],
    ) -> Fallible<Vec<Placed>> {
        let [a, b] = [node.inputs[0], node.inputs[1]];
        let pick = |pair: &(usize, usize), side: usize| if side == 0 { pair.0 } else { pair.1 };
        let cut = [a, b].iter().enumerate().find_map(|(side, v)| Some((side, self.split_of(*v)?)));
        let Some((side, (axis, segments))) = cut else { return self.all_whole(node) };
        let (own, other) = if side == 0 { (a, b) } else { (b, a) };
        let mine = self.split(own, axis, &segments)?;
        let paired = |pairs: &[(usize, usize)]| pairs.iter().position(|p| pick(p, side) == axis);
        let (theirs, place) = if let Some(i) = paired(batch) {
            let theirs = self.split(other, pick(&batch[i], 1 - side), &segments)?;
            (theirs, Place::Split { axis: i, segments })
        } else if let Some(i) = paired(contract) {
            (self.split(other, pick(&contract[i], 1 - side), &segments)?, Place::Partial)
        } else {
            let used = |side: usize, a: usize| batch.iter().chain(contract).any(|p| pick(p, side) == a);
            let free = |side: usize, end: usize| (0..end).filter(|a| !used(side, *a)).count();
            let before = if side == 0 { 0 } else { free(0, self.source.ty(a).rank()) };
            let axis = batch.len() + before + free(side, axis);
            (self.whole(other)?, Place::Split { axis, segments })
        };
        let inputs = if side == 0 { vec![mine, theirs] } else { vec![theirs, mine] };
        self.emit(node, node.op.clone(), inputs, &[place])
    }
}
