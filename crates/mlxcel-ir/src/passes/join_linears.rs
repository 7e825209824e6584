//! Joins linear products of one operand: their weights are laid end to end, so that one product computes what the
//! queries, keys and values of a block are, or its gate and its factor, and each is a slice of the result. The weight
//! stays where the checkpoint has it; a weight that is used elsewhere too, or of another type, stays apart.

use std::collections::BTreeMap;

use super::{Rebuild, escaping};
use crate::dtype::DType;
use crate::error::IrError;
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::shape::Dim;

/// The graph with one product where several had the same operand.
pub fn join_linears(graph: &Graph) -> Result<Graph, IrError> {
    let groups = groups(graph);
    let mut r = Rebuild::new(graph);
    for (i, node) in graph.nodes().iter().enumerate() {
        match groups.get(&i) {
            _ if r.map[i].is_some() => {}
            Some(members) => join(&mut r, members)?,
            None => r.copy(i, node.regions.clone())?,
        }
    }
    r.finish()
}

/// What products that are joined have in common.
#[derive(PartialEq)]
struct Kind {
    x: Value,
    dtype: DType,
    bias: Option<DType>,
}

/// The products that become one, by the first of them.
fn groups(graph: &Graph) -> BTreeMap<usize, Vec<usize>> {
    let single = single_use(graph);
    let mut groups: Vec<(Kind, Vec<usize>)> = vec![];
    for (i, node) in graph.nodes().iter().enumerate() {
        let Op::Linear { bias } = node.op else { continue };
        let parameters = &node.inputs[1..];
        if !parameters.iter().all(|v| single[v.node as usize] && is_stored(graph.node(*v))) {
            continue;
        }
        let bias = bias.then(|| graph.ty(node.inputs[2]).dtype);
        let kind = Kind { x: node.inputs[0], dtype: graph.ty(node.inputs[1]).dtype, bias };
        match groups.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, members)) => members.push(i),
            None => groups.push((kind, vec![i])),
        }
    }
    let several = groups.into_iter().filter(|(_, members)| members.len() > 1);
    several.map(|(_, members)| (members[0], members)).collect()
}

/// For each node whether exactly one operand of one node is its value.
fn single_use(graph: &Graph) -> Vec<bool> {
    let mut uses = vec![0; graph.nodes().len()];
    graph.nodes().iter().flat_map(|n| &n.inputs).for_each(|v| uses[v.node as usize] += 1);
    let escapes = escaping(graph);
    (0..uses.len()).map(|i| uses[i] == 1 && !escapes[i]).collect()
}

/// Whether a node is a weight of the checkpoint with rows that are all known.
fn is_stored(node: &Node) -> bool {
    matches!(&node.op, Op::Weight { shape, pieces, .. } if !pieces.is_empty() && shape[0].as_fixed().is_some())
}

fn join(r: &mut Rebuild<'_>, members: &[usize]) -> Result<(), IrError> {
    let nodes = r.source.nodes();
    let first = &nodes[members[0]];
    let mut inputs = vec![r.value(first.inputs[0])];
    for at in 1..first.inputs.len() {
        let parts: Vec<&Node> = members.iter().map(|&m| r.source.node(nodes[m].inputs[at])).collect();
        let weight = r.out.push(joined(&parts), vec![], vec![], &parts[0].label)?;
        inputs.extend(r.out.results(weight));
    }
    let product = r.out.push(first.op.clone(), inputs, vec![], &first.label)?;
    let all = r.out.results(product);
    let mut start = 0;
    for &m in members {
        let shape = &nodes[m].types[0].shape;
        let rows = shape[shape.len() - 1].as_fixed().expect("the weight's rows are known");
        let (from, to) = (Dim::from(start), Dim::from(start + rows));
        let op = Op::Slice { axis: shape.len() - 1, start: from, end: to, step: 1 };
        let part = r.out.push(op, all.clone(), vec![], &nodes[m].label)?;
        let part = r.out.results(part);
        r.set(m, part);
        start += rows;
    }
    Ok(())
}

