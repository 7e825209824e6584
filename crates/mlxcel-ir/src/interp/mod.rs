//! The meaning of the primitives, written as plainly as possible: floats in f64, integers in i64, one loop per op.
//! The reference engine and constant folding run on it; engines are compared with it. It never sees a composite.

mod contract;
mod elementwise;
mod group;
mod movement;
mod reduce;

use std::sync::Arc;

pub use group::Group;

use half::{bf16, f16};

use crate::dtype::DType;
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::shape::{Bindings, Dim};
use crate::tensor::HostTensor;

/// A value: f32 and f64 elements are kept in f64 unrounded; narrower floats are rounded to their type after each
/// op; integers wrap to their width. A packed weight holds the numbers it decodes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Data,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Float(Vec<f64>),
    /// Integers and booleans.
    Int(Vec<i64>),
}

/// Why a graph could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    #[error("{op} is not a primitive: decompose the graph first")]
    Composite { op: String },
    #[error("dimension {dim} of {op} is not bound")]
    Unbound { op: String, dim: Dim },
    #[error("{op} needs the other members of a group, and this program runs alone")]
    Alone { op: String },
    #[error("{op}: {reason}")]
    Mismatch { op: String, reason: String },
}

/// What a graph computed: its outputs and the new states, by name.
#[derive(Debug, Clone, Default)]
pub struct Evaluated {
    pub outputs: Vec<(String, Arc<Array>)>,
    pub updates: Vec<(String, Arc<Array>)>,
}

impl Array {
    pub fn from_host(t: &HostTensor) -> Array {
        let data = if t.dtype().is_float() { Data::Float(t.to_f64()) } else { Data::Int(t.to_i64()) };
        Array { dtype: t.dtype(), shape: t.shape().to_vec(), data }
    }

    /// Rounds to the array's type.
    pub fn to_host(&self) -> HostTensor {
        match &self.data {
            Data::Float(v) => HostTensor::from_f64(self.dtype, &self.shape, v),
            Data::Int(v) => match self.dtype {
                DType::I64 => HostTensor::new(&self.shape, v),
                DType::U64 => HostTensor::new(&self.shape, &v.iter().map(|&i| i as u64).collect::<Vec<_>>()),
                d => HostTensor::from_f64(d, &self.shape, &v.iter().map(|&i| i as f64).collect::<Vec<_>>()),
            },
        }
    }

    /// What an exchange gives every member, from the operands of all of them in the order of their ranks.
    pub fn exchanged(op: &Op, parts: &[Array]) -> Option<Array> {
        let (first, rest) = parts.split_first()?;
        match op {
            Op::AllReduce => rest.iter().try_fold(first.clone(), |sum, part| sum.plus(part)),
            Op::AllGather { axis, .. } => {
                let mut shape = first.shape.clone();
                shape[*axis] = parts.iter().map(|p| p.shape[*axis]).sum();
                let parts: Vec<Arc<Array>> = parts.iter().cloned().map(Arc::new).collect();
                Some(movement::concat(&parts, *axis, shape))
            }
            _ => None,
        }
    }

    /// The sum of two arrays of one type; `None` if they are not.
    fn plus(&self, other: &Array) -> Option<Array> {
        let same = self.dtype == other.dtype && self.shape == other.shape;
        match (&self.data, &other.data) {
            (Data::Float(a), Data::Float(b)) if same => {
                let sums = a.iter().zip(b).map(|(a, b)| a + b).collect();
                Some(Array::rounded(self.dtype, self.shape.clone(), sums))
            }
            (Data::Int(a), Data::Int(b)) if same => {
                let sums = a.iter().zip(b).map(|(a, b)| a.wrapping_add(*b)).collect();
                Some(Array::wrapped(self.dtype, self.shape.clone(), sums))
            }
            _ => None,
        }
    }

    pub fn floats(&self) -> &[f64] {
        match &self.data {
            Data::Float(v) => v,
            Data::Int(_) => unreachable!("the verifier admits only floats here, not {}", self.dtype),
        }
    }

    pub fn ints(&self) -> &[i64] {
        match &self.data {
            Data::Int(v) => v,
            Data::Float(_) => unreachable!("the verifier admits only integers here, not {}", self.dtype),
        }
    }

