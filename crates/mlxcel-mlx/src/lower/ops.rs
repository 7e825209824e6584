//! What each op of the graph becomes. Where MLX has no number type or no empty arrays for an op, the difference is made
//! up here: 8-bit floats are decoded around arithmetic, and a result without elements is made without its operands.

use mlxcel_engine::EngineError;
use mlxcel_ir::{DType, Node, Op, ReduceOp, ScatterMode, Value};

use super::frame::{Frame, Slot, list};
use super::{Instr, Layout};
use crate::NAME;
use crate::handle::dtype_code;

fn real(v: f64) -> i64 {
    v.to_bits() as i64
}

fn maybe_real(v: Option<f64>) -> [i64; 2] {
    [i64::from(v.is_some()), real(v.unwrap_or(0.0))]
}

fn whole(items: &[usize]) -> Vec<i64> {
    list(&items.iter().map(|&i| i as i64).collect::<Vec<_>>())
}

fn pairs(items: &[(usize, usize)]) -> Vec<i64> {
    list(&items.iter().flat_map(|&(a, b)| [a as i64, b as i64]).collect::<Vec<_>>())
}

pub(super) fn is_f8(dtype: DType) -> bool {
    matches!(dtype, DType::F8E4M3 | DType::F8E5M2)
}

/// Ops that move elements without looking at them.
fn moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Select
            | Op::Reshape { .. }
            | Op::Broadcast { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Pad { .. }
            | Op::DynamicSlice { .. }
            | Op::UpdateSlice
            | Op::Gather { .. }
            | Op::TakeAlong { .. }
            | Op::Scatter { mode: ScatterMode::Set }
    )
}

impl<'a> Frame<'a> {
    pub(super) fn op(&mut self, node: &'a Node) -> Result<Vec<Slot>, EngineError> {
        if let Some(empty) = self.empty(node)? {
            return Ok(empty);
        }
        if let Some((activation, other)) = self.gate(node) {
            let Op::Activation(kind) = activation.op else { unreachable!("only activations are gates") };
            let operands = [self.reg(activation.inputs[0]), self.reg(other)];
            return Ok(vec![Slot::Plain(self.one(Instr::Activation, &operands, &[kind as i64]))]);
        }
        if let Some(packed) = self.packed_op(node)? {
            return Ok(packed);
        }
        let decoded = !moves(&node.op) && !matches!(node.op, Op::Cast(_));
        let inputs: Vec<i64> = node.inputs.iter().map(|v| self.operand(*v, decoded)).collect();
        let mut results = self.plain(node, &inputs)?;
        for (r, t) in results.iter_mut().zip(&node.types) {
            if decoded && is_f8(t.dtype) {
                *r = self.encode_f8(*r, t.dtype);
            }
        }
        Ok(results.into_iter().map(Slot::Plain).collect())
    }

    /// The register of an operand, decoded if it is an 8-bit float and the op computes with it.
    fn operand(&mut self, v: Value, decoded: bool) -> i64 {
        let dtype = self.graph.ty(v).dtype;
        let r = self.reg(v);
        if decoded && is_f8(dtype) { self.decode_f8(r, dtype) } else { r }
    }

    fn decode_f8(&mut self, r: i64, dtype: DType) -> i64 {
        self.one(Instr::DecodeF8, &[r], &[i64::from(dtype == DType::F8E5M2)])
    }

    fn encode_f8(&mut self, r: i64, dtype: DType) -> i64 {
        self.one(Instr::EncodeF8, &[r], &[i64::from(dtype == DType::F8E5M2)])
    }

    /// The results, if none has an element, or if there is nothing to sum up.
    fn empty(&mut self, node: &Node) -> Result<Option<Vec<Slot>>, EngineError> {
        if !node.regions.is_empty() {
            return Ok(None);
        }
        let name = node.op.name();
        let shapes = node
            .types
            .iter()
            .map(|t| self.sizes(&t.shape, &name))
            .collect::<Result<Vec<_>, EngineError>>()?;
        let operand = |i: usize| self.sizes(&self.graph.ty(node.inputs[i]).shape, &name);
        let sums = matches!(
            node.op,
            Op::DotGeneral { .. } | Op::Linear { bias: false } | Op::Reduce { op: ReduceOp::Sum, .. }
        );
        let nothing = sums && operand(0)?.contains(&0);
        if !nothing && !shapes.iter().all(|s| s.contains(&0)) {
            return Ok(None);
        }
        let zeros = node.types.iter().zip(&shapes).map(|(t, s)| Slot::Plain(self.zeros(t.dtype, s)));
        Ok(Some(zeros.collect()))
    }

