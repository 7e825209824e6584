//! Weights of a graph in the memory they were loaded to: the declared ones, and what is only a join, a cut or another shape
//! of them, which engines that read rows need not compute.

use std::collections::HashMap;
use std::ops::Range;

use mlxcel_ir::{Graph, Node, Op};
use mlxcel_weights::WeightTensor;

use crate::{EngineError, WeightSource, load_pieces};

/// Weights that no checkpoint has, by name.
pub type FoldedWeights = HashMap<String, Vec<WeightTensor>>;

/// The pieces of every node that is a weight or only a rearranged one: end to end, they have the rows of its last axis in
/// order. A piece keeps the shape it was loaded with or cut to.
pub type Segments = HashMap<u32, Vec<WeightTensor>>;

/// Loads the weights of a graph; those that are `folded` are taken from there.
pub fn segments(
    graph: &Graph,
    weights: &dyn WeightSource,
    folded: &FoldedWeights,
) -> Result<Segments, EngineError> {
    let mut found = Segments::new();
    for (i, node) in graph.nodes().iter().enumerate() {
        let segments = match &node.op {
            Op::Weight { name, .. } => match folded.get(name) {
                Some(folded) => Some(folded.clone()),
                None => Some(load_pieces(&node.op, weights)?),
            },
            _ => rearranged(graph, node, &found),
        };
        found.extend(segments.map(|s| (i as u32, s)));
    }
    Ok(found)
}

/// The segments of a node that only rearranges rows of weights.
fn rearranged(graph: &Graph, node: &Node, found: &Segments) -> Option<Vec<WeightTensor>> {
    let operands = || node.inputs.iter().map(|v| found.get(&v.node)).collect::<Option<Vec<_>>>();
    match &node.op {
        Op::Concat { axis: 0 } => Some(operands()?.into_iter().flatten().cloned().collect()),
        Op::Reshape { shape } => {
            let before = graph.ty(node.inputs[0]);
            let same_rows = before.shape.last() == shape.last() && !shape.is_empty();
            same_rows.then(|| operands().map(|o| o[0].clone())).flatten()
        }
        Op::Slice { axis: 0, start, end, step: 1 } => {
            let shape: Vec<usize> =
                graph.ty(node.inputs[0]).shape.iter().map(|d| d.as_fixed()).collect::<Option<_>>()?;
            let [_, inner @ .., cols] = shape.as_slice() else { return None };
            let inner: usize = inner.iter().product();
            cut(operands()?[0], *cols, start.as_fixed()? * inner..end.as_fixed()? * inner)
        }
        _ => None,
    }
}

/// Some rows of segments laid end to end.
fn cut(segments: &[WeightTensor], cols: usize, range: Range<usize>) -> Option<Vec<WeightTensor>> {
    if cols == 0 {
        return None;
    }
    let (mut out, mut first) = (vec![], 0);
    for s in segments {
        let rows = s.elements() / cols;
        let (from, to) = (range.start.max(first), range.end.min(first + rows));
        if from < to {
            out.push(s.reshaped(&[rows, cols]).ok()?.rows(from - first..to - first).ok()?);
        }
        first += rows;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mlxcel_ir::{Builder, DType, HostTensor, shape};

    use super::*;

    struct Numbers(BTreeMap<&'static str, HostTensor>);

    impl WeightSource for Numbers {
        fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
            let found =
                self.0.get(name).ok_or_else(|| EngineError::MissingFeed { name: name.to_string() })?;
            Ok(WeightTensor::from_host(found.clone()))
        }
    }

    /// The numbers of a node's segments, if it has any.
    fn numbers(found: &Segments, node: u32) -> Option<Vec<f32>> {
        found.get(&node).map(|s| s.iter().flat_map(|t| t.to_f32()).collect())
    }

    #[test]
    fn joins_cuts_and_shapes_of_weights_are_their_rows() {
        let a = HostTensor::new(&[3, 2], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let b = HostTensor::new(&[2, 2], &[7f32, 8.0, 9.0, 10.0]);
        let source = Numbers([("a", a), ("b", b)].into());
        let g = Builder::new();
        let (a, b) = (g.weight("a", DType::F32, &[3, 2]), g.weight("b", DType::F32, &[2, 2]));
        let joined = g.concat(&[a, b], 0);
        // Rows of both.
        let middle = joined.slice(0, 2, 4);
        // The second of two matrices.
        let matrices = joined.slice(0, 0, 4).reshape(shape![2, 2, 2]).slice(0, 1, 2);
        let wide = a.reshape(shape![2, 3]);
        let columns = a.slice(1, 0, 1);
        let sum = a + a;
        for (i, t) in [joined, middle, matrices, wide, columns, sum].into_iter().enumerate() {
            g.output(&format!("{i}"), t);
        }
        let graph = g.finish().expect("the graph is well typed");
        let found = segments(&graph, &source, &FoldedWeights::new()).expect("the weights are there");
        let all: Vec<f32> = (1..=10).map(|x| x as f32).collect();
        let expected =
            [Some(all), Some(vec![5.0, 6.0, 7.0, 8.0]), Some(vec![5.0, 6.0, 7.0, 8.0]), None, None, None];
        for ((name, value), expected) in graph.outputs().iter().zip(expected) {
            assert_eq!(numbers(&found, value.node), expected, "output {name}");
        }
    }

    #[test]
    fn what_was_folded_is_not_asked_for() {
        let g = Builder::new();
        let w = g.weight("made", DType::F32, &[1, 2]);
        g.output("w", w);
        let graph = g.finish().expect("the graph is well typed");
        let made = WeightTensor::from_host(HostTensor::new(&[1, 2], &[1f32, 2.0]));
        let folded = FoldedWeights::from([("made".to_string(), vec![made])]);
        let source = Numbers(BTreeMap::new());
        assert!(segments(&graph, &source, &FoldedWeights::new()).is_err());
        let found = segments(&graph, &source, &folded).expect("nothing is asked for");
        assert_eq!(numbers(&found, graph.outputs()[0].1.node), Some(vec![1.0, 2.0]));
    }
}
