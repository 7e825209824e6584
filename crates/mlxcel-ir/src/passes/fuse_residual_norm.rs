//! Joins a residual addition with the norm that follows it: `s = x + r; y = rms_norm(s, w)` becomes one node with
//! both results. The sum may have other users; the addends must have one shape, so that nothing broadcasts.

use std::collections::BTreeMap;

use super::{Rebuild, each_region};
use crate::error::IrError;
use crate::graph::{Graph, Node, Value};
use crate::op::{BinaryOp, Op};

/// The graph with every residual addition and its first norm fused.
pub fn fuse_residual_norm(graph: &Graph) -> Result<Graph, IrError> {
    let pairs = pair_up(graph);
    let mut r = Rebuild::new(graph);
    for i in 0..graph.nodes().len() {
        if let Some(pair) = pairs.get(&i) {
            for &early in &pair.hoisted {
                emit(&mut r, early)?;
            }
            fuse(&mut r, i, pair)?;
        } else {
            emit(&mut r, i)?;
        }
    }
    r.finish()
}

/// The norm that an addition is fused with.
struct Pair {
    norm: usize,
    eps: f64,
    weight: Value,
    /// Nodes after the addition that the norm's weight needs: they move before it, in order.
    hoisted: Vec<usize>,
}

/// Copies a node unless it is emitted already, hoisted or as half of a pair.
fn emit(r: &mut Rebuild<'_>, index: usize) -> Result<(), IrError> {
    if r.map[index].is_some() {
        return Ok(());
    }
    let regions = each_region(&r.source.nodes()[index], fuse_residual_norm)?;
    r.copy(index, regions)
}

fn fuse(r: &mut Rebuild<'_>, add: usize, pair: &Pair) -> Result<(), IrError> {
    let nodes = r.source.nodes();
    let mut inputs = r.operands(&nodes[add]);
    inputs.push(r.value(pair.weight));
    let fused = r.out.push(Op::AddRmsNorm { eps: pair.eps }, inputs, vec![], &nodes[pair.norm].label)?;
    let results = r.out.results(fused);
    r.set(add, vec![results[0]]);
    r.set(pair.norm, vec![results[1]]);
    Ok(())
}

fn pair_up(graph: &Graph) -> BTreeMap<usize, Pair> {
    let mut pairs: BTreeMap<usize, Pair> = BTreeMap::new();
    // What some pair needs before its addition cannot itself wait for a weight.
    let mut pinned = vec![false; graph.nodes().len()];
    for (norm, node) in graph.nodes().iter().enumerate() {
        let Op::RmsNorm { eps, weight: true } = node.op else { continue };
        let add = node.inputs[0].node as usize;
        if pinned[add] || pairs.contains_key(&add) || !is_plain_sum(graph, &graph.nodes()[add]) {
            continue;
        }
        let weight = node.inputs[1];
        let Some(hoisted) = needed_after(graph, weight, add) else { continue };
        if hoisted.iter().any(|h| pairs.contains_key(h)) {
            continue;
        }
        hoisted.iter().for_each(|&h| pinned[h] = true);
        pairs.insert(add, Pair { norm, eps, weight, hoisted });
    }
    pairs
}

fn is_plain_sum(graph: &Graph, node: &Node) -> bool {
    node.op == Op::Binary(BinaryOp::Add) && graph.ty(node.inputs[0]) == graph.ty(node.inputs[1])
}

