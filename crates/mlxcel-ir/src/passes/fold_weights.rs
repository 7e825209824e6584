//! Moves what depends on weights only out of the step and into loading: merged projections, transposed heads, norms
//! stored as `w − 1`. Nothing that would take more memory than it is made of is folded, so that packed and narrow
//! weights are never widened; results of at most [`SMALL`] bytes are exempt.

use super::{Rebuild, dead_code};
use crate::error::IrError;
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::shape::Bindings;

/// Results up to this many bytes are folded even if they are larger than their operands.
pub const SMALL: u64 = 64 << 10;

/// A graph that runs at every step, and one that runs once.
#[derive(Clone, Debug, PartialEq)]
pub struct Folded {
    /// The step. What was folded is a weight `folded.N` that no checkpoint has: its `pieces` are empty.
    pub graph: Graph,
    /// From the weights of the checkpoint to outputs `folded.0`, `folded.1`, …
    pub load: Graph,
}

/// Splits a graph into what is computed when weights are loaded and what is computed at every step.
pub fn fold_weights(graph: &Graph) -> Result<Folded, IrError> {
    let classes = classify(graph);
    let mut load = Rebuild::new(graph);
    for i in (0..graph.nodes().len()).filter(|&i| classes[i] != Class::Step) {
        load.copy(i, graph.nodes()[i].regions.clone())?;
    }
    let mut names = names(graph);
    let mut step = Rebuild::new(graph);
    let needed = needed_at_steps(graph, &classes);
    for (i, node) in graph.nodes().iter().enumerate() {
        if classes[i] != Class::Folded {
            step.copy(i, node.regions.clone())?;
            continue;
        }
        let mut results = vec![];
        for (r, t) in node.types.iter().enumerate() {
            let v = Value { node: i as u32, result: r as u16 };
            if !needed.contains(&v) {
                // Nothing reads it, so any value can stand for it.
                results.push(Value { node: u32::MAX, result: 0 });
                continue;
            }
            let name = names.next().expect("names never end");
            let new = load.value(v);
            load.out.add_output(&name, new)?;
            let op = Op::Weight { name, dtype: t.dtype, shape: t.shape.clone(), pieces: vec![] };
            let weight = step.out.push(op, vec![], vec![], &node.label)?;
            results.extend(step.out.results(weight));
        }
        step.set(i, results);
    }
    Ok(Folded { graph: dead_code(&step.finish()?)?, load: dead_code(&load.out)? })
}

/// When a node is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// At every step.
    Step,
    /// It is a constant or made of constants.
    Constant,
    /// It is a weight of the checkpoint.
    Weight,
    /// When weights are loaded.
    Folded,
}

fn classify(graph: &Graph) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        let of = |v: &Value| classes[v.node as usize];
        let class = match &node.op {
            Op::Weight { .. } => Class::Weight,
            Op::Input { .. } | Op::State { .. } | Op::AllReduce | Op::AllGather { .. } => Class::Step,
            _ if node.inputs.iter().any(|v| of(v) == Class::Step) || has_symbols(node) => Class::Step,
            _ if node.inputs.iter().all(|v| of(v) == Class::Constant) => Class::Constant,
            _ if shrinks(graph, node, &classes) => Class::Folded,
            _ => Class::Step,
        };
        classes.push(class);
    }
    classes
}

/// Whether the types or attributes of a node depend on symbols, which have no value while loading.
fn has_symbols(node: &Node) -> bool {
    let typed = node.types.iter().flat_map(|t| &t.shape).any(|d| d.symbols().next().is_some());
    typed
        || match &node.op {
            Op::Size { dim } => dim.symbols().next().is_some(),
            Op::Slice { start, .. } => start.symbols().next().is_some(),
            _ => node.regions.iter().any(|r| r.nodes().iter().any(has_symbols)),
        }
}

/// Whether the results take no more bytes than what is stored of the operands, or little.
fn shrinks(graph: &Graph, node: &Node, classes: &[Class]) -> bool {
    let none = Bindings::new();
    let stored = |v: &Value| {
        let computed =
            classes[v.node as usize] == Class::Constant && !matches!(graph.node(*v).op, Op::Constant(_));
        if computed { Some(0) } else { graph.ty(*v).bytes(&none) }
    };
    let mut operands: Vec<Value> = node.inputs.clone();
    operands.sort_unstable();
    operands.dedup();
    let before = operands.iter().map(stored).try_fold(0u64, |a, b| a.checked_add(b?));
    let after = node.types.iter().try_fold(0u64, |a, t| a.checked_add(t.bytes(&none)?));
    after.is_some_and(|after| after <= SMALL || before.is_some_and(|before| after <= before))
}

/// The folded values that steps, outputs or updates read.
fn needed_at_steps(graph: &Graph, classes: &[Class]) -> std::collections::BTreeSet<Value> {
    let steps = graph.nodes().iter().zip(classes).filter(|(_, c)| **c == Class::Step);
    let read = steps.flat_map(|(n, _)| n.inputs.iter().copied());
    let escaping = graph.outputs().iter().chain(graph.updates()).map(|(_, v)| *v);
    read.chain(escaping).filter(|v| classes[v.node as usize] == Class::Folded).collect()
}

