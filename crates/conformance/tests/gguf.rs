//! The same weights as GGUF files, as llama.cpp's converter lays them out, on every engine.

use conformance::models::{F32_TOLERANCE, Fixture, check_batched, check_greedy, fixtures};
use mlxcel_cpu::{CpuEngine, CpuOptions};
use mlxcel_engine::{Engine, ReferenceEngine};

fn check(architecture: &str) {
    let fixture = Fixture::open_gguf(&fixtures("gguf"), architecture);
    let cpu = CpuEngine::new(CpuOptions::default()).expect("the machine has a processor");
    for engine in [&ReferenceEngine as &dyn Engine, &cpu] {
        check_greedy(engine, &fixture, usize::MAX, F32_TOLERANCE);
        check_batched(engine, &fixture, F32_TOLERANCE);
    }
}

macro_rules! architectures {
    ($($test:ident => $file:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            check($file);
        }
    )*};
}

architectures!(
    command_r_equals_its_safetensors => "command-r",
    deepseek2_equals_its_safetensors => "deepseek2",
    gemma2_equals_its_safetensors => "gemma2",
    gemma3_equals_its_safetensors => "gemma3",
    gpt2_equals_its_safetensors => "gpt2",
    gpt_neox_equals_its_safetensors => "gptneox",
    gpt_oss_equals_its_safetensors => "gpt-oss",
    granite_equals_its_safetensors => "granite",
    llama_equals_its_safetensors => "llama",
    llama_with_linear_rope_equals_its_safetensors => "llama-linear",
    llama_with_its_own_rope_equals_its_safetensors => "llama-llama3",
    llama_with_yarn_equals_its_safetensors => "llama-yarn",
    llama_in_every_block_format_equals_its_dequantised_weights => "llama-quant",
    mamba_equals_its_safetensors => "mamba",
    mixtral_equals_its_safetensors => "mixtral",
    olmo2_equals_its_safetensors => "olmo2",
    phi3_equals_its_safetensors => "phi3",
    phi3_with_longrope_equals_its_safetensors => "phi3-longrope",
    qwen2_equals_its_safetensors => "qwen2",
    qwen3_equals_its_safetensors => "qwen3",
    qwen3moe_equals_its_safetensors => "qwen3moe",
    smollm3_equals_its_safetensors => "smollm3",
    stablelm_equals_its_safetensors => "stablelm",
    starcoder2_equals_its_safetensors => "starcoder2",
);
