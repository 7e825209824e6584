//! Removes what no output and no state update needs. Inputs, weights and states that nothing reads go too, so the
//! feeds of a program may name inputs that its graph no longer has: they are to be ignored there.

use super::{Rebuild, each_region};
use crate::error::IrError;
use crate::graph::Graph;
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
    live
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
    fn a_graph_without_dead_code_stays_as_it_is() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 4]);
        let [values, _] = x.top_k(2);
        b.output("y", values);
        let g = b.finish().unwrap();
        assert_eq!(dead_code(&g).unwrap(), g);
    }
}
