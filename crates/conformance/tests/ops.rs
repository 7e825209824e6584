//! The op suite on the reference engine, as it is and behind every pass.

use std::collections::BTreeSet;

use conformance::ops::{self, Group};
use mlxcel_engine::{Engine, EngineError, Program, ReferenceEngine, WeightSource};
use mlxcel_ir::{Bindings, Graph, Op, Type, decompose, passes};

#[test]
fn the_reference_engine_agrees_with_torch() {
    ops::against_torch(&ReferenceEngine).assert_clean();
}

#[test]
fn the_reference_engine_keeps_the_rules_of_the_seam() {
    ops::seam(&ReferenceEngine).assert_clean();
}

/// The reference engine behind every pass, before and after composites are taken apart: the passes must not
/// change what a graph means.
struct Optimised;

impl Optimised {
    fn optimise(graph: &Graph) -> Result<Graph, EngineError> {
        let graph = passes::optimize(graph)?;
        let graph = decompose(&graph, &|_, _| false)?;
        Ok(passes::fuse_elementwise(&passes::optimize(&graph)?)?)
    }
}

impl Engine for Optimised {
    fn caps(&self) -> mlxcel_engine::Caps {
        mlxcel_engine::Caps { name: "optimised reference", ..ReferenceEngine.caps() }
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
        ReferenceEngine.compile(&Self::optimise(graph)?, weights, dims)
    }
}

/// The tag of every op, taken from the ops themselves: a new one fails to compile here until it is listed.
fn tag(op: &Op) -> &'static str {
    macro_rules! tags {
        ($($variant:ident),*) => {
            match op { $(Op::$variant { .. } => stringify!($variant),)* }
        };
    }
    tags!(
        Input,
        Weight,
        State,
        Constant,
        Iota,
        Size,
        Unary,
        Binary,
        Compare,
        Select,
        Cast,
        Reshape,
        Broadcast,
        Transpose,
        Slice,
        Concat,
        Pad,
        DynamicSlice,
        UpdateSlice,
        Gather,
        TakeAlong,
        Scatter,
        Reduce,
        Cumulative,
        Sort,
        DotGeneral,
        Conv,
        Dequantize,
        AllReduce,
        AllGather,
        If,
        While,
        Scan,
        Activation,
        Softmax,
        LayerNorm,
        RmsNorm,
        AddRmsNorm,
        GroupNorm,
        Rope,
        Attention,
        PagedAttention,
        Linear,
        Embedding,
        ExpertLinear,
        MoeRoute,
        TopK,
        ArgMax,
        Sample,
        SelectiveScan,
        CausalConv,
        Pool,
        Fft,
        Rfft,
        Irfft,
        Fused
    )
}

/// All but the exchanges of a group, which the tests of shards run.
const OPS: usize = 54;

fn tags(graph: &Graph, found: &mut BTreeSet<&'static str>) {
    for node in graph.nodes() {
        found.insert(tag(&node.op));
        node.regions.iter().for_each(|r| tags(r, found));
    }
}

#[test]
fn every_op_has_a_case() {
    let mut found = BTreeSet::new();
    for case in Group::ALL.into_iter().flat_map(|g| ops::table(g, 4)) {
        tags(&case.graph, &mut found);
    }
    assert_eq!(found.len(), OPS, "only {found:?} occur");
}

conformance::ops_suite!(the_reference_engine_behind_every_pass, Optimised);
