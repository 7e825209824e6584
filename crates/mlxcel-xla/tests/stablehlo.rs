//! Every module that is written passes a real parser and verifier of StableHLO, that of IREE's compiler, which
//! `cargo xtask test` fetches: per op and per family, in every form that an executor asks for. Nothing is run here.
#![cfg(feature = "iree")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use conformance::models::{Fixture, fixtures};
use conformance::ops::{self, Group};
use mlxcel_ir::passes::optimize;
use mlxcel_ir::{Bindings, DType, Graph};
use mlxcel_xla::iree::Compiler;
use mlxcel_xla::{EmitOptions, StepKind, module};

/// Tokens in a block, as the engine has it.
const BLOCK: usize = 16;

fn compiler() -> Compiler {
    let path = std::env::var_os("MLXCEL_TEST_IREE").expect("`cargo xtask test` sets MLXCEL_TEST_IREE");
    Compiler::open(&PathBuf::from(path)).unwrap()
}

/// Modules as the executors have them written: of a processor, of an accelerator, of IREE, of IREE on a GPU.
fn forms() -> [EmitOptions; 4] {
    let plain = EmitOptions::default();
    let guarded = EmitOptions { guarded_indices: true, total_orders: true, ..plain };
    let narrow = EmitOptions { narrow_products: true, joined_inputs: true, held_updates: true, ..plain };
    [plain, narrow, guarded, EmitOptions { for_iree_gpu: true, ..guarded }]
}

fn verify(compiler: &Compiler, what: &str, graph: &Graph, sizes: &Bindings, kind: StepKind) {
    let outputs: Vec<&str> = graph.outputs().iter().map(|(name, _)| name.as_str()).collect();
    for options in forms() {
        let written = module(graph, sizes, &outputs, kind, options).unwrap_or_else(|e| panic!("{what}: {e}"));
        compiler.verify(what, &written.text).unwrap_or_else(|e| panic!("{options:?}: {e}"));
    }
}

#[test]
fn a_module_that_breaks_a_rule_is_refused() {
    let wrong = "module { func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> {\n\
        %y = stablehlo.reshape %x : (tensor<2xf32>) -> tensor<3xf32>\n return %y : tensor<3xf32> } }";
    let error = compiler().verify("a reshape", wrong).err().unwrap().to_string();
    assert!(error.contains("a reshape") && error.contains("number of"), "{error}");
}

#[test]
fn every_op_is_written_as_stablehlo_has_it() {
    let compiler = compiler();
    for case in Group::ALL.iter().flat_map(|group| ops::table(*group, BLOCK)) {
        let graph = optimize(&case.graph).unwrap();
        let sizes = case.steps[0].feeds.bind(&graph, &case.dims).unwrap();
        let sizes = sizes.into_iter().chain(case.dims.clone()).collect();
        verify(&compiler, &case.name, &graph, &sizes, StepKind::default());
    }
}

#[test]
fn every_family_is_written_as_stablehlo_has_it() {
    let compiler = compiler();
    let families = std::fs::read_dir(fixtures("golden")).unwrap().map(|entry| entry.unwrap().path());
    // Models that embed have no tokens to compare, and fixtures of another form.
    let families = families.filter(|folder| !folder.ends_with("bert")).map(|folder| folder.join("f32"));
    let families: Vec<PathBuf> = families.filter(|folder| folder.is_dir()).collect();
    assert!(families.len() > 15, "the fixtures are there");
    for folder in families {
        let fixture = Fixture::open(&folder);
        for dtype in [DType::F32, DType::BF16] {
            let graph = optimize(&fixture.model_in(dtype).graph).unwrap();
            for (tokens, sequences, is_greedy) in [(4, 4, true), (4, 4, false), (32, 1, true)] {
                let what = format!("{} in {dtype}, {tokens} tokens", folder.display());
                let narrow_attention = dtype == DType::BF16;
                let kind = StepKind { is_split: true, is_greedy, narrow_attention, ..StepKind::default() };
                verify(&compiler, &what, &graph, &sizes(tokens, sequences), kind);
            }
        }
    }
}

fn sizes(tokens: usize, sequences: usize) -> Bindings {
    let all = [
        ("tokens", tokens),
        ("sequences", sequences),
        ("rows", sequences),
        ("pages", 16),
        ("block", BLOCK),
        ("blocks", 64),
        ("slots", 8),
    ];
    all.into_iter().map(|(name, n)| (name.to_string(), n)).collect()
}
