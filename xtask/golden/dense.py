"""The dense families, each with a configuration that is odd where the family allows it."""

from family import Family, Quant

IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

LLAMA = Family(
    name="llama",
    config={
        **IDS,
        "vocab_size": 263,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "attention_bias": True,
        "mlp_bias": True,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "tie_word_embeddings": False,
    },
    bf16_compute=True,
    quants={
        "q4": Quant(group_size=32, dtype="float32"),
        # Every width MLX has, mixed per module as mlx-lm's mixed recipes do.
        "q-mixed": Quant(
            group_size=64,
            bits=4,
            dtype="bfloat16",
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

FAMILIES = (LLAMA,)
