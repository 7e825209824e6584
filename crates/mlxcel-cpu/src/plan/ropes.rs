//! Finding rotations that only the cached attention reads: queries are rotated when it reads them, and keys when it stores them, so that
//! neither are written before.

use mlxcel_ir::{DType, Graph, Op, Value};

use super::Leaves;

/// A rotation that is part of attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absorbed {
    /// Its node.
    pub(super) rope: usize,
    pub(super) attention: usize,
    /// Whether it is of the queries, 0, or of the keys, 1.
    pub(super) operand: usize,
}

/// All of them among the nodes that are needed, by how often each node is read.
pub(super) fn find(graph: &Graph, leaves: &Leaves, needed: &[bool], readers: &[usize]) -> Vec<Absorbed> {
    let nodes = graph.nodes();
    let is_absorbed = |v: Value| {
        let (node, at) = (&nodes[v.node as usize], v.node as usize);
        // What is not `f32` is rounded when it is written.
        matches!(node.op, Op::Rope { .. })
            && readers[at] == 1
            && !leaves.weights.contains_key(&v.node)
            && [v, node.inputs[0]].iter().all(|v| graph.ty(*v).dtype == DType::F32)
    };
    let mut found = vec![];
    for (attention, node) in nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
        if let Op::PagedAttention(_) = node.op {
            let rotated = (0..2).filter(|&operand| is_absorbed(node.inputs[operand]));
            found.extend(rotated.map(|operand| Absorbed {
                rope: node.inputs[operand].node as usize,
                attention,
                operand,
            }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use mlxcel_ir::step::StepInputs;
    use mlxcel_ir::{Builder, PagedSpec, shape};

    use super::super::{Kernel, build};
    use super::*;

    /// How many rotations are steps, and how many are part of attention.
    fn counts(dtype: DType, is_read: bool) -> (usize, usize) {
        let b = Builder::new();
        let inputs = StepInputs::declare(&b);
        let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, dtype, shape!["tokens", 2, 8]));
        let frequencies = b.input("f", DType::F32, shape![4]);
        let [q, k] = [q, k]
            .map(|x| x.rope(inputs.positions, frequencies, Op::Rope { interleaved: false, scale: 1.0 }));
        let spec = PagedSpec { scale: 0.5, window: None, softcap: None, sinks: false, value_dim: None };
        b.output("y", b.paged_attention((q, k, Some(v)), inputs.paged(), None, 0, spec));
        if is_read {
            b.output("k", k);
        }
        let graph = b.finish().unwrap();
        let wanted: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let mut leaves = Leaves::default();
        for (i, (name, _)) in graph.updates().iter().enumerate() {
            leaves.states.insert(name.clone(), i);
        }
        let plan = build(&graph, &leaves, &wanted).unwrap();
        let steps = plan.steps.iter().filter(|s| matches!(s.kernel, Kernel::Rope(_))).count();
        let parts = plan.steps.iter().map(|s| match &s.kernel {
            Kernel::Paged { ropes, .. } => ropes.iter().flatten().count(),
            _ => 0,
        });
        (steps, parts.sum())
    }

    #[test]
    fn attention_rotates_what_nobody_else_reads() {
        assert_eq!(counts(DType::F32, false), (0, 2));
        assert_eq!(counts(DType::F32, true), (1, 1));
        assert_eq!(counts(DType::BF16, false), (2, 0));
    }
}