/// One weight of all the pieces.
fn joined(parts: &[&Node]) -> Op {
    let (mut names, mut all, mut rows) = (vec![], vec![], 0);
    for part in parts {
        let Op::Weight { name, shape, pieces, .. } = &part.op else {
            unreachable!("only weights are joined")
        };
        names.push(name.as_str());
        all.extend(pieces.iter().cloned());
        rows += shape[0].as_fixed().expect("groups have known rows");
    }
    let t = &parts[0].types[0];
    let mut shape = t.shape.clone();
    shape[0] = Dim::from(rows);
    Op::Weight { name: names.join("+"), dtype: t.dtype, shape, pieces: all }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::interp::{Array, Data, run};
    use crate::passes::dead_code;
    use crate::passes::testing::{leaf, ops};
    use crate::{Bindings, Builder, GgufFormat, QuantFormat, shape};

    /// Runs a graph; a joined weight is what its parts are, end to end.
    fn evaluate(graph: &Graph) -> Vec<Array> {
        let bindings = Bindings::from([("tokens".to_string(), 3)]);
        let part = |node: &Node, name: &str, rows: usize| {
            let Op::Weight { dtype, pieces, .. } = &node.op else { panic!("not a weight") };
            let mut shape = node.types[0].shape.clone();
            shape[0] = Dim::from(rows);
            let op = Op::Weight { name: name.to_string(), dtype: *dtype, shape, pieces: pieces.clone() };
            let mut alone = Graph::default();
            let v = alone.push(op, vec![], vec![], "").unwrap();
            leaf(&alone.nodes()[v as usize], &bindings)
        };
        let mut value = |node: &Node| {
            let Op::Weight { name, .. } = &node.op else { return Ok(Arc::new(leaf(node, &bindings))) };
            let names: Vec<&str> = name.split('+').collect();
            // The tests name weights by their rows.
            let rows = |name: &str| name[1..].parse::<usize>().unwrap();
            let parts: Vec<Array> = names.iter().map(|n| part(node, n, rows(n))).collect();
            let mut shape = parts[0].shape.clone();
            shape[0] = parts.iter().map(|p| p.shape[0]).sum();
            let numbers = parts.iter().flat_map(|p| match &p.data {
                Data::Float(f) => f.clone(),
                Data::Int(_) => panic!("weights are floats"),
            });
            Ok(Arc::new(Array { dtype: parts[0].dtype, shape, data: Data::Float(numbers.collect()) }))
        };
        let graph = crate::decompose(graph, &|_, _| false).unwrap();
        let outputs = run(&graph, &bindings, &mut value).unwrap().outputs;
        outputs.into_iter().map(|(_, a)| Array::clone(&a)).collect()
    }

    #[test]
    fn products_of_one_operand_become_one_and_each_is_a_slice_of_it() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 8]);
        let weight = |n: usize, name: &str| b.weight(name, DType::F32, &[n, 8]);
        // Weights are declared between the products, as models do.
        let q = x.linear(weight(6, "q6"), None);
        let k = x.linear(weight(2, "k2"), None);
        let biased = x.linear(weight(3, "a3"), Some(b.weight("b3", DType::F32, &[3])));
        let v = x.linear(weight(4, "v4"), None);
        let too = x.linear(weight(5, "c5"), Some(b.weight("d5", DType::F32, &[5])));
        for (name, t) in [("q", q), ("k", k), ("v", v), ("biased", biased), ("too", too)] {
            b.output(name, t);
        }
        let g = b.finish().unwrap();
        let joined = dead_code(&join_linears(&g).unwrap()).unwrap();
        assert_eq!(joined.verify(), Ok(()));
        let product = ["weight", "linear", "slice", "slice", "slice"];
        let biased = ["weight", "weight", "linear", "slice", "slice"];
        assert_eq!(ops(&joined), [&["input"], &product[..], &biased[..]].concat());
        assert_eq!(evaluate(&g), evaluate(&joined));
    }

    #[test]
    fn other_operands_types_and_shared_weights_stay_apart() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 32]);
        let packed = DType::Quant(QuantFormat::Gguf(GgufFormat::Q4_0));
        let shared = b.weight("s4", DType::F32, &[4, 32]);
        b.output("one", x.linear(b.weight("a4", DType::F32, &[4, 32]), None));
        b.output("packed", x.linear(b.weight("p4", packed, &[4, 32]), None));
        b.output("other", x.exp().linear(b.weight("o4", DType::F32, &[4, 32]), None));
        b.output("shared", x.linear(shared, None));
        b.output("computed", x.linear(shared + 1.0, None));
        let g = b.finish().unwrap();
        assert_eq!(join_linears(&g).unwrap(), g);
    }
}
