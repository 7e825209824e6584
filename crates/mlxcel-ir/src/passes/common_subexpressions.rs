//! Computes once what is written several times: nodes with the same op, operands and regions. Constants compare by
//! their bytes, so −0 stays apart from 0. Inputs never merge: those of a region go by position.

use std::collections::HashMap;

use super::{Rebuild, each_region};
use crate::error::IrError;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::tensor::HostTensor;

/// What nodes must share to compute the same; regions are compared on top of it.
#[derive(PartialEq, Eq, Hash)]
enum Key<'g> {
    Constant(&'g HostTensor),
    Op { json: String, inputs: Vec<Value> },
}

/// The graph with equal nodes merged into the first of them.
pub fn common_subexpressions(graph: &Graph) -> Result<Graph, IrError> {
    let mut r = Rebuild::new(graph);
    let mut seen: HashMap<Key<'_>, Vec<u32>> = HashMap::new();
    for (i, node) in graph.nodes().iter().enumerate() {
        let regions = each_region(node, common_subexpressions)?;
        let key = match &node.op {
            Op::Input { .. } => {
                r.copy(i, regions)?;
                continue;
            }
            Op::Constant(t) => Key::Constant(t),
            op => Key::Op { json: op.to_json().to_string(), inputs: r.operands(node) },
        };
        let candidates = seen.entry(key).or_default();
        match candidates.iter().find(|&&c| r.out.nodes()[c as usize].regions == regions) {
            Some(&same) => {
                let results = r.out.results(same);
                r.set(i, results);
            }
            None => {
                candidates.push(r.out.nodes().len() as u32);
                r.copy(i, regions)?;
            }
        }
    }
    r.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{ops, same_results};
    use crate::{Builder, DType, shape};

    #[test]
    fn equal_expressions_are_computed_once() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 4]);
        let half = || (x * 0.5).exp();
        b.output("y", half() + half());
        let [first, second] = [x.top_k(2)[0], x.top_k(2)[1]];
        b.output("values", first);
        b.output("indices", second);
        let g = b.finish().unwrap();
        let shared = common_subexpressions(&g).unwrap();
        assert_eq!(ops(&shared), ["input", "constant", "binary", "unary", "binary", "top_k"]);
        same_results(&g, &shared);
    }

    #[test]
    fn weights_of_one_name_merge_and_states_of_two_names_do_not() {
        let b = Builder::new();
        let (a, c) = (b.weight("w", DType::F32, &[4]), b.weight("w", DType::F32, &[4]));
        let (s, t) = (b.state("s", DType::F32, shape![4]), b.state("t", DType::F32, shape![4]));
        b.output("y", a * s + c * t);
        let g = common_subexpressions(&b.finish().unwrap()).unwrap();
        assert_eq!((g.weights().count(), g.states().count()), (1, 2));
    }

    #[test]
    fn what_differs_in_an_attribute_a_bit_or_the_order_of_operands_stays_apart() {
        let b = Builder::new();
        let (x, y) = (b.input("x", DType::F32, shape![4, 4]), b.input("y", DType::F32, shape![4, 4]));
        let sums = (x - y).softmax(0) + (y - x).softmax(1);
        b.output("y", sums * 0.0 + sums * -0.0);
        let g = b.finish().unwrap();
        assert_eq!(common_subexpressions(&g).unwrap(), g);
    }

    #[test]
    fn regions_that_differ_stay_apart() {
        let b = Builder::new();
        let (x, c) = (b.input("x", DType::F32, shape![4]), b.input("c", DType::Bool, shape![]));
        let first = b.if_else(c, &[x], |_, x| vec![x[0].exp()], |_, x| vec![x[0]]);
        let second = b.if_else(c, &[x], |_, x| vec![x[0].tanh()], |_, x| vec![x[0]]);
        b.output("y", first[0] + second[0]);
        let g = b.finish().unwrap();
        assert_eq!(common_subexpressions(&g).unwrap(), g);
    }

    #[test]
    fn equal_regions_merge_and_their_inputs_stay() {
        let b = Builder::new();
        let (x, c) = (b.input("x", DType::F32, shape![4]), b.input("c", DType::Bool, shape![]));
        let branch = || b.if_else(c, &[x, x], |_, x| vec![x[0].exp() + x[1].exp()], |_, x| vec![-x[0]]);
        b.output("y", branch()[0] + branch()[0]);
        let g = b.finish().unwrap();
        let shared = common_subexpressions(&g).unwrap();
        assert_eq!(ops(&shared), ["input", "input", "if", "binary"]);
        assert_eq!(ops(&shared.nodes()[2].regions[0]), ["input", "input", "unary", "unary", "binary"]);
        same_results(&g, &shared);
    }
}
