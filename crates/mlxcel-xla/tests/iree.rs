//! Every family on IREE's driver for the processor, whose compiler `cargo xtask test` fetches. Compiling takes seconds
//! for each module, so that most families run one alone: their prompts go in token by token, as decodes do.
#![cfg(feature = "iree")]

mod capacity;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use conformance::models::{F32_TOLERANCE, Fixture, check_batched, check_greedy, fixtures};
use mlxcel_engine::buckets::{Buckets, Ladder};
use mlxcel_xla::iree::{Compiler, IreeExecutor, IreeOptions};
use mlxcel_xla::{Effort, XlaEngine, XlaOptions};

/// One device for all tests of the process.
fn engine(blocks: usize) -> XlaEngine {
    static EXECUTOR: OnceLock<Arc<IreeExecutor>> = OnceLock::new();
    let open = || {
        let compiler = std::env::var_os("MLXCEL_TEST_IREE");
        let compiler = compiler.expect("MLXCEL_TEST_IREE names IREE's compiler; `cargo xtask test` sets it");
        let compiler = Compiler::open(&PathBuf::from(compiler)).expect("the compiler opens");
        let options = IreeOptions { effort: Effort::Little, ..IreeOptions::default() };
        Arc::new(IreeExecutor::open(compiler, &options).expect("the processor opens"))
    };
    let buckets = Buckets {
        sequences: Ladder { least: 4 },
        tokens: Ladder { least: 128 },
        pages: Ladder { least: blocks },
        ..XlaOptions::default().buckets
    };
    XlaEngine::new(EXECUTOR.get_or_init(open).clone(), XlaOptions { buckets })
}

fn processor() -> XlaEngine {
    engine(16)
}

macro_rules! families {
    ($($family:ident),* $(,)?) => {$(
        #[test]
        fn $family() {
            let fixture = Fixture::open(&fixtures("golden").join(stringify!($family)).join("f32"));
            check_greedy(&processor(), &fixture, 1, F32_TOLERANCE);
        }
    )*};
}

mod matches_transformers_on {
    use super::*;

    conformance::every_family!(families);
}

#[test]
fn whole_prompts_and_batches_match_transformers_as_single_tokens_do() {
    let fixture = Fixture::open(&fixtures("golden").join("llama").join("f32"));
    check_greedy(&processor(), &fixture, usize::MAX, F32_TOLERANCE);
    check_batched(&processor(), &fixture, F32_TOLERANCE);
}

#[test]
fn a_context_that_outgrows_its_module_goes_on_with_the_same_tokens() {
    capacity::check(engine);
}
