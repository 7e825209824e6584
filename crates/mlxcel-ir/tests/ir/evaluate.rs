//! Evaluation of graphs with random leaves by the reference interpreter.

use std::sync::Arc;

use mlxcel_ir::interp::{Array, Data, Evaluated, run};
use mlxcel_ir::{Bindings, Graph, HostTensor, Node, Op, decompose};

/// Provides leaves; `given` comes first, by name.
pub fn evaluate(graph: &Graph, seed: u64, given: &[(String, Arc<Array>)]) -> Evaluated {
    let graph = decompose(graph, &|_, _| false).expect("every composite decomposes");
    let bindings = Bindings::from([("tokens".into(), 3), ("pages".into(), 2)]);
    let mut provide = |node: &Node| {
        let found = given.iter().find(|(n, _)| n == leaf_name(node)).map(|(_, a)| a.clone());
        Ok(found.unwrap_or_else(|| Arc::new(leaf(node, seed, &bindings))))
    };
    run(&graph, &bindings, &mut provide).expect("the graph evaluates")
}

fn leaf_name(node: &Node) -> &str {
    match &node.op {
        Op::Input { name, .. } | Op::Weight { name, .. } | Op::State { name, .. } => name,
        other => panic!("{} is not a leaf", other.name()),
    }
}

fn leaf(node: &Node, seed: u64, bindings: &Bindings) -> Array {
    let t = &node.types[0];
    let shape: Vec<usize> = t.shape.iter().map(|d| d.eval(bindings).expect("bound")).collect();
    let mut state = leaf_name(node).bytes().fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100000001b3));
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as i64 % 16 - 8
    };
    let count = shape.iter().product();
    if t.dtype.is_float() || t.dtype.is_quant() {
        // Quarters are exact in every float type.
        return Array {
            dtype: t.dtype,
            shape,
            data: Data::Float((0..count).map(|_| quarter(next())).collect()),
        };
    }
    let values: Vec<f64> = (0..count).map(|_| next() as f64).collect();
    Array::from_host(&HostTensor::from_f64(t.dtype, &shape, &values))
}

/// Whether two results are equal to the bit; any NaN equals any other.
pub fn same(a: &Evaluated, b: &Evaluated) -> bool {
    let list = |x: &[(String, Arc<Array>)], y: &[(String, Arc<Array>)]| {
        x.len() == y.len() && x.iter().zip(y).all(|((n, a), (m, b))| n == m && same_array(a, b))
    };
    list(&a.outputs, &b.outputs) && list(&a.updates, &b.updates)
}

fn same_array(a: &Array, b: &Array) -> bool {
    let bits = |x: &f64, y: &f64| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    let data = match (&a.data, &b.data) {
        (Data::Float(x), Data::Float(y)) => x.iter().zip(y).all(|(x, y)| bits(x, y)),
        (x, y) => x == y,
    };
    a.dtype == b.dtype && a.shape == b.shape && data
}

/// With −0 among them, which adding 0 changes.
fn quarter(number: i64) -> f64 {
    if number == -8 { -0.0 } else { number as f64 / 4.0 }
}
