//! The suites as tests: an engine's crate names the engine once for each, in its `tests/conformance.rs`.

/// Calls a macro with the names of all families that write text: the one place that lists them for tests.
#[macro_export]
macro_rules! every_family {
    (@with $families:tt models_suite $($before:tt)*) => { $crate::models_suite!($($before)* $families); };
    (@with [$($family:ident),* $(,)?] $other:ident) => { $other!($($family),*); };
    ($($how:tt)*) => {
        $crate::every_family!(@with [
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
        ] $($how)*);
    };
}

/// Every family against Hugging Face transformers.
#[macro_export]
macro_rules! models_suite {
    ($module:ident, $engine:expr, $depth:expr) => {
        mod $module {
            use super::*;

            fn engine() -> impl $crate::Engine {
                $engine
            }

            $crate::every_family!(models_suite @families $depth,);

            #[test]
            fn bf16_activations() {
                $crate::models::check_bf16(&engine(), "llama");
                $crate::models::check_bf16(&engine(), "qwen3");
            }
        }
    };
    (@families $depth:expr, [$($family:ident),* $(,)?]) => {$(
        #[test]
        fn $family() {
            $crate::models::check_family(&engine(), stringify!($family), $depth);
        }
    )*};
}

/// All groups of ops, one test each, so that a failure is named.
#[macro_export]
macro_rules! ops_suite {
    ($module:ident, $engine:expr) => {
        mod $module {
            use super::*;

            fn engine() -> impl $crate::Engine {
                $engine
            }

            #[test]
            fn agrees_with_torch() {
                $crate::ops::against_torch(&engine()).assert_clean();
            }

            #[test]
            fn keeps_the_rules_of_the_seam() {
                $crate::ops::seam(&engine()).assert_clean();
            }

            $crate::ops_suite!(@group agrees_with_the_reference_on_elementwise_ops, Elementwise);
            $crate::ops_suite!(@group agrees_with_the_reference_on_movement, Movement);
            $crate::ops_suite!(@group agrees_with_the_reference_on_order, Order);
            $crate::ops_suite!(@group agrees_with_the_reference_on_norms_and_rope, Norm);
            $crate::ops_suite!(@group agrees_with_the_reference_on_contractions, Contraction);
            $crate::ops_suite!(@group agrees_with_the_reference_on_packed_matrices, Packed);
            $crate::ops_suite!(@group agrees_with_the_reference_on_packed_matrices_and_halves, PackedHalves);
            $crate::ops_suite!(@group agrees_with_the_reference_on_packed_rows_and_experts, PackedRows);
            $crate::ops_suite!(@group agrees_with_the_reference_on_attention, Attention);
            $crate::ops_suite!(@group agrees_with_the_reference_on_paged_attention, Paged);
            $crate::ops_suite!(@group agrees_with_the_reference_on_routing_and_sampling, Choice);
            $crate::ops_suite!(@group agrees_with_the_reference_on_recurrent_layers, Recurrent);
            $crate::ops_suite!(@group agrees_with_the_reference_on_pools_and_transforms, Signals);
            $crate::ops_suite!(@group agrees_with_the_reference_on_control_flow, Control);
        }
    };
    (@group $name:ident, $group:ident) => {
        #[test]
        fn $name() {
            $crate::ops::against_reference(&engine(), $crate::ops::Group::$group).assert_clean();
        }
    };
}

/// The same weights as GGUF files, as llama.cpp's converter lays them out.
#[macro_export]
macro_rules! gguf_suite {
    ($module:ident, $engine:expr) => {
        mod $module {
            use super::*;

            fn engine() -> impl $crate::Engine {
                $engine
            }

            $crate::gguf_suite!(@files
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
        }
    };
    (@files $($test:ident => $file:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            $crate::models::check_gguf(&engine(), $file, $crate::models::Depth::Full);
        }
    )*};
}

/// Embeddings, pooled and normalised as sentence-transformers does.
#[macro_export]
macro_rules! embeddings_suite {
    ($module:ident, $engine:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn bert_gives_the_embeddings_of_transformers() {
                $crate::embeddings::check_bert(&$engine);
            }

            #[test]
            fn decoders_give_the_pooled_hidden_states_of_transformers() {
                $crate::embeddings::check_decoders(&$engine);
            }
        }
    };
}

/// Tiny models of several kinds through the scheduler.
#[macro_export]
macro_rules! scheduled_suite {
    ($module:ident, $engine:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn every_kind_of_model_answers_as_transformers_does() {
                use $crate::{models::Depth::Full, scheduled};
                let engine = $engine;
                scheduled::KINDS.iter().for_each(|kind| scheduled::check_kind(&engine, kind, Full));
            }

            #[test]
            fn preempted_models_answer_as_transformers_does() {
                use $crate::{models::Depth::Full, scheduled};
                let engine = $engine;
                scheduled::KINDS.iter().for_each(|kind| scheduled::check_preempted(&engine, kind, Full));
            }

            #[test]
            fn a_seed_draws_the_same_tokens_alone_in_company_and_from_the_cache() {
                use $crate::{models::Depth::Full, scheduled};
                let engine = $engine;
                scheduled::SEEDED.iter().for_each(|kind| scheduled::check_seeds(&engine, kind, Full));
            }

            #[test]
            fn guesses_change_no_token_at_any_temperature() {
                $crate::scheduled::check_guesses(&$engine, $crate::models::Depth::Full);
            }
        }
    };
}
