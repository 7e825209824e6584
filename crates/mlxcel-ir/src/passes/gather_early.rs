//! Takes the wanted rows of a step's tokens as early as possible: where all that is read of a value is the same rows of
//! it, those are computed and no others. After the last layer's attention a prompt needs the row that is sampled alone,
//! so its output, its feed-forward block and what follows are computed for that one; a chunk that nothing is sampled
//! from computes none.
//!
//! Only what treats every row alike, whatever its operands, is computed for fewer of them; anything else (attention, a
//! scan over tokens) ends the way up, and rows are taken there.

use std::collections::HashMap;

use super::Rebuild;
use crate::error::IrError;
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::shape::{Dim, Shape};

/// The axis that rows are taken of.
const ROWS: usize = 0;

/// The graph with rows taken before what is computed row by row. Which rows is said by an input.
pub fn gather_early(graph: &Graph) -> Result<Graph, IrError> {
    let wanted = wanted(graph);
    let mut early = Early { r: Rebuild::new(graph), wanted: &wanted, taken: HashMap::new() };
    for (i, node) in graph.nodes().iter().enumerate() {
        if let Some(Wanted::Rows(rows)) = wanted[i] {
            early.narrow(i, rows)?;
        } else if let Some((x, rows)) = taken_rows(graph, node) {
            let v = early.rows_of(x, rows, &node.label)?;
            early.r.set(i, vec![v]);
        } else {
            early.emit(i)?;
        }
    }
    early.r.finish()
}

/// What is read of all results of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    All,
    /// Those that an input names.
    Rows(Value),
}

/// What is wanted of every node; `Rows` only where a node can be computed for these alone.
fn wanted(graph: &Graph) -> Vec<Option<Wanted>> {
    let mut wanted: Vec<Option<Wanted>> = vec![None; graph.nodes().len()];
    let read = |wanted: &mut Vec<Option<Wanted>>, v: Value, what: Wanted| {
        let of = &mut wanted[v.node as usize];
        *of = Some(if of.is_none_or(|before| before == what) { what } else { Wanted::All });
    };
    for (_, v) in graph.outputs().iter().chain(graph.updates()) {
        read(&mut wanted, *v, Wanted::All);
    }
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        let Some(of_node) = wanted[i] else { continue };
        let by_row = match (taken_rows(graph, node), of_node) {
            (Some((_, rows)), Wanted::All) => Some((vec![true, false], rows)),
            (None, Wanted::Rows(rows)) => row_operands(graph, node).map(|operands| (operands, rows)),
            _ => None,
        };
        if by_row.is_none() {
            wanted[i] = Some(Wanted::All);
        }
        for (operand, v) in node.inputs.iter().enumerate() {
            let what = match &by_row {
                Some((operands, rows)) if operands[operand] => Wanted::Rows(*rows),
                _ => Wanted::All,
            };
            read(&mut wanted, *v, what);
        }
    }
    wanted
}

/// What a node takes rows of, and which, if an input names them.
fn taken_rows(graph: &Graph, node: &Node) -> Option<(Value, Value)> {
    let (Op::Gather { axis: ROWS }, [x, rows]) = (&node.op, &node.inputs[..]) else { return None };
    let is_named = matches!(graph.node(*rows).op, Op::Input { .. }) && graph.ty(*rows).rank() == 1;
    // A table that is looked up has a fixed number of rows, and perhaps more of them are taken than there are.
    let is_step = graph.ty(*x).shape[ROWS].as_symbol().is_some();
    (is_named && is_step).then_some((*x, *rows))
}

/// Which operands of a node have the rows of its results, row for row; `None` if a row needs more than its own.
fn row_operands(graph: &Graph, node: &Node) -> Option<Vec<bool>> {
    let rank = node.types[0].rank();
    let rows = node.types[0].shape.first()?;
    rows.as_symbol()?;
    if !node.types.iter().all(|t| t.shape.first() == Some(rows)) {
        return None;
    }
    let has_rows = |operand: usize| graph.ty(node.inputs[operand]).shape.first() == Some(rows);
    let of = |some: &[usize]| {
        let is_one = |operand: usize| some.contains(&operand);
        some.iter().all(|&o| has_rows(o)).then(|| (0..node.inputs.len()).map(is_one).collect())
    };
    match &node.op {
        op if op.is_elementwise() => {
            let is_one = |v: &Value| graph.ty(*v).rank() == rank && graph.ty(*v).shape[ROWS] == *rows;
            Some(node.inputs.iter().map(is_one).collect())
        }
        Op::Reshape { .. } | Op::AllReduce => of(&[0]),
        Op::Broadcast { .. } if graph.ty(node.inputs[0]).rank() == rank => of(&[0]),
        Op::Transpose { perm } if perm[ROWS] == ROWS => of(&[0]),
        Op::Slice { axis, .. } | Op::Softmax { axis } if *axis != ROWS => of(&[0]),
        Op::Concat { axis } if *axis != ROWS => of(&(0..node.inputs.len()).collect::<Vec<_>>()),
        Op::Reduce { axes, .. } if !axes.contains(&ROWS) => of(&[0]),
        Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::MoeRoute(_) | Op::TopK { .. } | Op::Linear { .. } => {
            // The last axis is another one.
            of(&[0]).filter(|_| rank > 1)
        }
        Op::ExpertLinear { .. } => of(&[0, 2]),
        _ => None,
    }
}