/// `folded.0`, `folded.1`, … without the names that the graph already has.
fn names(graph: &Graph) -> impl Iterator<Item = String> {
    let taken: std::collections::BTreeSet<String> = graph
        .weights()
        .filter_map(|(_, n)| match &n.op {
            Op::Weight { name, .. } => Some(name.clone()),
            _ => None,
        })
        .collect();
    (0u64..).map(|n| format!("folded.{n}")).filter(move |n| !taken.contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::{Array, run};
    use crate::passes::testing::{evaluate, leaf, ops};
    use crate::{Builder, DType, GgufFormat, QuantFormat, shape};
    use std::sync::Arc;

    /// Runs `load`, then the step with its results, and compares with the whole graph.
    fn same_in_two_stages(before: &Graph, after: &Folded) {
        let loaded = evaluate(&after.load).outputs;
        let step = crate::decompose(&after.graph, &|_, _| false).unwrap();
        let bindings: Bindings = step.symbols().into_iter().map(|s| (s.to_string(), 3)).collect();
        let mut provide = |node: &Node| {
            let found = match &node.op {
                Op::Weight { name, .. } => loaded.iter().find(|(n, _)| n == name).map(|(_, a)| a.clone()),
                _ => None,
            };
            Ok(found.unwrap_or_else(|| Arc::<Array>::new(leaf(node, &bindings))))
        };
        let done = run(&step, &bindings, &mut provide).unwrap();
        assert_eq!(done.outputs, evaluate(before).outputs);
    }

    #[test]
    fn weight_only_subgraphs_move_to_loading() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 8]);
        let [q, k, norm] =
            [("q", [4, 8]), ("k", [2, 8]), ("norm", [1, 8])].map(|(n, s)| b.weight(n, DType::F32, &s));
        let merged = b.concat(&[q, k], 0);
        let y = (x * (norm + 1.0)).linear(merged, None);
        b.output("y", y);
        let g = b.finish().unwrap();
        let folded = fold_weights(&g).unwrap();
        assert_eq!(ops(&folded.graph), ["input", "weight", "weight", "binary", "linear"]);
        assert_eq!(ops(&folded.load), ["weight", "weight", "weight", "concat", "constant", "binary"]);
        let outputs: Vec<&str> = folded.load.outputs().iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(outputs, ["folded.0", "folded.1"]);
        let Op::Weight { name, pieces, .. } = &folded.graph.nodes()[1].op else { panic!("not a weight") };
        assert_eq!((name.as_str(), pieces.len()), ("folded.0", 0));
        assert_eq!((folded.graph.verify(), folded.load.verify()), (Ok(()), Ok(())));
        same_in_two_stages(&g, &folded);
    }

    #[test]
    fn packed_weights_are_joined_but_not_widened() {
        let q4 = DType::Quant(QuantFormat::Gguf(GgufFormat::Q4_0));
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 256]);
        let parts = [b.weight("a", q4, &[256, 256]), b.weight("b", q4, &[256, 256])];
        let joined = b.concat(&parts, 0);
        let wide = parts[0].dequantize(DType::F32);
        b.output("y", x.linear(joined, None));
        b.output("z", x.dot_general(wide, &[], &[(1, 1)]));
        let folded = fold_weights(&b.finish().unwrap()).unwrap();
        assert_eq!(ops(&folded.load), ["weight", "weight", "concat"]);
        assert_eq!(ops(&folded.graph), ["input", "weight", "weight", "dequantize", "linear", "dot_general"],);
    }

    #[test]
    fn a_widening_cast_of_a_large_weight_stays_and_a_small_one_is_folded() {
        let casts = |rows: usize| {
            let b = Builder::new();
            b.output("y", b.weight("w", DType::BF16, &[rows, 256]).cast(DType::F32));
            let folded = fold_weights(&b.finish().unwrap()).unwrap();
            (ops(&folded.load).len(), ops(&folded.graph))
        };
        assert_eq!(casts(64), (2, vec!["weight".to_string()]));
        assert_eq!(casts(65), (0, vec!["weight".to_string(), "cast".to_string()]));
    }

    #[test]
    fn bare_weights_constants_and_what_reads_inputs_stay() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 8]);
        let w = b.weight("w", DType::F32, &[8]);
        b.output("y", x * w + b.scalar(2.0f32).exp());
        b.output("w", w);
        b.output("repeated", w.broadcast(shape!["tokens", 8]));
        let g = b.finish().unwrap();
        let folded = fold_weights(&g).unwrap();
        assert_eq!(folded.graph, g);
        assert_eq!(folded.load, Graph::default());
    }

    #[test]
    fn what_depends_on_the_value_of_a_symbol_stays() {
        let b = Builder::new();
        let w = b.weight("w", DType::F32, &[8]);
        b.output("scaled", w * b.size(&"tokens".into()).cast(DType::F32));
        let start = crate::Dim::sym("tokens");
        b.output("part", w.slice(0, &start, start.plus(&crate::Dim::fixed(2))));
        let g = b.finish().unwrap();
        assert_eq!(fold_weights(&g).unwrap(), Folded { graph: g, load: Graph::default() });
    }

    #[test]
    fn folding_again_does_not_reuse_a_name() {
        let b = Builder::new();
        let w = b.weight("folded.0", DType::F32, &[8]);
        b.output("y", w.exp());
        let folded = fold_weights(&b.finish().unwrap()).unwrap();
        assert_eq!(folded.load.outputs()[0].0, "folded.1");
    }
}
