"""Metadata, and tensors made of metadata, that an architecture's GGUF file has beyond the common ones.

Every function takes the configuration and returns key (without the architecture's prefix) to value.
"""

import math

import numpy as np


def llama_keys(config):
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {"vocab_size": config["vocab_size"], "rope.dimension_count": width}


def expert_keys(config):
    count = config.get("num_local_experts") or config.get("num_experts") or config["n_routed_experts"]
    return {"expert_count": count, "expert_used_count": config["num_experts_per_tok"]}


def partial_keys(config):
    width = config["hidden_size"] // config["num_attention_heads"]
    return {"rope.dimension_count": int(width * config["rope_parameters"]["partial_rotary_factor"])}


def gemma2_keys(config):
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return {"attention.sliding_window": config["sliding_window"], **{cap: config[cap] for cap in caps}}


def granite_keys(config):
    return {
        **llama_keys(config),
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def yarn_keys(config):
    rope = config["rope_parameters"]
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        **{f"rope.scaling.yarn_{key}": rope[key] for key in ("beta_fast", "beta_slow") if key in rope},
    }


def llama3_divisors(config):
    """Llama 3's scaling comes as one divisor per frequency."""
    rope = config["rope_parameters"]
    width = config["head_dim"]
    divisors = []
    for index in range(0, width, 2):
        turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** (-index / width) / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return {"rope_freqs.weight": np.array(divisors, dtype=np.float32)}


def longrope_factors(config):
    rope = config["rope_parameters"]
    return {
        "rope_factors_long.weight": np.array(rope["long_factor"], dtype=np.float32),
        "rope_factors_short.weight": np.array(rope["short_factor"], dtype=np.float32),
    }


def phi3_keys(config):
    rope = config["rope_parameters"]
    width = config["hidden_size"] // config["num_attention_heads"]
    keys = {
        "rope.dimension_count": int(width * rope.get("partial_rotary_factor", 1.0)),
        "attention.sliding_window": 0,
        "rope.scaling.original_context_length": config["original_max_position_embeddings"],
    }
    if rope["rope_type"] == "longrope":
        ratio = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        factor = math.sqrt(1 + math.log(ratio) / math.log(config["original_max_position_embeddings"]))
        keys |= {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": factor}
    return keys


def deepseek_keys(config):
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        **expert_keys(config),
        **yarn_keys(config),
        "vocab_size": config["vocab_size"],
        "rope.scaling.yarn_log_multiplier": 0.1 * config["rope_parameters"]["mscale_all_dim"],
        "rope.dimension_count": rotated,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 2,
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }


def mamba_keys(config):
    return {
        "context_length": 2**20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": config["intermediate_size"],
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": False,
    }
