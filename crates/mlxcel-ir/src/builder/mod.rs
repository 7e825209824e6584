//! Building graphs in Rust that reads like Python. A [`Tensor`] is a `Copy` handle; ops never fail where they are
//! written: the builder records the first error, later ops do nothing, and [`Builder::finish`] returns it.

mod composite;
mod control;
mod primitive;

pub use composite::{PagedBatch, SampleParams};

use std::cell::RefCell;

use crate::dtype::DType;
use crate::error::IrError;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::shape::{Dim, Shape, Type};
use crate::tensor::{Element, HostTensor};

/// Collects nodes. Regions have builders of their own.
#[derive(Debug, Default)]
pub struct Builder {
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    graph: Graph,
    scope: Vec<String>,
    error: Option<IrError>,
}

/// A value of the graph under construction.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    builder: &'g Builder,
    value: Value,
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "%{}.{}", self.value.node, self.value.result)
    }
}

impl Builder {
    pub fn new() -> Self {
        Self::default()
    }

    /// The finished graph, or the first error.
    pub fn finish(self) -> Result<Graph, IrError> {
        let inner = self.inner.into_inner();
        inner.error.map_or(Ok(inner.graph), Err)
    }

    /// Names what `body` builds, for messages and plans: labels are joined with dots.
    pub fn scope<T>(&self, name: &str, body: impl FnOnce() -> T) -> T {
        self.inner.borrow_mut().scope.push(name.to_string());
        let result = body();
        self.inner.borrow_mut().scope.pop();
        result
    }

    /// Appends any op; the typed methods are sugar over this.
    pub fn apply<'g>(&'g self, op: Op, inputs: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
        self.apply_regions(op, inputs, vec![])
    }

    pub(crate) fn apply_regions<'g>(
        &'g self,
        op: Op,
        inputs: &[Tensor<'g>],
        regions: Vec<Graph>,
    ) -> Vec<Tensor<'g>> {
        let mut inner = self.inner.borrow_mut();
        if inner.error.is_some() {
            return vec![];
        }
        if inputs.iter().any(|t| !std::ptr::eq(t.builder, self)) {
            inner.error = Some(IrError::ForeignTensor { op: op.name() });
            return vec![];
        }
        let label = inner.scope.join(".");
        let values = inputs.iter().map(|t| t.value).collect();
        match inner.graph.push(op, values, regions, &label) {
            Ok(node) => {
                inner.graph.results(node).into_iter().map(|value| Tensor { builder: self, value }).collect()
            }
            Err(e) => {
                inner.error = Some(e);
                vec![]
            }
        }
    }

    /// The only result of an op; a placeholder once an error is recorded.
    pub(crate) fn one<'g>(&'g self, op: Op, inputs: &[Tensor<'g>]) -> Tensor<'g> {
        self.results::<1>(op, inputs)[0]
    }

    pub(crate) fn results<'g, const N: usize>(&'g self, op: Op, inputs: &[Tensor<'g>]) -> [Tensor<'g>; N] {
        let results = self.apply(op, inputs);
        results.try_into().unwrap_or([self.placeholder(); N])
    }

    /// Stands for results after an error; never reaches a finished graph.
    pub(crate) fn placeholder(&self) -> Tensor<'_> {
        Tensor { builder: self, value: Value { node: u32::MAX, result: 0 } }
    }

    /// Runs `edit` on the graph unless an error is recorded, and records what it returns.
    pub(crate) fn edit<T>(&self, edit: impl FnOnce(&mut Graph) -> Result<T, IrError>) -> Option<T> {
        let mut inner = self.inner.borrow_mut();
        if inner.error.is_some() {
            return None;
        }
        match edit(&mut inner.graph) {
            Ok(t) => Some(t),
            Err(e) => {
                inner.error = Some(e);
                None
            }
        }
    }

    /// The number and the label that the next node gets.
    fn next_node(&self) -> (u32, String) {
        let inner = self.inner.borrow();
        (inner.graph.nodes().len() as u32, inner.scope.join("."))
    }

    /// Records an error found by the caller, such as a decomposition that does not apply.
    pub fn fail(&self, error: IrError) {
        self.inner.borrow_mut().error.get_or_insert(error);
    }

    pub fn input(&self, name: &str, dtype: DType, shape: Shape) -> Tensor<'_> {
        self.input_padded(name, dtype, shape, 0)
    }

    /// An input whose padding, where an engine pads, is not zero.
    pub fn input_padded(&self, name: &str, dtype: DType, shape: Shape, pad: i64) -> Tensor<'_> {
        self.one(Op::Input { name: name.to_string(), dtype, shape, pad }, &[])
    }

    pub fn weight(&self, name: &str, dtype: DType, shape: &[usize]) -> Tensor<'_> {
        self.weight_pieces(name, dtype, shape, vec![name.to_string()])
    }

    /// A weight made of several checkpoint tensors, end to end along the first axis.
    pub fn weight_pieces(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        pieces: Vec<String>,
    ) -> Tensor<'_> {
        let shape = shape.iter().map(|&d| Dim::fixed(d)).collect();
        self.one(Op::Weight { name: name.to_string(), dtype, shape, pieces }, &[])
    }

    pub fn state(&self, name: &str, dtype: DType, shape: Shape) -> Tensor<'_> {
        self.one(Op::State { name: name.to_string(), dtype, shape }, &[])
    }

    pub fn constant(&self, t: HostTensor) -> Tensor<'_> {
        self.one(Op::Constant(t), &[])
    }

    pub fn scalar<T: Element>(&self, v: T) -> Tensor<'_> {
        self.constant(HostTensor::scalar(v))
    }

    /// A scalar of a type known only at run time.
    pub fn scalar_of(&self, dtype: DType, v: f64) -> Tensor<'_> {
        self.constant(HostTensor::from_f64(dtype, &[], &[v]))
    }

    pub fn iota(&self, dtype: DType, shape: Shape, axis: usize) -> Tensor<'_> {
        self.one(Op::Iota { dtype, shape, axis }, &[])
    }

    pub fn size(&self, dim: &Dim) -> Tensor<'_> {
        self.one(Op::Size { dim: dim.clone() }, &[])
    }

    pub fn concat<'g>(&'g self, parts: &[Tensor<'g>], axis: usize) -> Tensor<'g> {
        self.one(Op::Concat { axis }, parts)
    }

    /// Names a result of the graph.
    pub fn output(&self, name: &str, t: Tensor<'_>) {
        self.edit(|g| g.add_output(name, t.value));
    }

    /// Declares what a state becomes.
    pub fn update(&self, state: &str, t: Tensor<'_>) {
        self.edit(|g| g.add_update(state, t.value));
    }
}

impl<'g> Tensor<'g> {
    pub fn builder(self) -> &'g Builder {
        self.builder
    }

    pub fn value(self) -> Value {
        self.value
    }

    /// The type; `f32[]` once an error is recorded.
    pub fn ty(self) -> Type {
        let inner = self.builder.inner.borrow();
        match inner.graph.nodes().get(self.value.node as usize) {
            Some(n) => n.types[self.value.result as usize].clone(),
            None => Type::new(DType::F32, vec![]),
        }
    }

    pub fn dtype(self) -> DType {
        self.ty().dtype
    }

    pub fn shape(self) -> Shape {
        self.ty().shape
    }

    pub fn rank(self) -> usize {
        self.ty().rank()
    }

    /// Dimension `axis`; 1 if there is no such axis, which the next op will report.
    pub fn dim(self, axis: usize) -> Dim {
        self.ty().shape.get(axis).cloned().unwrap_or_else(|| Dim::fixed(1))
    }
}