/// The nodes after `add` that `v` depends on, in order, or `None` if it depends on `add` itself.
fn needed_after(graph: &Graph, v: Value, add: usize) -> Option<Vec<usize>> {
    let mut found = std::collections::BTreeSet::new();
    let mut open = vec![v.node as usize];
    while let Some(i) = open.pop() {
        if i == add {
            return None;
        }
        if i > add && found.insert(i) {
            open.extend(graph.nodes()[i].inputs.iter().map(|v| v.node as usize));
        }
    }
    Some(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{ops, same_results};
    use crate::{Builder, DType, shape};

    #[test]
    fn a_residual_addition_and_its_norm_become_one_node_with_both_results() {
        let b = Builder::new();
        let (x, r) =
            (b.input("x", DType::BF16, shape!["tokens", 8]), b.input("r", DType::BF16, shape!["tokens", 8]));
        let sum = x + r;
        // Used between the addition and the norm, and after it; the weight is declared last.
        let early = sum.exp();
        let y = sum.rms_norm(1e-6, Some(b.weight("w", DType::BF16, &[8]) + 1.0));
        b.output("y", y * sum + early);
        let g = b.finish().unwrap();
        let fused = fuse_residual_norm(&g).unwrap();
        assert_eq!(fused.verify(), Ok(()));
        let order =
            ["input", "input", "weight", "constant", "binary", "add_rms_norm", "unary", "binary", "binary"];
        assert_eq!(ops(&fused), order);
        same_results(&g, &fused);
    }

    #[test]
    fn of_two_norms_of_one_sum_the_first_is_fused() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 8]);
        let (v, w) = (b.weight("v", DType::F32, &[8]), b.weight("w", DType::F32, &[8]));
        let sum = x + x.exp();
        b.output("y", sum.rms_norm(1e-6, Some(v)) + sum.rms_norm(1e-5, Some(w)));
        let g = b.finish().unwrap();
        let fused = fuse_residual_norm(&g).unwrap();
        assert_eq!(ops(&fused)[3..], ["unary", "add_rms_norm", "rms_norm", "binary"]);
        same_results(&g, &fused);
    }

    #[test]
    fn sums_that_broadcast_norms_without_weight_and_weights_made_of_the_sum_stay_apart() {
        let b = Builder::new();
        let (x, row) = (b.input("x", DType::F32, shape![8, 8]), b.input("row", DType::F32, shape![8]));
        let w = b.weight("w", DType::F32, &[8]);
        b.output("broadcast", (x + row).rms_norm(1e-6, Some(w)));
        b.output("bare", (x + x).rms_norm(1e-6, None));
        let sum = x + x.exp();
        let own = sum.reduce(crate::ReduceOp::Sum, &[0]);
        b.output("own", sum.rms_norm(1e-6, Some(own)));
        let g = b.finish().unwrap();
        assert_eq!(fuse_residual_norm(&g).unwrap(), g);
    }

    #[test]
    fn two_pairs_whose_weights_need_each_other_do_not_both_fuse() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![8, 8]);
        let (first, second) = (x + x.exp(), x + x.abs());
        let of_first = first.reduce(crate::ReduceOp::Sum, &[0]);
        let of_second = second.reduce(crate::ReduceOp::Sum, &[0]);
        b.output("y", first.rms_norm(1e-6, Some(of_second)) + second.rms_norm(1e-6, Some(of_first)));
        let g = b.finish().unwrap();
        let fused = fuse_residual_norm(&g).unwrap();
        assert_eq!(ops(&fused).iter().filter(|o| *o == "add_rms_norm").count(), 1);
        same_results(&g, &fused);
    }

    #[test]
    fn regions_are_fused_too() {
        let b = Builder::new();
        let (x, c) = (b.input("x", DType::F32, shape![4, 8]), b.input("c", DType::Bool, shape![]));
        let w = b.weight("w", DType::F32, &[8]);
        let y = b.if_else(
            c,
            &[x, w],
            |_, x| vec![(x[0] + x[0].exp()).rms_norm(1e-6, Some(x[1]))],
            |_, x| vec![-x[0]],
        );
        b.output("y", y[0]);
        let g = b.finish().unwrap();
        let fused = fuse_residual_norm(&g).unwrap();
        let inside = ops(&fused.nodes()[3].regions[0]);
        assert_eq!(inside, ["input", "input", "unary", "add_rms_norm"]);
        same_results(&g, &fused);
    }
}
