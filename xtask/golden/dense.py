"""The dense families, each with a configuration that is odd where the family allows it.

Gemma and the like multiply by 1 + weight, hence a norm mean of zero there. Tied families draw small embeddings: large
ones would make every token predict itself.
"""

import math

import layout
from family import Family, Quant
from weights import NORM_SPREAD, PROJECTION_GAIN, draw

IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BASE = {**IDS, "vocab_size": 263, "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512}


def theta(base, **more):
    return {"rope_type": "default", "rope_theta": base, **more}


def gain(factor, axis=-1):
    """Draws a projection that contracts `axis`: the last one, but the first in GPT-2."""
    return lambda rng, shape: draw(rng, shape, factor / math.sqrt(shape[axis]))


def norm(mean):
    return lambda rng, shape: draw(rng, shape, NORM_SPREAD, mean=mean)


LLAMA = Family(
    name="llama",
    config={
        **BASE,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "attention_bias": True,
        "mlp_bias": True,
        "rms_norm_eps": 1e-5,
        "rope_parameters": theta(5000.0),
        "tie_word_embeddings": False,
    },
    bf16_compute=True,
    quants={
        "q4": Quant(group_size=32, dtype="float32"),
        # Every width MLX has, mixed per module as mlx-lm's mixed recipes do.
        "q-mixed": Quant(
            group_size=64,
            bits=4,
            overrides={
                "0.self_attn.q_proj": (32, 2),
                "0.self_attn.k_proj": (64, 3),
                "0.self_attn.v_proj": (64, 5),
                "0.mlp.gate_proj": (32, 6),
                "1.mlp.up_proj": (64, 8),
                "1.mlp.down_proj": (32, 3),
                "1.self_attn.o_proj": (32, 6),
                "1.self_attn.q_proj": None,
            },
        ),
    },
)

MISTRAL = Family(
    name="mistral",
    config={
        **BASE,
        "vocab_size": 311,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "sliding_window": 32,
        "rope_parameters": theta(10000.0),
        "tie_word_embeddings": False,
    },
)

QWEN2 = Family(
    name="qwen2",
    # An intermediate size that no group divides: down_proj stays unquantised, as mlx-lm leaves it.
    config={
        **BASE,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "rope_parameters": theta(1000000.0),
        "tie_word_embeddings": True,
    },
    embed_std=0.5,
)

QWEN3 = Family(
    name="qwen3",
    config={
        **BASE,
        "vocab_size": 311,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 40,
        "max_window_layers": 2,
        "rope_parameters": theta(1000000.0),
        "tie_word_embeddings": True,
    },
    embed_std=0.5,
    bf16_compute=True,
)

GEMMA2 = Family(
    name="gemma2",
    config={
        **BASE,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "query_pre_attn_scalar": 20,
        "sliding_window": 32,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 0.9,
        "rope_parameters": theta(10000.0),
    },
    embed_std=0.04,
    norm_mean=0.0,
    init={"post_feedforward": norm(2.0), "input_layernorm": norm(0.5)},
    extras={"f32-bias": {"attention_bias": True, "num_hidden_layers": 2, "intermediate_size": 32}},
)

GEMMA3 = Family(
    name="gemma3_text",
    config={
        **BASE,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "query_pre_attn_scalar": 20,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0},
            "sliding_attention": theta(1000.0),
        },
    },
    embed_std=0.04,
    norm_mean=0.0,
    init={"post_feedforward": norm(2.0)},
)

PHI3 = Family(
    name="phi3",
    config={
        **BASE,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "original_max_position_embeddings": 512,
        "sliding_window": 48,
        "rope_parameters": theta(10000.0, partial_rotary_factor=0.75),
        "tie_word_embeddings": False,
    },
)

OLMO2 = Family(
    name="olmo2",
    config={
        **BASE,
        "vocab_size": 311,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "rope_parameters": theta(500000.0),
        "tie_word_embeddings": False,
    },
    init={"post_feedforward": norm(2.5)},
)

OLMO = Family(
    name="olmo",
    config={
        **BASE,
        "vocab_size": 311,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "clip_qkv": 1.5,
        "rope_parameters": theta(20000.0),
        "tie_word_embeddings": False,
    },
)

GRANITE = Family(
    name="granite",
    config={
        **BASE,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "attention_bias": True,
        "mlp_bias": True,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.5,
        "rope_parameters": theta(10000.0),
        "tie_word_embeddings": True,
    },
    embed_std=0.1,
)

SMOLLM3 = Family(
    name="smollm3",
    config={
        **BASE,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "mlp_bias": True,
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 32,
        "rope_parameters": theta(2000000.0),
        "tie_word_embeddings": True,
    },
    embed_std=0.5,
)

STARCODER2 = Family(
    name="starcoder2",
    config={
        **BASE,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "sliding_window": 40,
        "use_bias": True,
        "rope_parameters": theta(100000.0),
        "tie_word_embeddings": True,
    },
    embed_std=0.3,
    init={r"c_proj\.weight$": gain(6.0), r"c_fc\.weight$": gain(3.0)},
    quants={"q4": Quant(group_size=64, dtype="float16")},
)

STABLELM = Family(
    name="stablelm",
    config={
        **BASE,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "use_qkv_bias": True,
        "qk_layernorm": True,
        "rope_parameters": theta(10000.0, partial_rotary_factor=0.25),
        "tie_word_embeddings": False,
    },
    extras={
        "f32-parallel": {
            "use_parallel_residual": True,
            "qk_layernorm": False,
            "use_qkv_bias": False,
            "intermediate_size": 32,
        }
    },
)

GPT2 = Family(
    name="gpt2",
    config={
        **IDS,
        "vocab_size": 263,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_inner": 96,
        "n_positions": 176,
        "tie_word_embeddings": True,
    },
    embed_std=0.3,
    init={
        r"mlp\.c_proj\.weight$": gain(4.0, axis=0),
        r"mlp\.c_fc\.weight$": gain(2.5, axis=0),
        r"attn\.c_\w+\.weight$": gain(PROJECTION_GAIN, axis=0),
    },
    quants={"q4": Quant(to_mlx=layout.gpt2_to_mlx, from_mlx=layout.gpt2_from_mlx)},
    extras={"f32-inverse": {"scale_attn_by_inverse_layer_idx": True, "n_inner": 32, "n_positions": 168}},
)

GPT_NEOX = Family(
    name="gpt_neox",
    config={
        **BASE,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "rope_parameters": theta(10000.0, partial_rotary_factor=0.5),
        "tie_word_embeddings": False,
    },
    quants={"q4": Quant(to_mlx=layout.gpt_neox_to_mlx, from_mlx=layout.gpt_neox_from_mlx)},
    extras={"f32-sequential": {"use_parallel_residual": False, "attention_bias": False, "intermediate_size": 32}},
)

COHERE = Family(
    name="cohere",
    config={
        **BASE,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "use_qk_norm": True,
        "logit_scale": 0.3,
        "rope_parameters": theta(10000.0),
        "tie_word_embeddings": True,
    },
    embed_std=0.4,
    init={r"\.[qk]_norm\.weight$": norm(1.0)},
    quants={"q4": Quant(overrides={"_norm": None})},
)

FAMILIES = (
    LLAMA,
    QWEN3,
    GEMMA2,
    MISTRAL,
    QWEN2,
    GEMMA3,
    PHI3,
    OLMO2,
    OLMO,
    GRANITE,
    SMOLLM3,
    STARCODER2,
    STABLELM,
    GPT2,
    GPT_NEOX,
    COHERE,
)
