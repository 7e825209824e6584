//! What the tests of the passes share: names of ops in order, and evaluation of small graphs.

use std::sync::Arc;

use crate::graph::{Graph, Node};
use crate::interp::{Array, Data, Evaluated, run};
use crate::op::Op;
use crate::shape::Bindings;

/// The ops of a graph by name, in order.
pub(crate) fn ops(graph: &Graph) -> Vec<String> {
    graph.nodes().iter().map(|n| n.op.name()).collect()
}

/// Runs the graph, decomposed, with every symbol 3 and leaves filled with numbers that depend on their name.
pub(crate) fn evaluate(graph: &Graph) -> Evaluated {
    let graph = crate::decompose(graph, &|_, _| false).unwrap();
    let bindings: Bindings = graph.symbols().into_iter().map(|s| (s.to_string(), 3)).collect();
    run(&graph, &bindings, &mut |node| Ok(Arc::new(leaf(node, &bindings)))).unwrap()
}

pub(crate) fn leaf(node: &Node, bindings: &Bindings) -> Array {
    let (Op::Input { name, .. } | Op::Weight { name, .. } | Op::State { name, .. }) = &node.op else {
        panic!("{} is not a leaf", node.op.name())
    };
    let t = &node.types[0];
    let shape: Vec<usize> = t.shape.iter().map(|d| d.eval(bindings).unwrap()).collect();
    let salt: usize = name.bytes().map(usize::from).sum();
    let number = |i: usize| ((i * 7 + salt * 13) % 17) as i64 - 8;
    let count = shape.iter().product();
    let data = if t.dtype.is_float() {
        Data::Float((0..count).map(|i| number(i) as f64 / 4.0).collect())
    } else {
        Data::Int((0..count).map(|i| number(i).rem_euclid(2)).collect())
    };
    Array { dtype: t.dtype, shape, data }
}

/// Asserts that two graphs compute the same.
pub(crate) fn same_results(before: &Graph, after: &Graph) {
    let (a, b) = (evaluate(before), evaluate(after));
    assert_eq!(a.outputs, b.outputs);
    assert_eq!(a.updates, b.updates);
}
