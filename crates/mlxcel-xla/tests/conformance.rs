//! The suite that every engine passes, on XLA's CPU plugin, which `cargo xtask test` fetches. Compiling is what takes
//! time here, so steps have two shapes only, and of most families only the checkpoint in f32 is run.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use conformance::models::{
    Depth, F32_TOLERANCE, Fixture, check_batched, check_bf16, check_family, check_greedy, fixtures,
};
use conformance::ops::{self, Group};
use mlxcel_engine::buckets::{Buckets, Ladder};
use mlxcel_xla::pjrt::{Effort, PjrtExecutor, PjrtOptions};
use mlxcel_xla::{XlaEngine, XlaOptions};

/// One client for all tests of the process.
fn processor() -> XlaEngine {
    static ENGINE: OnceLock<XlaEngine> = OnceLock::new();
    let open = || {
        let plugin = std::env::var_os("MLXCEL_TEST_XLA_CPU");
        let plugin = plugin.expect("MLXCEL_TEST_XLA_CPU names XLA's plugin; `cargo xtask test` sets it");
        let options =
            PjrtOptions { device: "cpu".to_string(), effort: Effort::Little, ..PjrtOptions::default() };
        let executor = PjrtExecutor::open(&PathBuf::from(plugin), &options).expect("the plugin opens");
        let buckets = Buckets {
            sequences: Ladder { least: 4 },
            tokens: Ladder { least: 128 },
            ..XlaOptions::default().buckets
        };
        XlaEngine::new(Arc::new(executor), XlaOptions { buckets })
    };
    ENGINE.get_or_init(open).clone()
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

    families!(
        cohere,
        deepseek_v3,
        gemma2,
        gemma3_text,
        gpt2,
        gpt_neox,
        gpt_oss,
        granite,
        llama,
        mamba,
        mistral,
        mixtral,
        olmo,
        olmo2,
        phi3,
        qwen2,
        qwen3,
        qwen3_moe,
        smollm3,
        stablelm,
        starcoder2,
    );
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

/// The groups whose forms are this engine's own; the others are primitives that torch has judged.
#[test]
fn ops_agree_with_the_reference() {
    for group in [Group::Packed, Group::Paged, Group::Control] {
        ops::against_reference(&processor(), group).assert_clean();
    }
}

#[test]
fn bert_gives_the_embeddings_of_transformers() {
    conformance::embeddings::check_bert(&processor());
}

#[test]
fn a_seed_draws_the_same_tokens_alone_in_company_and_from_the_cache() {
    conformance::scheduled::check_seeds(&processor());
}
