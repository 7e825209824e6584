//! Every family against Hugging Face transformers, on every engine.

use conformance::models::{F32_TOLERANCE, Fixture, check_batched, check_greedy, fixtures};
use mlxcel_engine::ReferenceEngine;

#[test]
fn the_reference_engine_runs_llama() {
    let fixture = Fixture::open(&fixtures().join("llama/f32"));
    check_greedy(&ReferenceEngine, &fixture, 1000, F32_TOLERANCE);
    check_batched(&ReferenceEngine, &fixture, F32_TOLERANCE);
}
