//! The suite must catch what other projects got wrong. Each test plants one known defect in the reference engine
//! and names the cases that have to fail.

use conformance::ops::{self, Group};
use mlxcel_engine::{Caps, Engine, EngineError, Program, ReferenceEngine, WeightSource};
use mlxcel_ir::{
    AttentionSpec, Bindings, Builder, DType, Dim, Graph, HostTensor, IrError, Node, Op, PoolKind, ReduceOp,
    Tensor, Type, Value,
};

/// What stands for a node's results in the defective engine, or `None` to leave the node alone.
type Defect = fn(&mut Graph, &Node, &[Value]) -> Result<Option<Vec<Value>>, IrError>;

/// The reference engine with a defect.
struct Defective(Defect);

impl Engine for Defective {
    fn caps(&self) -> Caps {
        Caps { name: "defective", ..ReferenceEngine.caps() }
    }

    fn native(&self, _: &Op, _: &[Type]) -> bool {
        false
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        ReferenceEngine.compile(&graph.rewrite(self.0)?, weights, dims)
    }
}

/// The cases that torch's results show to be wrong.
fn caught_by_torch(defect: Defect) -> Vec<String> {
    ops::against_torch(&Defective(defect)).failures.into_iter().map(|f| f.case).collect()
}

fn caught_by_the_table(defect: Defect, group: Group) -> Vec<String> {
    ops::against_reference(&Defective(defect), group).failures.into_iter().map(|f| f.case).collect()
}

#[track_caller]
fn includes(caught: &[String], wanted: &[&str]) {
    let missed: Vec<_> = wanted.iter().filter(|w| !caught.iter().any(|c| c == *w)).collect();
    assert!(missed.is_empty(), "{missed:?} did not notice; only {caught:?} did");
}

/// The same node with another op.
fn with(out: &mut Graph, node: &Node, inputs: &[Value], op: Op) -> Result<Option<Vec<Value>>, IrError> {
    let index = out.push(op, inputs.to_vec(), node.regions.clone(), &node.label)?;
    Ok(Some(out.results(index)))
}

