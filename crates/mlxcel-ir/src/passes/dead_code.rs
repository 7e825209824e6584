//! Removes what no output and no state update needs. Inputs, weights and states that nothing reads go too, so the
//! feeds of a program may name inputs that its graph no longer has: they are to be ignored there. An input that
//! alone says how large a symbolic dimension is stays as long as anything has that dimension.

use std::collections::BTreeSet;

use super::{Rebuild, each_region};
use crate::error::IrError;
use crate::graph::{Graph, Node};
use crate::op::Op;

/// The graph without the nodes that nothing needs.
pub fn dead_code(graph: &Graph) -> Result<Graph, IrError> {
    remove(graph, |_| false)
}

/// Arguments of a region go by position, so its inputs stay.
fn within_region(region: &Graph) -> Result<Graph, IrError> {
    remove(region, |op| matches!(op, Op::Input { .. }))
}

fn remove(graph: &Graph, keep: impl Fn(&Op) -> bool) -> Result<Graph, IrError> {
    let live = live(graph, keep);
    let mut r = Rebuild::new(graph);
    for (i, node) in graph.nodes().iter().enumerate().filter(|(i, _)| live[*i]) {
        r.copy(i, each_region(node, within_region)?)?;
    }
    r.finish()
}

fn live(graph: &Graph, keep: impl Fn(&Op) -> bool) -> Vec<bool> {
    let mut live = super::escaping(graph);
    for (i, node) in graph.nodes().iter().enumerate() {
        // A state that is written must stay declared, even if nothing reads it.
        let written =
            matches!(&node.op, Op::State { name, .. } if graph.updates().iter().any(|(n, _)| n == name));
        live[i] |= written || keep(&node.op);
    }
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        if live[i] {
            node.inputs.iter().for_each(|v| live[v.node as usize] = true);
        }
    }
    keep_binders(graph, &mut live);
    live
}

/// Revives inputs until every symbol that is needed is bound by one that lives, if any input binds it at all.
fn keep_binders(graph: &Graph, live: &mut [bool]) {
    let mut needed = BTreeSet::new();
    let alive = graph.nodes().iter().enumerate().filter(|(i, _)| live[*i]);
    alive.for_each(|(_, n)| symbols(n, &mut needed));
    let (living, dead): (Vec<_>, Vec<_>) = graph.inputs().partition(|(i, _)| live[*i as usize]);
    for (i, node) in living.into_iter().chain(dead) {
        for symbol in node.types[0].shape.iter().filter_map(|d| d.as_symbol()) {
            live[i as usize] |= needed.remove(symbol);
        }
    }
}

/// The symbols that evaluating a node asks for.
fn symbols<'g>(node: &'g Node, needed: &mut BTreeSet<&'g str>) {
    needed.extend(node.types.iter().flat_map(|t| &t.shape).flat_map(|d| d.symbols()));
    match &node.op {
        Op::Size { dim } => needed.extend(dim.symbols()),
        Op::Slice { start, end, .. } => needed.extend(start.symbols().chain(end.symbols())),
        _ => {}
    }
    node.regions.iter().flat_map(|r| r.nodes()).for_each(|n| symbols(n, needed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::ops;
    use crate::{Builder, DType, shape};

    #[test]
    fn what_nothing_reads_is_removed_with_its_leaves() {
        let b = Builder::new();
        let (x, unused) = (b.input("x", DType::F32, shape![4]), b.input("unused", DType::F32, shape![4]));
        let w = b.weight("w", DType::F32, &[4]);
        let _ = (unused * w).exp();
        b.output("y", -x);
        let g = dead_code(&b.finish().unwrap()).unwrap();
        assert_eq!(ops(&g), ["input", "unary"]);
        assert_eq!(g.outputs().len(), 1);
    }

    #[test]
    fn a_state_that_is_only_written_stays_declared() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![4]);
        b.state("written", DType::F32, shape![4]);
        b.state("idle", DType::F32, shape![4]);
        b.update("written", x.exp());
        let g = dead_code(&b.finish().unwrap()).unwrap();
        assert_eq!(ops(&g), ["input", "state", "unary"]);
        assert_eq!(g.updates().len(), 1);
    }

    #[test]
    fn regions_lose_dead_nodes_but_keep_their_inputs() {
        let b = Builder::new();
        let (x, c) = (b.input("x", DType::F32, shape![4]), b.input("c", DType::Bool, shape![]));
        let y = b.if_else(
            c,
            &[x, x],
            |_, x| {
                let _ = x[0].exp();
                vec![x[1]]
            },
            |_, x| vec![-x[0]],
        );
        b.output("y", y[0]);
        let g = dead_code(&b.finish().unwrap()).unwrap();
        assert_eq!(ops(&g.nodes()[2].regions[0]), ["input", "input"]);
        assert_eq!(ops(&g.nodes()[2].regions[1]), ["input", "input", "unary"]);
    }

    #[test]
    fn an_input_that_alone_binds_a_dimension_stays() {
        let b = Builder::new();
        b.input("bound_twice", DType::I32, shape!["tokens", "rows"]);
        b.input("sizes", DType::I32, shape!["sequences"]);
        b.input("unused", DType::I32, shape!["pages"]);
        let x = b.input("x", DType::F32, shape!["tokens"]);
        b.output("y", -x);
        b.output("sequences", b.size(&"sequences".into()));
        let g = dead_code(&b.finish().unwrap()).unwrap();
        let names: Vec<String> = g.inputs().map(|(_, n)| n.types[0].to_string()).collect();
        assert_eq!(names, ["i32[sequences]", "f32[tokens]"]);
    }

    #[test]
    fn a_graph_without_dead_code_stays_as_it_is() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 4]);
        let [values, _] = x.top_k(2);
        b.output("y", values);
        let g = b.finish().unwrap();
        assert_eq!(dead_code(&g).unwrap(), g);
    }
}
