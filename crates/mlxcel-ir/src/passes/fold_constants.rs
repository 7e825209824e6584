//! Evaluates what depends on constants only, and removes ops that change nothing. Results above [`BYTES_MAX`] stay
//! ops, as do counting and repeating: a constant in their place would only be larger. Loops are not run.

use std::collections::HashMap;

use super::identities::{Simpler, simpler};
use super::{Rebuild, each_region};
use crate::cost::flops;
use crate::error::IrError;
use crate::graph::{Graph, Node, Value};
use crate::interp::{EvalError, run};
use crate::op::Op;
use crate::shape::Bindings;
use crate::tensor::HostTensor;

/// The largest constant that folding makes.
pub const BYTES_MAX: usize = 1 << 20;
/// The most that folding spends on a node, in operations and bytes of intermediate results.
const WORK_MAX: u64 = 1 << 26;

/// The graph with constant subgraphs evaluated. What they were made of is left for the removal of dead code.
pub fn fold_constants(graph: &Graph) -> Result<Graph, IrError> {
    let mut folder = Folder { r: Rebuild::new(graph), known: HashMap::new(), inlined: false };
    for index in 0..graph.nodes().len() {
        folder.node(index)?;
    }
    let inlined = folder.inlined;
    let folded = folder.r.finish()?;
    // A branch that was chosen may hold constants that its captures now complete.
    if inlined { fold_constants(&folded) } else { Ok(folded) }
}

struct Folder<'g> {
    r: Rebuild<'g>,
    /// Values of the new graph that are constant, whether they are stored or computed there.
    known: HashMap<Value, HostTensor>,
    inlined: bool,
}

impl Folder<'_> {
    fn node(&mut self, index: usize) -> Result<(), IrError> {
        let node = &self.r.source.nodes()[index];
        let inputs = self.r.operands(node);
        if let Some(region) = self.chosen(node, &inputs) {
            let results = self.r.out.inline(region, &inputs[1..])?;
            self.inlined = true;
            self.r.set(index, results);
            return Ok(());
        }
        match simpler(&self.r.out, node, &inputs, |v| self.known.get(&v)) {
            Some(Simpler::Same(v)) => {
                self.r.set(index, vec![v]);
                return Ok(());
            }
            Some(Simpler::Op(op, inputs)) => return self.emit(index, Node { op, inputs, ..node.clone() }),
            None => {}
        }
        let regions =
            if node.op == Op::Fused { node.regions.clone() } else { each_region(node, fold_constants)? };
        self.emit(index, Node { inputs, regions, ..node.clone() })
    }

    /// The region of an `if` whose condition is constant.
    fn chosen<'n>(&self, node: &'n Node, inputs: &[Value]) -> Option<&'n Graph> {
        if node.op != Op::If {
            return None;
        }
        let condition = self.known.get(&inputs[0])?.to_vec::<bool>()?;
        node.regions.get(if *condition.first()? { 0 } else { 1 })
    }

    /// Adds a node whose operands are of the new graph, or the constants it evaluates to.
    fn emit(&mut self, index: usize, node: Node) -> Result<(), IrError> {
        let constants = self.evaluate(&node);
        let stored = constants.is_some() && !matches!(node.op, Op::Constant(_)) && !self.is_cheap(&node);
        let results = match &constants {
            Some(tensors) if stored => {
                let mut results = vec![];
                for t in tensors {
                    let new = self.r.out.push(Op::Constant(t.clone()), vec![], vec![], &node.label)?;
                    results.extend(self.r.out.results(new));
                }
                results
            }
            _ => {
                let new = self.r.out.push(node.op, node.inputs, node.regions, &node.label)?;
                self.r.out.results(new)
            }
        };
        self.known.extend(results.iter().copied().zip(constants.into_iter().flatten()));
        self.r.set(index, results);
        Ok(())
    }

    /// Counting and repeating, and moving the results of these, cost less than the memory of a constant.
    fn is_cheap(&self, node: &Node) -> bool {
        match node.op {
            Op::Iota { .. } | Op::Broadcast { .. } => true,
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } => {
                !matches!(self.r.out.node(node.inputs[0]).op, Op::Constant(_))
            }
            _ => false,
        }
    }

    /// The results of a node, if its operands are constant and its results are small.
    fn evaluate(&self, node: &Node) -> Option<Vec<HostTensor>> {
        if let Op::Constant(t) = &node.op {
            return Some(vec![t.clone()]);
        }
        if node.op.is_leaf() || (!node.regions.is_empty() && node.op != Op::Fused) {
            return None;
        }
        let none = Bindings::new();
        let small = |t: &crate::Type| t.bytes(&none).is_some_and(|b| (1..=BYTES_MAX as u64).contains(&b));
        let operands: Vec<&HostTensor> =
            node.inputs.iter().map(|v| self.known.get(v)).collect::<Option<_>>()?;
        if !node.types.iter().all(small) || operands.iter().any(|t| t.is_empty()) {
            return None;
        }
        let mut alone = Graph::default();
        let mut inputs = vec![];
        for t in operands {
            let constant = alone.push(Op::Constant(t.clone()), vec![], vec![], "").ok()?;
            inputs.extend(alone.results(constant));
        }
        let index = alone.push(node.op.clone(), inputs, node.regions.clone(), "").ok()?;
        for (i, v) in alone.results(index).into_iter().enumerate() {
            alone.add_output(&i.to_string(), v).ok()?;
        }
        let primitive = crate::decompose(&alone, &|_, _| false).ok()?;
        affordable(&primitive)?;
        let mut no_leaf = |n: &Node| Err(EvalError::Composite { op: n.op.name() });
        let done = run(&primitive, &none, &mut no_leaf).ok()?;
        Some(done.outputs.iter().map(|(_, a)| a.to_host()).collect())
    }
}