/// The graph as it is made, and which rows were taken of its values.
struct Early<'g> {
    r: Rebuild<'g>,
    wanted: &'g [Option<Wanted>],
    taken: HashMap<(Value, Value), Value>,
}

impl Early<'_> {
    /// Copies a node unless it was needed before its turn, as inputs that name rows are.
    fn emit(&mut self, index: usize) -> Result<(), IrError> {
        if self.r.map[index].is_some() {
            return Ok(());
        }
        self.r.copy(index, self.r.source.nodes()[index].regions.clone())
    }

    /// Computes a node for some rows.
    fn narrow(&mut self, index: usize, rows: Value) -> Result<(), IrError> {
        let node = &self.r.source.nodes()[index];
        let by_row = row_operands(self.r.source, node).expect("a node that is computed row by row");
        let mut inputs = vec![];
        for (&v, by_row) in node.inputs.iter().zip(by_row) {
            inputs.push(if by_row { self.rows_of(v, rows, &node.label)? } else { self.r.value(v) });
        }
        let count = self.r.source.ty(rows).shape[ROWS].clone();
        let new = self.r.out.push(with_rows(&node.op, count), inputs, vec![], &node.label)?;
        let results = self.r.out.results(new);
        self.r.set(index, results);
        Ok(())
    }

    /// Some rows of an old value: all of a new one that has no others.
    fn rows_of(&mut self, v: Value, rows: Value, label: &str) -> Result<Value, IrError> {
        if let Some(Wanted::Rows(_)) = self.wanted[v.node as usize] {
            return Ok(self.r.value(v));
        }
        if let Some(&taken) = self.taken.get(&(v, rows)) {
            return Ok(taken);
        }
        self.emit(rows.node as usize)?;
        let inputs = vec![self.r.value(v), self.r.value(rows)];
        let new = self.r.out.push(Op::Gather { axis: ROWS }, inputs, vec![], label)?;
        let taken = self.r.out.results(new)[0];
        self.taken.insert((v, rows), taken);
        Ok(taken)
    }
}

