//! The scheduler on the reference engine.

use conformance::scheduled::check_golden;
use mlxcel_engine::ReferenceEngine;

#[test]
fn the_reference_engine_answers_as_transformers_does() {
    for family in ["llama/f32", "mamba/f32", "phi3/rope-longrope"] {
        check_golden(&ReferenceEngine, family, 200, 12);
    }
}