    /// Elements picked by their place in row-major order.
    fn pick(&self, shape: Vec<usize>, places: impl Iterator<Item = usize>) -> Array {
        let data = match &self.data {
            Data::Float(v) => Data::Float(places.map(|i| v[i]).collect()),
            Data::Int(v) => Data::Int(places.map(|i| v[i]).collect()),
        };
        Array { dtype: self.dtype, shape, data }
    }

    fn rounded(dtype: DType, shape: Vec<usize>, mut values: Vec<f64>) -> Array {
        values.iter_mut().for_each(|v| *v = round(dtype, *v));
        Array { dtype, shape, data: Data::Float(values) }
    }

    fn wrapped(dtype: DType, shape: Vec<usize>, mut values: Vec<i64>) -> Array {
        values.iter_mut().for_each(|v| *v = wrap(dtype, *v));
        Array { dtype, shape, data: Data::Int(values) }
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The nearest number of a narrow float type; f32 and f64 stay as they are.
fn round(dtype: DType, v: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(v).to_f64(),
        DType::BF16 => bf16::from_f64(v).to_f64(),
        DType::F8E4M3 | DType::F8E5M2 => HostTensor::from_f64(dtype, &[], &[v]).to_f64()[0],
        _ => v,
    }
}

fn wrap(dtype: DType, v: i64) -> i64 {
    match dtype {
        DType::Bool => (v != 0) as i64,
        DType::U8 => v as u8 as i64,
        DType::U16 => v as u16 as i64,
        DType::U32 => v as u32 as i64,
        DType::I8 => v as i8 as i64,
        DType::I16 => v as i16 as i64,
        DType::I32 => v as i32 as i64,
        _ => v,
    }
}

/// Provides inputs, weights and states.
pub type Leaf<'a> = dyn FnMut(&Node) -> Result<Arc<Array>, EvalError> + 'a;

/// Hands over this member's operand of an exchange and returns the result.
pub type Exchange<'a> = dyn FnMut(&Node, &Array) -> Result<Array, EvalError> + 'a;

/// Evaluates `graph`; `leaf` provides inputs, weights and states.
pub fn run(graph: &Graph, bindings: &Bindings, leaf: &mut Leaf<'_>) -> Result<Evaluated, EvalError> {
    run_in_group(graph, bindings, leaf, &mut |node, _| Err(EvalError::Alone { op: node.op.name() }))
}

/// Evaluates `graph` as one member of a group. Regions do not exchange.
pub fn run_in_group(
    graph: &Graph,
    bindings: &Bindings,
    leaf: &mut Leaf<'_>,
    exchange: &mut Exchange<'_>,
) -> Result<Evaluated, EvalError> {
    let last_use = last_uses(graph);
    let mut values: Vec<Vec<Arc<Array>>> = Vec::with_capacity(graph.nodes().len());
    for (i, node) in graph.nodes().iter().enumerate() {
        let results = if node.op.is_leaf() {
            vec![leaf(node)?]
        } else {
            let operands: Vec<Arc<Array>> =
                node.inputs.iter().map(|v| values[v.node as usize][v.result as usize].clone()).collect();
            match node.op.is_exchange() {
                true => vec![Arc::new(exchange(node, &operands[0])?)],
                false => eval(node, &operands, bindings)?,
            }
        };
        values.push(results);
        for v in &node.inputs {
            if last_use[v.node as usize] == i {
                values[v.node as usize] = vec![];
            }
        }
    }
    let named = |list: &[(String, Value)]| {
        list.iter().map(|(n, v)| (n.clone(), values[v.node as usize][v.result as usize].clone())).collect()
    };
    Ok(Evaluated { outputs: named(graph.outputs()), updates: named(graph.updates()) })
}

/// For each node the index of the last node that reads it; outputs and updates are never released.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last = vec![usize::MAX; graph.nodes().len()];
    for (i, node) in graph.nodes().iter().enumerate() {
        node.inputs.iter().for_each(|v| last[v.node as usize] = i);
    }
    for (_, v) in graph.outputs().iter().chain(graph.updates()) {
        last[v.node as usize] = usize::MAX;
    }
    last
}

