//! Model suites through steps that are split and padded for engines with static shapes, on the reference engine. What
//! an engine with static shapes then computes wrong is its own mistake.

use conformance::models::{Depth, check_family};
use conformance::ops::{self, Group};
use mlxcel_engine::ReferenceEngine;
use mlxcel_engine::buckets::{Bucketed, Buckets, Ladder};

fn bucketed() -> Bucketed<ReferenceEngine> {
    let buckets =
        Buckets { sequences: Ladder { least: 2 }, tokens: Ladder { least: 8 }, ..Buckets::default() };
    Bucketed { engine: ReferenceEngine, buckets }
}

macro_rules! families {
    ($($test:ident => $family:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            check_family(&bucketed(), $family, Depth::Brief);
        }
    )*};
}

families!(
    padded_steps_of_a_dense_model_are_those_of_transformers => "llama",
    padded_steps_with_sinks_and_experts_are_those_of_transformers => "gpt_oss",
    padded_steps_of_recurrent_layers_are_those_of_transformers => "mamba",
);

#[test]
fn padded_steps_agree_on_paged_attention_and_keep_the_rules_of_the_seam() {
    for report in [ops::against_reference(&bucketed(), Group::Paged), ops::seam(&bucketed())] {
        assert!(report.cases > 0 && report.is_clean(), "{report}");
    }
}
