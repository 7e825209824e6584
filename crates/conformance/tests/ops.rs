//! The op suite, once per engine. An engine is added by one line at the end of this file.

use std::collections::BTreeSet;

use conformance::ops::{self, Group, Report};
use mlxcel_cpu::{CpuEngine, CpuOptions, SimdLevel};
use mlxcel_engine::{Engine, EngineError, Program, ReferenceEngine, WeightSource};
use mlxcel_ir::{Bindings, Graph, Op, Type, decompose, passes};

#[track_caller]
fn clean(report: Report) {
    assert!(report.cases > 0, "no case ran");
    assert!(report.is_clean(), "{report}");
}

/// All tests of an engine, one per group, so that a failure is named.
macro_rules! engine {
    ($module:ident, $engine:expr) => {
        mod $module {
            use super::*;

            fn engine() -> impl Engine {
                $engine
            }

            #[test]
            fn agrees_with_torch() {
                clean(ops::against_torch(&engine()));
            }

            #[test]
            fn keeps_the_rules_of_the_seam() {
                clean(ops::seam(&engine()));
            }

            engine!(@group agrees_with_the_reference_on_elementwise_ops, Elementwise);
            engine!(@group agrees_with_the_reference_on_movement, Movement);
            engine!(@group agrees_with_the_reference_on_order, Order);
            engine!(@group agrees_with_the_reference_on_norms_and_rope, Norm);
            engine!(@group agrees_with_the_reference_on_contractions, Contraction);
            engine!(@group agrees_with_the_reference_on_packed_matrices, Packed);
            engine!(@group agrees_with_the_reference_on_attention, Attention);
            engine!(@group agrees_with_the_reference_on_paged_attention, Paged);
            engine!(@group agrees_with_the_reference_on_routing_and_sampling, Choice);
            engine!(@group agrees_with_the_reference_on_recurrent_layers, Recurrent);
            engine!(@group agrees_with_the_reference_on_pools_and_transforms, Signals);
            engine!(@group agrees_with_the_reference_on_control_flow, Control);
        }
    };
    (@group $name:ident, $group:ident) => {
        #[test]
        fn $name() {
            clean(ops::against_reference(&engine(), Group::$group));
        }
    };
}

#[test]
fn the_reference_engine_agrees_with_torch() {
    clean(ops::against_torch(&ReferenceEngine));
}

#[test]
fn the_reference_engine_keeps_the_rules_of_the_seam() {
    clean(ops::seam(&ReferenceEngine));
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

fn cpu(options: CpuOptions) -> CpuEngine {
    CpuEngine::new(options).expect("threads can be started")
}

/// A machine that has no AVX2 tries its best level once more.
fn avx2() -> Option<SimdLevel> {
    Some(SimdLevel::Avx2).filter(|level| level.is_available())
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

engine!(the_reference_engine_behind_every_pass, Optimised);
engine!(the_cpu_engine, cpu(CpuOptions::default()));
engine!(
    the_cpu_engine_on_one_plain_core,
    cpu(CpuOptions { threads: Some(1), level: Some(SimdLevel::Baseline), ..CpuOptions::default() })
);
engine!(
    the_cpu_engine_on_three_threads_with_avx2,
    cpu(CpuOptions { threads: Some(3), level: avx2(), ..CpuOptions::default() })
);
