//! Small graphs: what members compute together, what they read, and what is refused.
#![allow(clippy::single_range_in_vec_init, reason = "a cut has several ranges, or one")]

use std::sync::Arc;

use super::super::testing;
use super::*;
use crate::builder::{Builder, PagedBatch, Tensor};
use crate::dtype::{DType, GgufFormat, QuantFormat};
use crate::interp::{Array, Data, Evaluated, Group, run_in_group};
use crate::op::{Activation, PagedSpec, RouteScore, RouteSpec};
use crate::shape;
use crate::shape::{Bindings, Dim};

/// Widths of a small model.
#[derive(Clone, Copy)]
struct Widths {
    heads: usize,
    kv_heads: usize,
    inner: usize,
    vocabulary: usize,
}

const EVEN: Widths = Widths { heads: 4, kv_heads: 2, inner: 6, vocabulary: 10 };

fn weight<'g>(b: &'g Builder, name: &str, shape: &[usize]) -> Tensor<'g> {
    b.weight(name, DType::F32, shape)
}

fn spec() -> PagedSpec {
    PagedSpec { scale: 0.5, window: None, softcap: None, sinks: false, value_dim: None }
}

fn batch(b: &Builder) -> PagedBatch<'_> {
    let per_token = |n: &str| b.input(n, DType::I32, shape!["tokens"]);
    PagedBatch {
        positions: per_token("positions"),
        seq_ids: per_token("seq_ids"),
        slot_mapping: per_token("slot_mapping"),
        block_table: b.input("block_table", DType::I32, shape!["sequences", "pages"]),
        cache: None,
    }
}

/// Attention with joined projections, a gated layer with biases, and an output layer.
fn decoder(w: Widths) -> Graph {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 8]);
    let (q, kv) = (w.heads * 4, w.kv_heads * 4);
    let joined = x.linear(weight(&b, "qkv", &[q + 2 * kv, 8]), Some(weight(&b, "qkv_bias", &[q + 2 * kv])));
    let heads = |from: usize, n: usize| joined.slice(1, from, from + n * 4).reshape(shape!["tokens", n, 4]);
    let (k, v) = (heads(q, w.kv_heads), heads(q + kv, w.kv_heads));
    let out = b.paged_attention((heads(0, w.heads), k, Some(v)), batch(&b), None, 0, spec());
    let out = out.reshape(shape!["tokens", q]).linear(weight(&b, "o", &[8, q]), None);
    let x = x + out;
    let gate = x.linear(weight(&b, "gate", &[w.inner, 8]), None).activation(Activation::Silu);
    let up = x.linear(weight(&b, "up", &[w.inner, 8]), Some(weight(&b, "up_bias", &[w.inner])));
    let down = (gate * up).linear(weight(&b, "down", &[8, w.inner]), Some(weight(&b, "down_bias", &[8])));
    let x = (x + down).rms_norm(1e-5, Some(weight(&b, "norm", &[8])));
    b.output("logits", x.linear(weight(&b, "head", &[w.vocabulary, 8]), None) * 0.5);
    b.finish().unwrap()
}

/// A member's leaf: what the whole graph's leaf has there.
fn leaf(node: &Node, cuts: &BTreeMap<String, Cut>, bindings: &Bindings) -> Array {
    let Op::Weight { name, pieces, .. } = &node.op else { return testing::leaf(node, bindings) };
    let Some(cut) = cuts.get(&pieces[0]) else { return testing::leaf(node, bindings) };
    let original = name.split(" [").next().unwrap();
    let whole = Op::Weight {
        name: original.to_string(),
        dtype: DType::F32,
        shape: cut.shape.iter().map(|&d| Dim::fixed(d)).collect(),
        pieces: vec![cut.tensor.clone()],
    };
    let mut alone = Graph::default();
    alone.push(whole, vec![], vec![], "").unwrap();
    let whole = testing::leaf(&alone.nodes()[0], bindings);
    let inner: usize = cut.shape[cut.axis + 1..].iter().product();
    let picked = whole.floats().iter().enumerate().filter(|(i, _)| {
        let place = i / inner % cut.shape[cut.axis];
        cut.ranges.iter().any(|r| r.contains(&place))
    });
    let values = picked.map(|(_, v)| if cut.is_zero { 0.0 } else { *v }).collect();
    let shape = node.types[0].shape.iter().map(|d| d.as_fixed().unwrap()).collect();
    Array { dtype: DType::F32, shape, data: Data::Float(values) }
}

