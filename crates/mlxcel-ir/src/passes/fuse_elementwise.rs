//! Gathers connected elementwise ops into one `fused` node, so that an engine reads and writes memory once. A region
//! has one result; everything inside has that result's shape, so nothing is computed twice, and is used nowhere
//! else. Scalar constants move inside; other operands may broadcast.

use std::collections::BTreeMap;

use super::{Rebuild, each_region, escaping};
use crate::error::IrError;
use crate::graph::{Graph, Value};
use crate::op::Op;

/// The graph with elementwise regions fused. Ops that stand alone stay as they are.
pub fn fuse_elementwise(graph: &Graph) -> Result<Graph, IrError> {
    let roots = group(graph);
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, root) in roots.iter().enumerate() {
        if let Some(root) = root {
            members.entry(*root).or_default().push(i);
        }
    }
    let mut r = Rebuild::new(graph);
    for (i, node) in graph.nodes().iter().enumerate() {
        match roots[i].map(|root| (root, &members[&root])) {
            Some((root, all)) if all.len() > 1 => {
                if root == i {
                    fuse(&mut r, all)?;
                }
            }
            _ if node.op == Op::Fused => r.copy(i, node.regions.clone())?,
            _ => r.copy(i, each_region(node, fuse_elementwise)?)?,
        }
    }
    r.finish()
}

/// For each elementwise node the last node of its group. A node joins the group of its users when they all are in
/// one and its value is not seen elsewhere; every path from it then ends in the group's last node, so the group can
/// be computed there.
fn group(graph: &Graph) -> Vec<Option<usize>> {
    let escapes = escaping(graph);
    let nodes = graph.nodes();
    let mut users: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    let mut roots = vec![None; nodes.len()];
    for (i, node) in nodes.iter().enumerate().rev() {
        node.inputs.iter().for_each(|v| users[v.node as usize].push(i));
        if !node.op.is_elementwise() {
            continue;
        }
        let shared = users[i].first().and_then(|&u| roots[u]).filter(|&root: &usize| {
            !escapes[i]
                && users[i].iter().all(|&u| roots[u] == Some(root))
                && nodes[root].types[0].shape == node.types[0].shape
        });
        roots[i] = Some(shared.unwrap_or(i));
    }
    roots
}

/// Emits the nodes of a group, in order, as one node that stands for the last of them.
fn fuse(r: &mut Rebuild<'_>, members: &[usize]) -> Result<(), IrError> {
    let nodes = r.source.nodes();
    let outside = |v: &Value| !members.contains(&(v.node as usize));
    let inside_constant = |v: &Value| match &nodes[v.node as usize].op {
        Op::Constant(t) => t.shape().is_empty(),
        _ => false,
    };
    let mut captured: Vec<Value> = vec![];
    for v in members.iter().flat_map(|&m| &nodes[m].inputs).filter(|v| outside(v) && !inside_constant(v)) {
        if !captured.contains(v) {
            captured.push(*v);
        }
    }

    let mut body = Graph::default();
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    let single = |node: u32| Value { node, result: 0 };
    for (i, v) in captured.iter().enumerate() {
        let t = r.source.ty(*v).clone();
        let op = Op::Input { name: format!("arg{i}"), dtype: t.dtype, shape: t.shape, pad: 0 };
        map.insert(*v, single(body.push(op, vec![], vec![], "")?));
    }
    for &m in members {
        for v in nodes[m].inputs.iter().filter(|v| inside_constant(v)) {
            if !map.contains_key(v) {
                let constant = nodes[v.node as usize].op.clone();
                map.insert(*v, single(body.push(constant, vec![], vec![], "")?));
            }
        }
        let inputs = nodes[m].inputs.iter().map(|v| map[v]).collect();
        let new = body.push(nodes[m].op.clone(), inputs, vec![], &nodes[m].label)?;
        map.insert(single(m as u32), single(new));
    }
    let root = *members.last().expect("a group has members");
    body.add_output("out0", map[&single(root as u32)])?;

    let operands = captured.iter().map(|&v| r.value(v)).collect();
    let fused = r.out.push(Op::Fused, operands, vec![body], &nodes[root].label)?;
    let results = r.out.results(fused);
    r.set(root, results);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{ops, same_results};
    use crate::passes::{dead_code, fuse_residual_norm};
    use crate::{Activation, Builder, DType, shape};

    fn fused(g: &Graph) -> Graph {
        let out = dead_code(&fuse_elementwise(g).unwrap()).unwrap();
        assert_eq!(out.verify(), Ok(()));
        same_results(g, &out);
        out
    }

    #[test]
    fn a_gated_activation_becomes_one_region() {
        let b = Builder::new();
        let (gate, up) = (
            b.input("gate", DType::BF16, shape!["tokens", 8]),
            b.input("up", DType::BF16, shape!["tokens", 8]),
        );
        let y = (gate.activation(Activation::Silu) * up * 0.5).cast(DType::F32);
        b.output("y", y);
        let g = fused(&b.finish().unwrap());
        assert_eq!(ops(&g), ["input", "input", "fused"]);
        let inside = ["input", "input", "activation", "binary", "constant", "binary", "cast"];
        assert_eq!(ops(&g.nodes()[2].regions[0]), inside);
        assert_eq!(g.nodes()[2].types[0].to_string(), "f32[tokens, 8]");
    }

    #[test]
    fn operands_broadcast_into_a_region_but_smaller_work_stays_outside() {
        let b = Builder::new();
        let (x, row) = (b.input("x", DType::F32, shape!["tokens", 8]), b.input("row", DType::F32, shape![8]));
        b.output("y", (x * row.exp() + row).tanh());
        let g = fused(&b.finish().unwrap());
        assert_eq!(ops(&g), ["input", "input", "unary", "fused"]);
        assert_eq!(ops(&g.nodes()[3].regions[0]), ["input", "input", "input", "binary", "binary", "unary"]);
    }

    #[test]
    fn a_value_that_is_seen_elsewhere_is_computed_once_and_outside() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![4, 8]);
        let (seen, reduced) = (x.exp(), x.tanh().abs());
        b.output("seen", seen);
        let sum = reduced.reduce(crate::ReduceOp::Sum, &[1]);
        b.output("y", (seen + reduced) * reduced + sum.unsqueeze(1));
        let g = fused(&b.finish().unwrap());
        assert_eq!(ops(&g), ["input", "unary", "fused", "reduce", "reshape", "fused"]);
    }

    #[test]
    fn single_ops_are_left_alone() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![4, 8]);
        b.output("y", (x * 2.0).softmax(1).exp());
        let g = b.finish().unwrap();
        assert_eq!(fuse_elementwise(&g).unwrap(), g);
        let again = fuse_elementwise(&fuse_residual_norm(&g).unwrap()).unwrap();
        assert_eq!(again, g);
    }

    #[test]
    fn fusing_twice_changes_nothing_more_and_loops_are_fused_inside() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![5, 8]);
        let start = b.input("start", DType::F32, shape![8]);
        let last = b.scan(&[start], &[x], &[], |_, x| vec![((x[0] + x[1]) * 0.5).tanh()]);
        b.output("y", (last[0] * 2.0).exp());
        let g = fused(&b.finish().unwrap());
        assert_eq!(ops(&g), ["input", "input", "scan", "fused"]);
        assert_eq!(ops(&g.nodes()[2].regions[0]), ["input", "input", "fused"]);
        assert_eq!(fuse_elementwise(&g).unwrap(), g);
    }
}