/// The op for another number of rows, where it says how many.
fn with_rows(op: &Op, rows: Dim) -> Op {
    let with = |shape: &Shape| {
        shape.iter().cloned().enumerate().map(|(i, d)| if i == ROWS { rows.clone() } else { d }).collect()
    };
    match op {
        Op::Reshape { shape } => Op::Reshape { shape: with(shape) },
        Op::Broadcast { shape } => Op::Broadcast { shape: with(shape) },
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{ops, same_results};
    use crate::{Activation, Builder, DType, ReduceOp, RouteScore, RouteSpec, Tensor, shape};

    /// The numbers of rows that the nodes of some op have.
    fn counts(graph: &Graph, op: &str) -> Vec<String> {
        let of = graph.nodes().iter().filter(|n| n.op.name() == op);
        of.map(|n| n.types[0].shape[0].to_string()).collect()
    }

    fn numbers<'g>(b: &'g Builder, name: &str) -> Tensor<'g> {
        b.input(name, DType::F32, shape!["tokens", 8])
    }

    fn wanted<'g>(b: &'g Builder) -> Tensor<'g> {
        b.input("wanted", DType::I32, shape!["rows"])
    }

    #[test]
    fn what_follows_the_last_mix_of_rows_is_computed_for_the_wanted_ones() {
        let b = Builder::new();
        let x = numbers(&b, "x");
        let (norm, weight) = (b.weight("norm", DType::F32, &[8]), b.weight("w", DType::F32, &[8, 8]));
        // A cumulative sum over tokens needs all of them, and so does what it is made of.
        let mixed = x.rms_norm(1e-6, Some(norm)).cumulative(ReduceOp::Sum, 0);
        let x = x + mixed.linear(weight, None);
        let x = x + x.rms_norm(1e-6, Some(norm)).linear(weight, None).activation(Activation::Silu);
        // The input is declared last, and its rows are taken before that.
        b.output("y", x.gather(wanted(&b), 0));
        let g = b.finish().unwrap();
        let early = gather_early(&g).unwrap();
        assert_eq!(early.verify(), Ok(()));
        assert_eq!(counts(&early, "gather"), ["rows", "rows"]);
        assert_eq!(counts(&early, "cumulative"), ["tokens"]);
        assert_eq!(counts(&early, "rms_norm"), ["tokens", "rows"]);
        assert_eq!(counts(&early, "linear"), ["rows", "rows"]);
        same_results(&g, &early);
        assert_eq!(gather_early(&early).unwrap(), early);
    }

    #[test]
    fn every_op_that_keeps_rows_apart_is_computed_for_fewer() {
        let b = Builder::new();
        let x = numbers(&b, "x").exp();
        let rows = wanted(&b);
        let (norm, weight) = (b.weight("norm", DType::F32, &[8]), b.weight("w", DType::F32, &[8, 8]));
        let take = |name: &str, y: Tensor<'_>| b.output(name, y.gather(rows, 0));
        take("select", x.gt(x * 0.5).select(x, norm));
        take(
            "broadcast",
            x.reduce(ReduceOp::Sum, &[1]).reshape(shape!["tokens", 1]).broadcast(shape!["tokens", 8]),
        );
        take("transpose", x.reshape(shape!["tokens", 2, 4]).transpose(&[0, 2, 1]));
        take("concat", b.concat(&[x.slice(1, 0, 3), x.softmax(1)], 1));
        take("norm", x.layer_norm(1e-6, Some(norm), None));
        take("values", x.top_k(2)[0]);
        let route = RouteSpec {
            top_k: 2,
            score: RouteScore::Softmax,
            renormalize: true,
            scale: 1.0,
            groups: None,
            correction: false,
        };
        let [shares, experts] = x.moe_route(route, None);
        let weights = b.weight("experts", DType::F32, &[8, 4, 8]);
        let of_experts = x.reshape(shape!["tokens", 1, 8]).expert_linear(weights, experts, None);
        take("experts", of_experts * shares.reshape(shape!["tokens", 2, 1]));
        take("linear", x.linear(weight, None));
        let g = b.finish().unwrap();
        let early = gather_early(&g).unwrap();
        assert_eq!(early.verify(), Ok(()));
        // Rows are taken of the input alone, and all that is left of all tokens is that.
        assert_eq!(counts(&early, "gather"), ["rows"]);
        let left = early.nodes().iter().filter(|n| n.types[0].shape.contains(&"tokens".into()));
        assert_eq!(left.count(), 1, "{:?}", ops(&early));
        same_results(&g, &early);
    }

    #[test]
    fn members_of_a_group_exchange_the_wanted_rows() {
        let b = Builder::new();
        let x = numbers(&b, "x").exp();
        b.output("y", b.apply(Op::AllReduce, &[x])[0].gather(wanted(&b), 0));
        let early = gather_early(&b.finish().unwrap()).unwrap();
        assert_eq!(ops(&early), ["input", "input", "gather", "unary", "all_reduce"]);
    }

    #[test]
    fn what_mixes_rows_or_is_read_by_others_keeps_all_of_them() {
        let b = Builder::new();
        let (x, rows) = (numbers(&b, "x"), wanted(&b));
        let others = b.input("others", DType::I32, shape!["rows"]);
        let take = |name: &str, y: Tensor<'_>| b.output(name, y.gather(rows, 0));
        take("softmax", x.softmax(0));
        take("concat", b.concat(&[x.exp(), x], 0).slice(0, 0, "tokens"));
        let line = x.reduce(ReduceOp::Sum, &[1]);
        take("broadcast", line.broadcast(shape!["tokens", "tokens"]));
        let both = x.tanh();
        take("one", both);
        b.output("another", both.gather(others, 0));
        let all = x.abs();
        take("some", all);
        b.output("all", all);
        // Rows that are computed, and rows of a table.
        b.output("computed", x.sqrt().gather(rows + rows, 0));
        b.output("table", b.weight("t", DType::F32, &[3, 8]).exp().gather(rows, 0));
        let g = b.finish().unwrap();
        assert_eq!(gather_early(&g).unwrap(), g);
    }
}
