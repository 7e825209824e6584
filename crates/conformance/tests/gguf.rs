//! The same weights as GGUF files, as llama.cpp's converter lays them out.

use conformance::models::{F32_TOLERANCE, Fixture, check_batched, check_greedy, fixtures};
use mlxcel_engine::ReferenceEngine;

macro_rules! architectures {
    ($($test:ident => $file:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            let fixture = Fixture::open_gguf(&fixtures("gguf"), $file);
            check_greedy(&ReferenceEngine, &fixture, usize::MAX, F32_TOLERANCE);
            check_batched(&ReferenceEngine, &fixture, F32_TOLERANCE);
        }
    )*};
}

architectures!(
    gemma2_equals_its_safetensors => "gemma2",
    gemma3_equals_its_safetensors => "gemma3",
    granite_equals_its_safetensors => "granite",
    llama_equals_its_safetensors => "llama",
    llama_with_linear_rope_equals_its_safetensors => "llama-linear",
    llama_with_its_own_rope_equals_its_safetensors => "llama-llama3",
    llama_with_yarn_equals_its_safetensors => "llama-yarn",
    llama_in_every_block_format_equals_its_dequantised_weights => "llama-quant",
    mixtral_equals_its_safetensors => "mixtral",
    olmo2_equals_its_safetensors => "olmo2",
    phi3_equals_its_safetensors => "phi3",
    phi3_with_longrope_equals_its_safetensors => "phi3-longrope",
    qwen2_equals_its_safetensors => "qwen2",
    qwen3_equals_its_safetensors => "qwen3",
    qwen3moe_equals_its_safetensors => "qwen3moe",
    smollm3_equals_its_safetensors => "smollm3",
);