/// A subgraph of the node's operands in its place.
fn instead(
    out: &mut Graph,
    inputs: &[Value],
    body: impl for<'b> FnOnce(&'b Builder, &[Tensor<'b>]) -> Vec<Tensor<'b>>,
) -> Result<Option<Vec<Value>>, IrError> {
    let b = Builder::new();
    let declare = |(i, v): (usize, &Value)| {
        let t = out.ty(*v);
        b.input(&format!("arg{i}"), t.dtype, t.shape.clone())
    };
    let arguments: Vec<_> = inputs.iter().enumerate().map(declare).collect();
    for (i, t) in body(&b, &arguments).into_iter().enumerate() {
        b.output(&format!("out{i}"), t);
    }
    drop(arguments);
    out.inline(&b.finish()?, inputs).map(Some)
}

fn cap_dropped(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let mut op = node.op.clone();
    match &mut op {
        Op::Attention(a) => a.softcap = None,
        Op::PagedAttention(p) => p.softcap = None,
        _ => return Ok(None),
    }
    with(out, node, x, op)
}

#[test]
fn a_dropped_soft_cap_is_caught() {
    includes(
        &caught_by_torch(cap_dropped),
        &["attention_soft_cap", "attention_everything", "paged_soft_cap"],
    );
    includes(
        &caught_by_the_table(cap_dropped, Group::Attention),
        &["soft cap bf16", "soft cap of a model f16"],
    );
    includes(&caught_by_the_table(cap_dropped, Group::Paged), &["soft cap f32", "everything bf16"]);
}

/// Masks as if the first query stood at the first key, as they may be made for a prompt.
fn offset_ignored(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let Op::Attention(spec) = &node.op else { return Ok(None) };
    if spec.mask || spec.sinks || !spec.causal {
        return Ok(None);
    }
    instead(out, x, |b, x| {
        let count = |n: Dim| b.iota(DType::I32, vec![n], 0);
        let (query, key) = (count(x[0].dim(1)).unsqueeze(1), count(x[1].dim(1)).unsqueeze(0));
        let causal = key.le(query);
        let keep = spec.window.map_or(causal, |w| causal & key.gt(query - w as f64));
        let bare = AttentionSpec { causal: false, window: None, ..spec.clone() };
        vec![b.attention([x[0], x[1], x[2]], Some(keep), None, bare)]
    })
}

#[test]
fn a_mask_that_ignores_the_key_offset_is_caught() {
    let wanted = ["attention_window_behind_a_cache", "attention_causal_behind_a_cache"];
    let caught = caught_by_torch(offset_ignored);
    includes(&caught, &wanted);
    assert!(!caught.iter().any(|c| c == "attention_window"), "without an offset the defect is harmless");
    let table = caught_by_the_table(offset_ignored, Group::Attention);
    includes(&table, &["window when decoding behind a cache f32", "window decode of a model bf16"]);
}

/// Key heads repeated as 0 1 0 1 0 1 where the query heads share them as 0 0 0 1 1 1.
fn heads_tiled(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let Op::Attention(spec) = &node.op else { return Ok(None) };
    instead(out, x, |b, x| {
        let heads = |t: Tensor<'_>| t.dim(2).as_fixed().expect("heads are fixed");
        let (q, kv) = (heads(x[0]), heads(x[1]));
        let order: Vec<i32> = (0..q as i32).map(|h| h % kv as i32).collect();
        let order = b.constant(HostTensor::new(&[q], &order));
        let operands = [&[x[0], x[1].gather(order, 2), x[2].gather(order, 2)], &x[3..]].concat();
        b.apply(Op::Attention(spec.clone()), &operands)
    })
}

#[test]
fn key_heads_repeated_in_the_wrong_order_are_caught() {
    includes(&caught_by_torch(heads_tiled), &["attention_of_shared_heads", "attention_causal"]);
    includes(&caught_by_the_table(heads_tiled, Group::Attention), &["causal decode of a model bf16"]);
}

fn top_from_the_wrong_end(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let Op::TopK { k } = node.op else { return Ok(None) };
    // The right set, smallest first.
    instead(out, x, |b, x| {
        let axis = x[0].rank() - 1;
        let [values, order] = x[0].top_k(k);
        let turn: Vec<i32> = (0..k as i32).rev().collect();
        let turn = b.constant(HostTensor::new(&[k], &turn));
        vec![values.gather(turn, axis), order.gather(turn, axis)]
    })
}

#[test]
fn a_threshold_from_the_wrong_end_of_a_top_k_is_caught() {
    includes(&caught_by_torch(top_from_the_wrong_end), &["top_of_distinct", "top_of_equals"]);
    includes(&caught_by_the_table(top_from_the_wrong_end, Group::Order), &["a top-k threshold"]);
}

fn sinks_forgotten(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let mut op = node.op.clone();
    match &mut op {
        Op::Attention(a) if a.sinks => a.sinks = false,
        Op::PagedAttention(p) if p.sinks => p.sinks = false,
        _ => return Ok(None),
    }
    with(out, node, &x[..x.len() - 1], op)
}

#[test]
fn forgotten_sinks_are_caught() {
    includes(&caught_by_torch(sinks_forgotten), &["attention_sinks", "attention_everything", "paged_sinks"]);
}

fn window_one_too_wide(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let mut op = node.op.clone();
    match &mut op {
        Op::Attention(a) => a.window = a.window.map(|w| w + 1),
        Op::PagedAttention(p) => p.window = p.window.map(|w| w + 1),
        _ => return Ok(None),
    }
    with(out, node, x, op)
}

#[test]
fn a_window_that_is_one_too_wide_is_caught() {
    let wanted = ["attention_window", "attention_window_both_ways", "paged_window", "paged_sinks"];
    includes(&caught_by_torch(window_one_too_wide), &wanted);
}

fn pairs_swapped(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let Op::Rope { interleaved, scale } = node.op else { return Ok(None) };
    with(out, node, x, Op::Rope { interleaved: !interleaved, scale })
}

#[test]
fn rotating_the_wrong_pairs_is_caught() {
    includes(&caught_by_torch(pairs_swapped), &["rope", "rope_partial", "rope_per_token"]);
}

fn padding_counted(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let Op::Pool { kind: PoolKind::Mean, window, strides, padding } = &node.op else { return Ok(None) };
    let size: usize = window.iter().product();
    instead(out, x, |_, x| vec![x[0].pool(PoolKind::Sum, window, strides, padding) / size as f64])
}

#[test]
fn a_mean_that_counts_padding_is_caught() {
    includes(&caught_by_torch(padding_counted), &["pools_1d", "pools_2d", "pools_3d"]);
}

fn last_of_equals(out: &mut Graph, node: &Node, x: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
    let Op::ArgMax { axis } = node.op else { return Ok(None) };
    instead(out, x, |b, x| {
        let n = x[0].dim(axis).as_fixed().expect("the table's rows are fixed");
        let top = x[0].eq(x[0].reduce_keep(ReduceOp::Max, axis));
        let place = b.iota(DType::I32, x[0].shape(), axis);
        vec![top.select(place, place.number(-(n as f64))).reduce(ReduceOp::Max, &[axis])]
    })
}

#[test]
fn taking_the_last_of_equals_is_caught() {
    includes(&caught_by_torch(last_of_equals), &["largest"]);
}

/// Otherwise the tests above would prove nothing.
#[test]
fn an_engine_without_a_defect_fails_nothing() {
    fn harmless(_: &mut Graph, _: &Node, _: &[Value]) -> Result<Option<Vec<Value>>, IrError> {
        Ok(None)
    }
    assert_eq!(caught_by_torch(harmless), [""; 0]);
}
