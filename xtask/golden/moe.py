"""The families that are not dense transformers: mixtures of experts and the state-space model.

A checkpoint of experts is written twice, as published and stacked, hence the smaller widths.
"""

import math

import numpy as np
import torch

import layout
from dense import IDS, gain, theta
from family import Family, Quant
from weights import BIAS_STD, PROJECTION_GAIN, draw

BASE = {**IDS, "vocab_size": 263, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 512}


def bias(std):
    return lambda rng, shape: draw(rng, shape, std)


def state_matrix(rng, shape):
    """A_log: decay rates 1, 2, 3, ... as Mamba starts with, disturbed."""
    start = torch.log(torch.arange(1, shape[1] + 1, dtype=torch.float32))
    return start + draw(rng, shape, 0.3)


def time_step(rng, shape):
    """dt_proj's bias: the inverse softplus of steps between 0.02 and 0.5."""
    steps = np.exp(rng.uniform(math.log(0.02), math.log(0.5), size=tuple(shape)))
    return torch.from_numpy((steps + np.log(-np.expm1(-steps))).astype(np.float32))


MIXTRAL = Family(
    name="mixtral",
    config={
        **BASE,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "rope_parameters": theta(1000000.0),
        "tie_word_embeddings": False,
    },
    fused=True,
    quants={"q4": Quant(to_mlx=layout.mixtral_to_mlx, from_mlx=layout.mixtral_from_mlx)},
    extras={"f32-window": {"sliding_window": 24, "num_local_experts": 3, "num_key_value_heads": 1}},
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    config={
        **BASE,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "mlp_only_layers": [1],
        "norm_topk_prob": True,
        "attention_bias": True,
        "rope_parameters": theta(1000000.0),
        "tie_word_embeddings": False,
    },
    fused=True,
    quants={
        "q4": Quant(overrides={"mlp.gate": (32, 8)}, to_mlx=layout.moe_to_mlx, from_mlx=layout.moe_from_mlx),
    },
    extras={
        "f32-unnormed": {
            "norm_topk_prob": False,
            "num_hidden_layers": 2,
            "mlp_only_layers": [],
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 24,
        }
    },
)

DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    config={
        **BASE,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": True,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 8.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
        },
        "tie_word_embeddings": False,
    },
    init={"e_score_correction_bias": bias(0.15)},
    fused=True,
    # Older and newer mlx-lm differ in how they store the up-projection of keys and values.
    quants={
        "q4": Quant(overrides={"mlp.gate": None}, to_mlx=layout.moe_to_mlx, from_mlx=layout.moe_from_mlx),
        "q4-mla": Quant(
            overrides={"mlp.gate": None},
            to_mlx=layout.deepseek_split_to_mlx,
            from_mlx=layout.deepseek_split_from_mlx,
        ),
    },
    extras={
        "f32-plain": {
            "q_lora_rank": None,
            "attention_bias": False,
            "n_group": 1,
            "topk_group": 1,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "rope_parameters": theta(10000.0),
        }
    },
)

GPT_OSS = Family(
    name="gpt_oss",
    config={
        **BASE,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 24,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 15000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        "tie_word_embeddings": False,
    },
    init={
        r"experts\.gate_up_proj$": gain(5.0, axis=1),
        r"experts\.down_proj$": gain(PROJECTION_GAIN / 4, axis=1),
        r"experts\.\w+_bias$": bias(BIAS_STD),
        r"sinks$": bias(1.0),
    },
    mxfp4=True,
    quants={
        "q4": Quant(
            overrides={"mlp.router": (32, 8)},
            to_mlx=layout.gpt_oss_to_mlx,
            from_mlx=layout.gpt_oss_from_mlx,
        ),
    },
)

MAMBA = Family(
    name="mamba",
    config={
        **IDS,
        "vocab_size": 263,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "state_size": 8,
        "time_step_rank": 5,
        "conv_kernel": 4,
        "expand": 2,
        "use_bias": True,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
    },
    embed_std=0.3,
    init={
        r"A_log$": state_matrix,
        r"\.D$": lambda rng, shape: draw(rng, shape, 0.5, mean=1.0),
        r"dt_proj\.bias$": time_step,
        r"conv1d\.weight$": gain(PROJECTION_GAIN),
    },
    quants={"q4": Quant(to_mlx=layout.mamba_mlx, from_mlx=layout.mamba_mlx)},
)

FAMILIES = (MIXTRAL, MAMBA, QWEN3_MOE, DEEPSEEK_V3, GPT_OSS)
