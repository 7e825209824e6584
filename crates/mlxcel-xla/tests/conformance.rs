//! The suite that every engine passes, on XLA's CPU plugin, which `cargo xtask test` fetches. Compiling is what takes
//! time here, so steps have two shapes only, and of most families only the checkpoint in f32 is run.

mod capacity;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use conformance::models::{
    Depth, F32_TOLERANCE, Fixture, check_batched, check_bf16, check_family, check_greedy, fixtures,
};
use conformance::ops::{self, Group};
use conformance::scheduled::{SEEDED, check_seeds};
use mlxcel_engine::buckets::{Buckets, Ladder};
use mlxcel_engine::weights::Bytes;
use mlxcel_ir::DType;
use mlxcel_xla::pjrt::{Effort, PjrtExecutor, PjrtOptions};
use mlxcel_xla::{Buffer, EmitOptions, Executable, Executor, XlaEngine, XlaError, XlaOptions};

/// One client for all tests of the process but one.
fn executor() -> Arc<PjrtExecutor> {
    static EXECUTOR: OnceLock<Arc<PjrtExecutor>> = OnceLock::new();
    EXECUTOR.get_or_init(|| open(Effort::Little)).clone()
}

fn open(effort: Effort) -> Arc<PjrtExecutor> {
    let plugin = std::env::var_os("MLXCEL_TEST_XLA_CPU");
    let plugin = plugin.expect("MLXCEL_TEST_XLA_CPU names XLA's plugin; `cargo xtask test` sets it");
    let options = PjrtOptions { device: "cpu".to_string(), effort, ..PjrtOptions::default() };
    Arc::new(PjrtExecutor::open(&PathBuf::from(plugin), &options).expect("the plugin opens"))
}

fn engine(executor: Arc<dyn Executor>, blocks: usize) -> XlaEngine {
    let buckets = Buckets {
        sequences: Ladder { least: 4 },
        tokens: Ladder { least: 128 },
        pages: Ladder { least: blocks },
        ..XlaOptions::default().buckets
    };
    XlaEngine::new(executor, XlaOptions { buckets })
}

fn processor() -> XlaEngine {
    engine(executor(), 16)
}

/// The processor, taken for an accelerator: weights are folded and stay packed, inputs come as one array.
struct Accelerator(Arc<PjrtExecutor>);

impl Executor for Accelerator {
    fn device(&self) -> String {
        self.0.device()
    }

    fn is_cpu(&self) -> bool {
        false
    }

    fn emit_options(&self) -> EmitOptions {
        EmitOptions { narrow_products: true, joined_inputs: true, ..self.0.emit_options() }
    }

    fn compile(&self, what: &str, module: &str) -> Result<Arc<dyn Executable>, XlaError> {
        self.0.compile(what, module)
    }

    fn upload(&self, dtype: DType, sizes: &[usize], bytes: Bytes) -> Result<Buffer, XlaError> {
        self.0.upload(dtype, sizes, bytes)
    }

    fn zeros(&self, dtype: DType, sizes: &[usize]) -> Result<Buffer, XlaError> {
        self.0.zeros(dtype, sizes)
    }
}

#[test]
fn the_processor_has_no_memory_of_its_own() {
    assert_eq!(executor().free_memory(), None);
}

fn accelerator() -> XlaEngine {
    engine(Arc::new(Accelerator(executor())), 16)
}

#[test]
fn what_is_done_for_accelerators_gives_the_same_tokens() {
    let plain = Fixture::open(&fixtures("golden").join("llama").join("f32"));
    check_greedy(&accelerator(), &plain, usize::MAX, F32_TOLERANCE);
    check_batched(&accelerator(), &plain, F32_TOLERANCE);
    let packed = Fixture::open_gguf(&fixtures("gguf"), "llama-quant");
    check_greedy(&accelerator(), &packed, usize::MAX, F32_TOLERANCE);
}

/// The other tests compile with little effort, users with all of it.
#[test]
fn what_is_compiled_as_for_users_gives_the_same_tokens() {
    let fixture = Fixture::open(&fixtures("golden").join("llama").join("f32"));
    let engine = engine(open(Effort::Full), 16);
    check_greedy(&engine, &fixture, usize::MAX, F32_TOLERANCE);
    check_batched(&engine, &fixture, F32_TOLERANCE);
}

#[test]
fn a_context_that_outgrows_its_module_goes_on_with_the_same_tokens() {
    capacity::check(|blocks| engine(executor(), blocks));
}

macro_rules! families {
    ($($family:ident),* $(,)?) => {$(
        #[test]
        fn $family() {
            let fixture = Fixture::open(&fixtures("golden").join(stringify!($family)).join("f32"));
            check_greedy(&processor(), &fixture, usize::MAX, F32_TOLERANCE);
            check_batched(&processor(), &fixture, F32_TOLERANCE);
        }
    )*};
}

mod matches_transformers_on {
    use super::*;

    conformance::every_family!(families);
}

#[test]
fn every_variant_of_a_family_in_chunks_and_token_by_token_matches_transformers() {
    check_family(&processor(), "qwen2", Depth::Full);
}

#[test]
fn bf16_activations_match_transformers() {
    check_bf16(&processor(), "llama");
}

#[test]
fn every_block_format_of_gguf_equals_its_dequantised_weights() {
    let fixture = Fixture::open_gguf(&fixtures("gguf"), "llama-quant");
    check_greedy(&processor(), &fixture, usize::MAX, F32_TOLERANCE);
}

#[test]
fn ops_agree_with_torch_and_keep_the_rules_of_the_seam() {
    ops::against_torch(&processor()).assert_clean();
    ops::seam(&processor()).assert_clean();
}

/// The groups whose forms are this engine's own; the others are primitives that torch has judged. One test for each, since
/// together they take longer than all others beside them.
mod ops_agree_with_the_reference {
    use super::*;

    fn check(engine: &XlaEngine, group: Group) {
        ops::against_reference(engine, group).assert_clean();
    }

    #[test]
    fn paged() {
        check(&processor(), Group::Paged);
    }

    #[test]
    fn control() {
        check(&processor(), Group::Control);
    }

    // A processor has weights decoded when they are loaded.

    #[test]
    fn packed() {
        check(&accelerator(), Group::Packed);
    }

    #[test]
    fn packed_halves() {
        check(&accelerator(), Group::PackedHalves);
    }

    #[test]
    fn packed_rows() {
        check(&accelerator(), Group::PackedRows);
    }
}

#[test]
fn bert_gives_the_embeddings_of_transformers() {
    conformance::embeddings::check_bert(&processor());
}

#[test]
fn a_seed_draws_the_same_tokens_alone_in_company_and_from_the_cache() {
    let engine = processor();
    SEEDED.iter().for_each(|kind| check_seeds(&engine, kind, Depth::Full));
}
