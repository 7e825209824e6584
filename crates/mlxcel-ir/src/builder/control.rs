//! `if`, `while` and `scan`. A region is built by a closure that gets a builder of its own and its arguments;
//! tensors of the outer graph enter as captures.

use super::{Builder, Tensor};
use crate::graph::Graph;
use crate::op::Op;
use crate::shape::Type;

impl Builder {
    /// Builds a region with arguments of the given types.
    pub(crate) fn region(
        types: &[Type],
        body: impl for<'r> FnOnce(&'r Builder, &[Tensor<'r>]) -> Vec<Tensor<'r>>,
    ) -> Result<Graph, crate::IrError> {
        let b = Builder::new();
        let declare = |(i, t): (usize, &Type)| b.input(&format!("arg{i}"), t.dtype, t.shape.clone());
        let arguments: Vec<Tensor<'_>> = types.iter().enumerate().map(declare).collect();
        for (i, t) in body(&b, &arguments).into_iter().enumerate() {
            b.output(&format!("out{i}"), t);
        }
        b.finish()
    }

    fn region_op<'g>(
        &'g self,
        op: Op,
        inputs: &[Tensor<'g>],
        regions: Vec<Result<Graph, crate::IrError>>,
    ) -> Vec<Tensor<'g>> {
        match regions.into_iter().collect() {
            Ok(regions) => self.apply_regions(op, inputs, regions),
            Err(e) => {
                let (node, label) = self.next_node();
                self.fail(crate::IrError::Region { op: op.name(), node, label, source: Box::new(e) });
                vec![]
            }
        }
    }

    /// `then` or `other`, both over the captures.
    pub fn if_else<'g>(
        &'g self,
        condition: Tensor<'g>,
        captures: &[Tensor<'g>],
        then: impl for<'r> FnOnce(&'r Builder, &[Tensor<'r>]) -> Vec<Tensor<'r>>,
        other: impl for<'r> FnOnce(&'r Builder, &[Tensor<'r>]) -> Vec<Tensor<'r>>,
    ) -> Vec<Tensor<'g>> {
        let types: Vec<Type> = captures.iter().map(|t| t.ty()).collect();
        let inputs = [&[condition], captures].concat();
        self.region_op(Op::If, &inputs, vec![Self::region(&types, then), Self::region(&types, other)])
    }

    /// Repeats `body` on the carried values while `condition` holds; both also get the captures.
    pub fn while_loop<'g>(
        &'g self,
        carried: &[Tensor<'g>],
        captures: &[Tensor<'g>],
        condition: impl for<'r> FnOnce(&'r Builder, &[Tensor<'r>]) -> Tensor<'r>,
        body: impl for<'r> FnOnce(&'r Builder, &[Tensor<'r>]) -> Vec<Tensor<'r>>,
    ) -> Vec<Tensor<'g>> {
        let inputs = [carried, captures].concat();
        let types: Vec<Type> = inputs.iter().map(|t| t.ty()).collect();
        let condition = Self::region(&types, |b, x| vec![condition(b, x)]);
        self.region_op(
            Op::While { carried: carried.len() },
            &inputs,
            vec![condition, Self::region(&types, body)],
        )
    }

    /// Runs `body` along the first axis of `scanned`: it maps carried, one slice of each scanned, and captures to
    /// carried and outputs. Results are the last carried values and the stacked outputs.
    pub fn scan<'g>(
        &'g self,
        carried: &[Tensor<'g>],
        scanned: &[Tensor<'g>],
        captures: &[Tensor<'g>],
        body: impl for<'r> FnOnce(&'r Builder, &[Tensor<'r>]) -> Vec<Tensor<'r>>,
    ) -> Vec<Tensor<'g>> {
        let slice = |t: &Tensor<'g>| {
            let ty = t.ty();
            ty.with_shape(ty.shape.get(1..).unwrap_or_default().to_vec())
        };
        let mut types: Vec<Type> = carried.iter().map(|t| t.ty()).collect();
        types.extend(scanned.iter().map(slice));
        types.extend(captures.iter().map(|t| t.ty()));
        let op = Op::Scan { carried: carried.len(), scanned: scanned.len() };
        self.region_op(op, &[carried, scanned, captures].concat(), vec![Self::region(&types, body)])
    }
}
