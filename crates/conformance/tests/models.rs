//! Every family against Hugging Face transformers, on every engine. An engine joins with one line.

use conformance::models::{Depth, check_bf16, check_family};
use mlxcel_engine::ReferenceEngine;

macro_rules! engine {
    ($name:ident, $engine:expr, $depth:expr, [$($family:ident),* $(,)?]) => {
        mod $name {
            use super::*;
            $(
                #[test]
                fn $family() {
                    check_family(&$engine, stringify!($family), $depth);
                }
            )*

            #[test]
            fn bf16_activations() {
                check_bf16(&$engine, "llama");
                check_bf16(&$engine, "qwen3");
            }
        }
    };
    ($name:ident, $engine:expr, $depth:expr) => {
        engine!($name, $engine, $depth, [
            gemma2, gemma3_text, granite, llama, mistral, mixtral, olmo2, phi3, qwen2, qwen3, qwen3_moe, smollm3,
        ]);
    };
}

engine!(reference_matches_transformers_on, ReferenceEngine, Depth::Brief);
