//! Finding norms of sums that only one product reads: what it multiplies is made as it wants to read it, while sums and
//! norms are still near.

use mlxcel_ir::{DType, Graph, Op, Value};

use super::Leaves;
use super::feeds::{Block, is_linear};

/// A norm that is computed in the step of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    /// Its node.
    pub(super) node: usize,
    pub(super) eps: f32,
    /// The node whose step it is part of: the product, or the last of a block that begins with it.
    pub(super) within: usize,
}

/// All of them among the nodes that are needed; `ends` are read, too.
pub(super) fn find(
    graph: &Graph,
    leaves: &Leaves,
    (needed, blocks): (&[bool], &[Block]),
    ends: impl Iterator<Item = Value>,
) -> Vec<Norm> {
    let nodes = graph.nodes();
    let all = (0..nodes.len()).filter(|&i| needed[i]);
    let mut readers: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    for i in all.clone() {
        nodes[i].inputs.iter().for_each(|v| readers[v.node as usize].push(i));
    }
    ends.for_each(|v| readers[v.node as usize].push(usize::MAX));
    let norm = |node: usize| {
        let Op::AddRmsNorm { eps } = nodes[node].op else { return None };
        let reads = |reader: &usize, result: u16| {
            let inputs = nodes.get(*reader).map(|n| &n.inputs[..]);
            inputs.is_none_or(|inputs| inputs.contains(&Value { node: node as u32, result }))
        };
        let of_norm: Vec<usize> = readers[node].iter().copied().filter(|r| reads(r, 1)).collect();
        let &[product] = &of_norm[..] else { return None };
        let product_node = nodes.get(product)?;
        let block = blocks.iter().find(|block| block.first == product);
        let within = block.map_or(product, |block| block.last);
        // The sum is there when the step is done, and not before.
        let is_late = readers[node].iter().all(|&r| r == product || r > within);
        let fits = is_linear(leaves, product_node) && nodes[node].types[0].dtype == DType::F32;
        (fits && is_late).then_some(Norm { node, eps: eps as f32, within })
    };
    all.filter_map(norm).collect()
}

#[cfg(test)]
mod tests {
    use mlxcel_ir::{Builder, Tensor, shape};

    use super::super::{Kernel, build};
    use super::*;

    /// How many norms are steps, and how many are part of one.
    fn counts(graph: impl for<'g> Fn(&'g Builder, [Tensor<'g>; 2], Tensor<'g>)) -> (usize, usize) {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 8]);
        let (norm, w) = (b.weight("norm", DType::F32, &[8]), b.weight("w", DType::F32, &[8, 8]));
        let sum = x + x.exp();
        graph(&b, [sum, sum.rms_norm(1e-6, Some(norm))], w);
        let graph = mlxcel_ir::passes::optimize(&b.finish().unwrap()).unwrap();
        let wanted: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let weights = graph.weights().enumerate().map(|(i, (node, _))| (node, i)).collect();
        let plan = build(&graph, &Leaves { weights, ..Leaves::default() }, &wanted).unwrap();
        let steps = plan.steps.iter().filter(|s| matches!(s.op, Op::AddRmsNorm { .. })).count();
        let parts = plan.steps.iter().filter(|s| match &s.kernel {
            Kernel::Rows(multiplied) | Kernel::Feed(_, multiplied) => multiplied.norm.is_some(),
            _ => false,
        });
        (steps, parts.count())
    }

    #[test]
    fn a_product_computes_the_norm_that_it_alone_reads() {
        let one = counts(|b, [sum, normed], w| b.output("y", normed.linear(w, None) + sum));
        assert_eq!(one, (0, 1));
    }

    #[test]
    fn norms_that_others_read_and_sums_that_are_read_before_are_steps() {
        let read = counts(|b, [_, normed], w| {
            b.output("y", normed.linear(w, None));
            b.output("normed", normed);
        });
        let twice = counts(|b, [_, normed], w| {
            b.output("y", normed.linear(w, None) + normed.exp());
        });
        let early = counts(|b, [sum, normed], w| {
            let exp = sum.exp();
            b.output("y", normed.linear(w, Some(b.weight("bias", DType::F32, &[8]))) + exp);
        });
        let not_multiplied = counts(|b, [_, normed], _| b.output("y", normed.exp()));
        assert_eq!([read, twice, early, not_multiplied], [(1, 0); 4]);
    }
}