    fn plain(&mut self, node: &'a Node, x: &[i64]) -> Result<Vec<i64>, EngineError> {
        let name = node.op.name();
        let results = node.types.len();
        let simple = |f: &mut Self, instr: Instr, words: &[i64]| Ok(f.emit(instr, x, results, words));
        match &node.op {
            Op::Iota { dtype, shape, axis } => {
                let shape = self.shape_words(shape, &name)?;
                simple(self, Instr::Iota, &[&[dtype_code(*dtype), *axis as i64][..], &shape].concat())
            }
            Op::Size { dim } => {
                let n = self.size(dim, &name)?;
                simple(self, Instr::Integer, &[dtype_code(DType::I32), n])
            }
            Op::Unary(op) => simple(self, Instr::Unary, &[*op as i64]),
            Op::Binary(op) => simple(self, Instr::Binary, &[*op as i64]),
            Op::Compare(op) => simple(self, Instr::Compare, &[*op as i64]),
            Op::Activation(kind) => simple(self, Instr::Activation, &[*kind as i64]),
            Op::Select => simple(self, Instr::Select, &[]),
            Op::Cast(to) => Ok(vec![self.cast(x[0], self.graph.ty(node.inputs[0]).dtype, *to)]),
            Op::Reshape { .. } => {
                let shape = self.shape_words(&node.types[0].shape, &name)?;
                simple(self, Instr::Reshape, &shape)
            }
            Op::Broadcast { .. } => {
                let shape = self.shape_words(&node.types[0].shape, &name)?;
                simple(self, Instr::Broadcast, &shape)
            }
            Op::Transpose { perm } => simple(self, Instr::Transpose, &whole(perm)),
            Op::Slice { axis, start, end, step } => {
                let (start, end) = (self.size(start, &name)?, self.size(end, &name)?);
                simple(self, Instr::Slice, &[*axis as i64, start, end, *step as i64])
            }
            Op::Concat { axis } => simple(self, Instr::Concat, &[*axis as i64]),
            Op::Pad { low, high } => simple(self, Instr::Pad, &[whole(low), whole(high)].concat()),
            Op::DynamicSlice { sizes } => {
                let sizes = self.shape_words(sizes, &name)?;
                simple(self, Instr::DynamicSlice, &sizes)
            }
            Op::UpdateSlice => simple(self, Instr::UpdateSlice, &[]),
            Op::Gather { axis } => simple(self, Instr::Gather, &[*axis as i64]),
            Op::TakeAlong { axis } => simple(self, Instr::TakeAlong, &[*axis as i64]),
            Op::Scatter { mode } => simple(self, Instr::Scatter, &[i64::from(*mode == ScatterMode::Add)]),
            Op::Reduce { op, axes } => {
                simple(self, Instr::Reduce, &[&[*op as i64][..], &whole(axes)].concat())
            }
            Op::Cumulative { op, axis } => simple(self, Instr::Cumulative, &[*op as i64, *axis as i64]),
            Op::Sort { axis, descending } => {
                simple(self, Instr::Sort, &[*axis as i64, i64::from(*descending)])
            }
            Op::ArgMax { axis } => simple(self, Instr::ArgMax, &[*axis as i64]),
            Op::AllReduce => simple(self, Instr::AllReduce, &[]),
            Op::AllGather { axis, .. } => simple(self, Instr::AllGather, &[*axis as i64]),
            _ => self.layer(node, x),
        }
    }

    fn cast(&mut self, r: i64, from: DType, to: DType) -> i64 {
        let wide = if is_f8(from) { self.decode_f8(r, from) } else { r };
        match to {
            _ if from == to => r,
            f8 if is_f8(f8) => self.encode_f8(wide, f8),
            _ => self.one(Instr::Cast, &[wide], &[dtype_code(to)]),
        }
    }

