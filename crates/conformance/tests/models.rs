//! Every family against Hugging Face transformers, on every engine. An engine joins with one line.

use conformance::models::{Depth, check_bf16, check_family};
use mlxcel_cpu::{CpuEngine, CpuOptions};
use mlxcel_engine::{Engine, ReferenceEngine};

macro_rules! families {
    ($engine:ident, $depth:expr, [$($family:ident),* $(,)?]) => {$(
        #[test]
        fn $family() {
            check_family(&$engine(), stringify!($family), $depth);
        }
    )*};
}

macro_rules! engine {
    ($name:ident, $engine:ident, $depth:expr) => {
        mod $name {
            use super::*;

            families!(
                $engine,
                $depth,
                [
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
                ]
            );

            #[test]
            fn bf16_activations() {
                check_bf16(&$engine(), "llama");
                check_bf16(&$engine(), "qwen3");
            }
        }
    };
}

fn reference() -> impl Engine {
    ReferenceEngine
}

fn cpu() -> impl Engine {
    CpuEngine::new(CpuOptions::default()).expect("the machine has a processor")
}

engine!(reference_matches_transformers_on, reference, Depth::Brief);
engine!(cpu_matches_transformers_on, cpu, Depth::Full);