/// Evaluates one primitive that is not a leaf.
pub fn eval(node: &Node, x: &[Arc<Array>], bindings: &Bindings) -> Result<Vec<Arc<Array>>, EvalError> {
    let op = &node.op;
    if let Op::If | Op::While { .. } | Op::Scan { .. } = op {
        return control(node, x, bindings);
    }
    if op.is_composite() || op.is_leaf() {
        return Err(EvalError::Composite { op: op.name() });
    }
    if op.is_exchange() {
        return Err(EvalError::Alone { op: op.name() });
    }
    let shapes = node.types.iter().map(|t| {
        let bound = t
            .shape
            .iter()
            .map(|d| d.eval(bindings).ok_or_else(|| EvalError::Unbound { op: op.name(), dim: d.clone() }));
        bound.collect::<Result<Vec<usize>, _>>()
    });
    let mut shapes = shapes.collect::<Result<Vec<_>, _>>()?;
    let shape = shapes.swap_remove(0);
    let dtype = node.types[0].dtype;
    let arrays = match op {
        Op::Constant(t) => vec![Array::from_host(t)],
        Op::Size { dim } => {
            let n =
                dim.eval(bindings).ok_or_else(|| EvalError::Unbound { op: op.name(), dim: dim.clone() })?;
            vec![Array::wrapped(dtype, shape, vec![n as i64])]
        }
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_) | Op::Dequantize { .. } => {
            vec![elementwise::eval(op, x, dtype, shape)]
        }
        Op::Reduce { .. } | Op::Cumulative { .. } | Op::Sort { .. } => reduce::eval(op, &x[0], shape),
        Op::DotGeneral { .. } | Op::Conv { .. } => vec![contract::eval(op, x, dtype, shape)],
        _ => vec![movement::eval(op, x, dtype, shape, bindings)?],
    };
    Ok(arrays.into_iter().map(Arc::new).collect())
}

fn control(node: &Node, x: &[Arc<Array>], bindings: &Bindings) -> Result<Vec<Arc<Array>>, EvalError> {
    let call = |region: &Graph, arguments: &[Arc<Array>]| {
        let mut arguments = arguments.iter().cloned();
        let mut next = |node: &Node| {
            arguments.next().ok_or_else(|| EvalError::Mismatch {
                op: node.op.name(),
                reason: "a region got too few arguments".into(),
            })
        };
        let done = run(region, bindings, &mut next)?;
        Ok::<Vec<Arc<Array>>, EvalError>(done.outputs.into_iter().map(|(_, a)| a).collect())
    };
    match node.op {
        Op::If => call(&node.regions[if x[0].ints()[0] != 0 { 0 } else { 1 }], &x[1..]),
        Op::While { carried } => {
            let mut current = x.to_vec();
            while call(&node.regions[0], &current)?[0].ints()[0] != 0 {
                let next = call(&node.regions[1], &current)?;
                current.splice(..carried, next);
            }
            current.truncate(carried);
            Ok(current)
        }
        Op::Scan { carried, scanned } => {
            let length = x[carried].shape[0];
            let mut state = x[..carried].to_vec();
            let mut stacked: Vec<Vec<Arc<Array>>> = vec![];
            for i in 0..length {
                let mut arguments = state.clone();
                arguments.extend(x[carried..carried + scanned].iter().map(|a| Arc::new(movement::row(a, i))));
                arguments.extend_from_slice(&x[carried + scanned..]);
                let mut results = call(&node.regions[0], &arguments)?;
                stacked.push(results.split_off(carried));
                state = results;
            }
            for (r, t) in node.types[carried..].iter().enumerate() {
                let rows: Vec<&Array> = stacked.iter().map(|s| s[r].as_ref()).collect();
                let empty = || t.shape[1..].iter().map(|d| d.eval(bindings).unwrap_or(0)).collect();
                state.push(Arc::new(movement::stack(&rows, t.dtype, empty)));
            }
            Ok(state)
        }
        _ => unreachable!("only region ops come here"),
    }
}

/// Row-major strides, in elements.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// Calls `f` with every index of `shape`, last axis fastest.
fn each_index(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let Some(axis) = (0..shape.len()).rev().find(|&a| index[a] + 1 < shape[a]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// The places of the elements of a `shape` reached with `strides` from `offset`.
fn places(shape: &[usize], strides: &[usize], offset: usize) -> Vec<usize> {
    let mut out = Vec::with_capacity(shape.iter().product());
    each_index(shape, |i| out.push(offset + i.iter().zip(strides).map(|(a, b)| a * b).sum::<usize>()));
    out
}

/// Strides that repeat `from` over `to` as broadcasting does.
fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let mut out = vec![0; to.len()];
    let skip = to.len() - from.len();
    for (i, s) in strides(from).into_iter().enumerate() {
        out[skip + i] = if from[i] == 1 { 0 } else { s };
    }
    out
}
