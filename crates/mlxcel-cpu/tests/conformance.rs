//! The suite that every engine passes, on the CPU engine: with the best level of instructions of the machine, or the one
//! that `MLXCEL_TEST_SIMD` names.

use conformance::models::Depth;
use conformance::scheduled::{
    EXACT, KINDS, SEEDED, check_bits, check_guesses, check_kind, check_preempted, check_seeds,
};
use mlxcel_cpu::{CpuEngine, CpuOptions, Products, SimdLevel};
use mlxcel_ir::DType;

emulator::lend!(SimdLevel::suppose);

fn cpu(options: CpuOptions) -> CpuEngine {
    CpuEngine::new(options).expect("threads can be started")
}

/// The level that is asked for, if one is.
fn level() -> Option<SimdLevel> {
    let name = std::env::var("MLXCEL_TEST_SIMD").ok()?;
    let found = SimdLevel::available().into_iter().find(|level| level.to_string() == name);
    Some(found.unwrap_or_else(|| panic!("this machine has no level {name}")))
}

fn best() -> CpuEngine {
    cpu(CpuOptions { level: level(), ..CpuOptions::default() })
}

fn plain_core() -> CpuEngine {
    cpu(CpuOptions { threads: Some(1), level: Some(SimdLevel::Baseline), ..CpuOptions::default() })
}

/// As the command line opens it.
fn fast() -> CpuEngine {
    cpu(CpuOptions { products: Products::Fast, level: level(), ..CpuOptions::default() })
}

/// A machine that has no AVX2 tries its best level once more.
fn three_threads_with_avx2() -> CpuEngine {
    let level = Some(SimdLevel::Avx2).filter(|level| level.is_available());
    cpu(CpuOptions { threads: Some(3), level, ..CpuOptions::default() })
}

conformance::ops_suite!(ops, best());
conformance::ops_suite!(ops_on_one_plain_core, plain_core());
conformance::ops_suite!(ops_on_three_threads_with_avx2, three_threads_with_avx2());
conformance::models_suite!(models, best(), Depth::Full);
conformance::gguf_suite!(gguf, best());
conformance::embeddings_suite!(embeddings, best());
conformance::scheduled_suite!(scheduled, best());

#[test]
fn an_answer_is_the_same_to_the_last_bit_alone_in_company_from_the_cache_and_resumed() {
    let engine = best();
    EXACT.iter().for_each(|kind| check_bits(&engine, DType::F32, kind, Depth::Full));
}

/// Where prompts are rounded, what a token is inside of one is not what it was when it was drawn.
#[test]
fn with_fast_products_too_an_answer_is_the_same_to_the_last_bit() {
    let engine = fast();
    EXACT.iter().for_each(|kind| check_bits(&engine, DType::F32, kind, Depth::Full));
}

/// What sanitizers of other engines see of the scheduler.
#[test]
fn beginnings_of_scheduled_answers_are_the_same() {
    let engine = best();
    for kind in KINDS {
        check_kind(&engine, kind, Depth::Glance);
        check_preempted(&engine, kind, Depth::Glance);
    }
    SEEDED.iter().for_each(|kind| check_seeds(&engine, kind, Depth::Glance));
    EXACT.iter().for_each(|kind| check_bits(&engine, DType::F32, kind, Depth::Glance));
    check_guesses(&engine, Depth::Glance);
}