/// Runs all members at once, each in its thread.
fn evaluate(graph: &Graph, members: usize) -> Vec<Evaluated> {
    let group = Group::new(members);
    let member = |rank: usize| {
        let Sharded { graph, cuts } = shard(graph, Member { rank, members }).unwrap();
        let graph = crate::decompose(&graph, &|_, _| false).unwrap();
        let bindings: Bindings = graph.symbols().into_iter().map(|s| (s.to_string(), 3)).collect();
        let mut provide = |node: &Node| Ok(Arc::new(leaf(node, &cuts, &bindings)));
        let mut exchange = |node: &Node, mine: &Array| group.exchange(rank, node, mine);
        run_in_group(&graph, &bindings, &mut provide, &mut exchange).unwrap()
    };
    std::thread::scope(|scope| {
        let member = &member;
        let threads: Vec<_> = (0..members).map(|rank| scope.spawn(move || member(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn assert_same(graph: &Graph, members: usize) {
    let whole = testing::evaluate(graph);
    for done in evaluate(graph, members) {
        for ((name, expected), (_, got)) in whole.outputs.iter().zip(&done.outputs) {
            assert_eq!(expected.shape, got.shape);
            let worst = expected.floats().iter().zip(got.floats()).map(|(a, b)| (a - b).abs());
            let worst = worst.fold(0.0, f64::max);
            assert!(worst < 1e-9, "{name} differs by {worst}");
        }
    }
}

#[test]
fn members_together_compute_what_one_does_alone() {
    assert_same(&decoder(EVEN), 2);
    assert_same(&decoder(Widths { heads: 6, kv_heads: 3, inner: 9, vocabulary: 12 }), 3);
    assert_same(&decoder(Widths { kv_heads: 1, ..EVEN }), 4);
    // Neither the gated layer nor the output layer can be shared: they are computed by everybody.
    assert_same(&decoder(Widths { inner: 5, vocabulary: 11, ..EVEN }), 2);
}

#[test]
fn a_layer_is_two_sums_and_the_output_layer_one_gathering() {
    let sharded = shard(&decoder(EVEN), Member { rank: 1, members: 2 }).unwrap();
    let count = |op: &str| testing::ops(&sharded.graph).iter().filter(|o| *o == op).count();
    assert_eq!((count("all_reduce"), count("all_gather")), (2, 1));
}

#[test]
fn a_member_reads_its_share_of_every_segment() {
    let sharded = shard(&decoder(EVEN), Member { rank: 1, members: 2 }).unwrap();
    let cut = |tensor: &str| sharded.cuts.values().find(|c| c.tensor == tensor).unwrap();
    // Queries, keys and values of 16, 8 and 8 rows.
    assert_eq!((cut("qkv").axis, cut("qkv").ranges.clone()), (0, vec![8..16, 20..24, 28..32]));
    assert_eq!((cut("o").axis, cut("o").ranges.clone()), (1, vec![8..16]));
    assert!(cut("down_bias").is_zero && !cut("up_bias").is_zero);
    let cache = sharded.graph.states().next().unwrap().1;
    assert_eq!(cache.types[0].shape, shape!["blocks", "block", 1, 4]);
}

#[test]
fn attention_that_cannot_be_shared_is_refused_by_name() {
    let refused =
        |w: Widths, members: usize| shard(&decoder(w), Member { rank: 0, members }).unwrap_err().to_string();
    let error = refused(Widths { heads: 6, kv_heads: 3, ..EVEN }, 2);
    assert!(error.contains("k_cache.0") && error.contains("3 heads of keys"), "{error}");
    let error = refused(EVEN, 3);
    assert!(error.contains("paged_attention") && error.contains("3 members"), "{error}");
}

#[test]
fn packed_rows_are_cut_between_blocks_only() {
    let q8 = DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0));
    let graph = |inner: usize| {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 64]);
        let up = x.linear(b.weight("up", q8, &[inner, 64]), None);
        b.output("y", up.exp().linear(b.weight("down", q8, &[64, inner]), None));
        b.finish().unwrap()
    };
    let axes = |inner: usize| {
        let sharded = shard(&graph(inner), Member { rank: 0, members: 2 }).unwrap();
        sharded.cuts.values().map(|c| (c.tensor.clone(), c.axis)).collect::<Vec<_>>()
    };
    assert_eq!(axes(128), [("down".to_string(), 1), ("up".to_string(), 0)]);
    // Halves of 48 are not made of blocks of 32, so both layers are everybody's.
    assert!(axes(96).iter().all(|(tensor, _)| tensor != "down"));
}

#[test]
fn experts_share_their_inner_width_and_are_added_up_once() {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["tokens", 4]);
    let route = RouteSpec {
        top_k: 2,
        score: RouteScore::Softmax,
        renormalize: true,
        scale: 1.0,
        groups: None,
        correction: false,
    };
    let logits = x.linear(weight(&b, "router", &[4, 4]), None);
    let routed = b.apply(Op::MoeRoute(route), &[logits]);
    let up = x.reshape(shape!["tokens", 1, 4]).expert_linear(weight(&b, "up", &[4, 6, 4]), routed[1], None);
    let bias = weight(&b, "bias", &[4, 4]);
    let down = up.exp().expert_linear(weight(&b, "down", &[4, 4, 6]), routed[1], Some(bias));
    let weighed = down * routed[0].reshape(shape!["tokens", 2, 1]);
    b.output("y", weighed.reduce(crate::op::ReduceOp::Sum, &[1]) + x);
    let graph = b.finish().unwrap();
    assert_same(&graph, 2);
    let sharded = shard(&graph, Member { rank: 0, members: 2 }).unwrap();
    let sums = testing::ops(&sharded.graph).iter().filter(|o| *o == "all_reduce").count();
    assert_eq!(sums, 1, "after the experts of a token are added up");
}

#[test]
fn an_exchange_has_no_meaning_alone() {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape![2]);
    b.output("y", b.apply(Op::AllReduce, &[x])[0]);
    let graph = b.finish().unwrap();
    let mut provide = |node: &Node| Ok(Arc::new(testing::leaf(node, &Bindings::new())));
    let error = crate::interp::run(&graph, &Bindings::new(), &mut provide).unwrap_err();
    assert_eq!(
        error.to_string(),
        "all_reduce needs the other members of a group, and this program runs alone"
    );
}