    fn layer(&mut self, node: &'a Node, x: &[i64]) -> Result<Vec<i64>, EngineError> {
        let results = node.types.len();
        let simple = |f: &mut Self, instr: Instr, words: &[i64]| Ok(f.emit(instr, x, results, words));
        match &node.op {
            Op::DotGeneral { batch, contract, dtype } => {
                let words = [pairs(batch), pairs(contract), vec![dtype_code(*dtype)]].concat();
                simple(self, Instr::Dot, &words)
            }
            Op::Conv { strides, padding, dilation, groups } => {
                let side =
                    |f: fn(&(usize, usize)) -> usize| whole(&padding.iter().map(f).collect::<Vec<_>>());
                let words =
                    [whole(strides), side(|p| p.0), side(|p| p.1), whole(dilation), vec![*groups as i64]];
                simple(self, Instr::Conv, &words.concat())
            }
            Op::Linear { bias } => simple(self, Instr::Linear, &[i64::from(*bias)]),
            Op::ExpertLinear { bias } => simple(self, Instr::ExpertLinear, &[i64::from(*bias)]),
            Op::Embedding { dtype } => {
                let rows = self.one(Instr::Gather, &[x[0], x[1]], &[0]);
                Ok(vec![self.one(Instr::Cast, &[rows], &[dtype_code(*dtype)])])
            }
            Op::Dequantize { dtype } => Ok(vec![self.one(Instr::Cast, x, &[dtype_code(*dtype)])]),
            Op::Softmax { axis } => simple(self, Instr::Softmax, &[*axis as i64]),
            Op::RmsNorm { eps, weight } => simple(self, Instr::RmsNorm, &[real(*eps), i64::from(*weight)]),
            Op::AddRmsNorm { eps } => {
                let sum = self.one(Instr::Binary, &x[..2], &[0]);
                let norm = self.one(Instr::RmsNorm, &[sum, x[2]], &[real(*eps), 1]);
                Ok(vec![sum, norm])
            }
            Op::LayerNorm { eps, weight, bias } => {
                simple(self, Instr::LayerNorm, &[real(*eps), i64::from(*weight), i64::from(*bias)])
            }
            Op::Rope { interleaved, scale } => {
                simple(self, Instr::Rope, &[i64::from(*interleaved), real(*scale)])
            }
            Op::Attention(a) => {
                let [has_cap, cap] = maybe_real(a.softcap);
                let window = a.window.unwrap_or(0) as i64;
                let words = [real(a.scale), i64::from(a.causal), window, has_cap, cap];
                let flags = [i64::from(a.mask), i64::from(a.sinks)];
                simple(self, Instr::Attention, &[&words[..], &flags].concat())
            }
            Op::PagedAttention(p) => {
                let [has_cap, cap] = maybe_real(p.softcap);
                let (window, value_dim) = (p.window.unwrap_or(0) as i64, p.value_dim.unwrap_or(0) as i64);
                let words =
                    [real(p.scale), window, has_cap, cap, i64::from(p.sinks), value_dim, self.layout()];
                simple(self, Instr::PagedAttention, &words)
            }
            Op::Sample => simple(self, Instr::Sample, &[i64::from(self.step.greedy)]),
            Op::SelectiveScan => simple(self, Instr::SelectiveScan, &[self.layout()]),
            Op::CausalConv => simple(self, Instr::CausalConv, &[self.layout()]),
            Op::Fft { inverse } => simple(self, Instr::Fft, &[i64::from(*inverse)]),
            Op::Rfft => simple(self, Instr::Rfft, &[]),
            Op::Irfft { n } => simple(self, Instr::Irfft, &[*n as i64]),
            Op::If | Op::While { .. } | Op::Scan { .. } => self.control(node, x),
            other => Err(unsupported(self, other, node)),
        }
    }

    fn layout(&self) -> i64 {
        match self.step.layout {
            Layout::Ragged => 0,
            Layout::Decode => 1,
            Layout::One => 2,
        }
    }

    fn control(&mut self, node: &'a Node, x: &[i64]) -> Result<Vec<i64>, EngineError> {
        let (blocks, constants) = self.regions(&node.regions)?;
        let inputs = [x, &constants].concat();
        let (instr, words) = match &node.op {
            Op::If => (Instr::Branch, vec![]),
            Op::While { carried } => (Instr::Loop, vec![*carried as i64]),
            Op::Scan { carried, scanned } => {
                let mut words = vec![*carried as i64, *scanned as i64];
                for t in &node.types[*carried..] {
                    words.push(dtype_code(t.dtype));
                    words.extend(self.shape_words(&t.shape, "scan")?);
                }
                (Instr::Scan, words)
            }
            other => unreachable!("{} has no regions", other.name()),
        };
        Ok(self.emit_with_blocks(instr, &inputs, node.types.len(), &words, &blocks))
    }
}

pub(super) fn unsupported(frame: &Frame<'_>, op: &Op, node: &Node) -> EngineError {
    let operands = node.inputs.iter().map(|v| frame.graph.ty(*v).to_string()).collect::<Vec<_>>();
    EngineError::Unsupported { engine: NAME, op: op.name(), operands: operands.join(", ") }
}