/// `None` if evaluating the primitives would take too much time or memory.
fn affordable(graph: &Graph) -> Option<()> {
    let mut total = 0u64;
    for (i, node) in graph.nodes().iter().enumerate() {
        total = total.checked_add(flops(graph, i as u32, &Bindings::new())?)?;
        for t in &node.types {
            total = total.checked_add(t.bytes(&Bindings::new())?)?;
        }
    }
    (total <= WORK_MAX).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::dead_code;
    use crate::passes::testing::{ops, same_results};
    use crate::{Builder, DType, ReduceOp, Tensor, shape};

    fn folded(g: &Graph) -> Graph {
        let out = dead_code(&fold_constants(g).unwrap()).unwrap();
        assert_eq!(out.verify(), Ok(()));
        same_results(g, &out);
        out
    }

    /// The ops left of `body` applied to `x: f64[tokens, 4]`, without the input.
    fn left(body: impl for<'g> Fn(&'g Builder, Tensor<'g>) -> Tensor<'g>) -> Vec<String> {
        let b = Builder::new();
        let x = b.input("x", DType::F64, shape!["tokens", 4]);
        b.output("y", body(&b, x));
        ops(&folded(&b.finish().unwrap()))[1..].to_vec()
    }

    fn constant<'g>(b: &'g Builder, values: [f64; 4]) -> Tensor<'g> {
        b.constant(HostTensor::from_f64(DType::F64, &[4], &values))
    }

    #[test]
    fn what_depends_on_constants_only_is_evaluated() {
        let b = Builder::new();
        let c = constant(&b, [1.0, 2.0, 3.0, 4.0]);
        b.output("y", c.reduce(ReduceOp::Sum, &[0]) * c.softmax(0).reduce(ReduceOp::Max, &[0]).sqrt());
        b.output("order", c.top_k(2)[1]);
        let g = folded(&b.finish().unwrap());
        assert_eq!(ops(&g), ["constant", "constant"]);
        let Op::Constant(order) = &g.nodes()[1].op else { panic!("not a constant") };
        assert_eq!(order.to_vec::<i32>().unwrap(), [3, 2]);
    }

    #[test]
    fn sizes_are_constant_when_they_are_fixed() {
        assert_eq!(left(|b, x| x * b.size(&x.dim(1)).cast(DType::F64)), ["constant", "binary"]);
        assert_eq!(left(|b, x| x * b.size(&x.dim(0)).cast(DType::F64)), ["size", "cast", "binary"]);
    }

    #[test]
    fn counting_and_repeating_stay_ops_unless_something_is_computed_with_them() {
        assert_eq!(
            left(|b, x| x * b.iota(DType::F64, shape![2, 4], 1).slice(0, 0, 1)),
            ["iota", "slice", "binary"]
        );
        assert_eq!(left(|b, x| x * b.iota(DType::F64, shape![4], 0).exp()), ["constant", "binary"]);
        let repeated = left(|b, x| x.reduce(ReduceOp::Sum, &[0]) * b.scalar(2.0).broadcast(shape![4]));
        assert_eq!(repeated, ["reduce", "constant", "broadcast", "binary"]);
    }

    #[test]
    fn results_above_a_mebibyte_stay_ops() {
        let wide = |n: usize| {
            left(move |b, x| {
                let all = b.iota(DType::F64, shape![n], 0).exp();
                x * all.slice(0, 0, 4)
            })
        };
        assert_eq!(wide(BYTES_MAX / 8), ["constant", "binary"]);
        assert_eq!(wide(BYTES_MAX / 8 + 1), ["iota", "unary", "slice", "binary"]);
    }

    #[test]
    fn ops_that_change_nothing_are_removed() {
        assert!(left(|_, x| (x * 1.0) / 1.0 - 0.0).is_empty());
        assert!(left(|b, x| constant(b, [1.0; 4]) * x + -0.0).is_empty());
        assert!(left(|_, x| x.transpose(&[1, 0]).transpose(&[1, 0]).slice(1, 0, 4)).is_empty());
        assert!(left(|_, x| x.unsqueeze(0).unsqueeze(0).reshape(x.shape())).is_empty());
        assert!(left(|b, x| b.scalar(true).select(b.concat(&[x], 1), x * 2.0)).is_empty());
        assert!(left(|_, x| x.pad(&[0, 0], &[0, 0], x.number(0.0)).transpose(&[0, 1])).is_empty());
        let twice = left(|_, x| x.unsqueeze(2).transpose(&[1, 0, 2]).transpose(&[2, 1, 0]));
        assert_eq!(twice, ["reshape", "transpose"]);
    }

    #[test]
    fn ops_that_may_change_a_bit_stay() {
        assert_eq!(left(|_, x| x + 0.0), ["constant", "binary"]);
        assert_eq!(left(|_, x| x - -0.0), ["constant", "binary"]);
        assert_eq!(left(|b, x| x * constant(b, [1.0, 1.0, 1.0, 1.5])), ["constant", "binary"]);
        assert_eq!(left(|_, x| x.slice(1, 0, 3)), ["slice"]);
        assert_eq!(left(|_, x| x.cast(DType::F16).cast(DType::F64)), ["cast", "cast"]);
        // The product has more rows than the operand.
        let grown = left(|b, x| x.reduce(ReduceOp::Sum, &[0]) * b.scalar(1.0).broadcast(shape![2, 4]));
        assert_eq!(grown, ["reduce", "constant", "broadcast", "binary"]);
    }

    #[test]
    fn a_branch_with_a_constant_condition_is_taken_and_its_captures_folded() {
        let taken = left(|b, x| {
            let (condition, two) = (b.scalar(2.0).gt(b.scalar(3.0)), b.scalar(2.0));
            b.if_else(condition, &[x, two], |_, x| vec![x[0]], |_, x| vec![x[0] * x[1].sqrt()])[0]
        });
        assert_eq!(taken, ["constant", "binary"]);
    }

    #[test]
    fn loops_are_not_run() {
        let b = Builder::new();
        let start = b.scalar(1.0f64);
        let y = b.while_loop(
            &[start],
            &[],
            |_, x| x[0].lt(x[0].number(9.0)),
            |_, x| vec![x[0] * (x[0] * 0.0 + 2.0)],
        );
        b.output("y", y[0]);
        assert_eq!(ops(&folded(&b.finish().unwrap())), ["constant", "while"]);
    }
}
