"""The GGUF fixtures: which golden weights, in which architecture, with which metadata.

Where an architecture's GGUF form cannot say what the golden configuration says (a window, a scale, a bias), `changes`
alter the configuration.
"""

import dataclasses
from collections.abc import Callable

import dense
import gguf_names as names
import layout
import moe
from family import Family, same_names
from gguf_keys import (
    deepseek_keys,
    expert_keys,
    gemma2_keys,
    granite_keys,
    llama3_divisors,
    llama_keys,
    longrope_factors,
    mamba_keys,
    partial_keys,
    phi3_keys,
    yarn_keys,
)


@dataclasses.dataclass(frozen=True)
class File:
    name: str
    family: Family
    arch: str
    block: dict = dataclasses.field(default_factory=dict)
    top: dict = dataclasses.field(default_factory=lambda: names.TOP)
    changes: dict = dataclasses.field(default_factory=dict)
    drop: str = r"(?!)"
    layout: Callable = same_names
    # Which variant's weights, and tensors made from the configuration.
    variant: str = "f32"
    extra: Callable = lambda config: {}
    # llama.cpp's name for the mixture of formats; 0 is all f32.
    file_type: int = 0
    # New weights instead of the golden ones, which do not fit the changed configuration.
    fresh: bool = False
    # More metadata of the architecture, from the configuration.
    keys: Callable = lambda config: {}


def unwindowed(layers):
    """No layer slides, where GGUF cannot say which would."""
    return {"use_sliding_window": False, "sliding_window": None, "layer_types": ["full_attention"] * layers}


FILES = (
    File("llama", dense.LLAMA, "llama", names.BLOCK, layout=names.interleave_all, keys=llama_keys),
    File("qwen2", dense.QWEN2, "qwen2", names.BLOCK, changes=unwindowed(3)),
    File(
        "qwen3",
        dense.QWEN3,
        "qwen3",
        names.BLOCK,
        changes=unwindowed(3) | {"attention_bias": False},
        drop=r"_proj\.bias$",
    ),
    File(
        "gemma2",
        dense.GEMMA2,
        "gemma2",
        names.BLOCK | names.SANDWICH,
        changes={"query_pre_attn_scalar": 24},
        layout=names.shift_norms,
        keys=gemma2_keys,
    ),
    File(
        "phi3",
        dense.PHI3,
        "phi3",
        names.BLOCK | names.PHI3_BLOCK,
        changes={"sliding_window": None},
        keys=phi3_keys,
    ),
    File("gpt2", dense.GPT2, "gpt2", names.GPT2_BLOCK, names.GPT2_TOP, layout=layout.gpt2_from_mlx),
    File(
        "mixtral",
        moe.MIXTRAL,
        "llama",
        names.BLOCK | names.MIXTRAL_BLOCK,
        layout=names.mixtral,
        keys=lambda config: llama_keys(config) | expert_keys(config),
    ),
    File("olmo2", dense.OLMO2, "olmo2", names.BLOCK | names.SANDWICH, changes={"attention_bias": False}, drop=r"bias$"),
    File("granite", dense.GRANITE, "granite", names.BLOCK, layout=names.interleave_all, keys=granite_keys),
    File(
        "smollm3",
        dense.SMOLLM3,
        "smollm3",
        names.BLOCK,
        changes=unwindowed(4) | {"no_rope_layers": [1, 1, 1, 0], "mlp_bias": False, "attention_bias": False},
        drop=r"_proj\.bias$",
        layout=names.interleave_all,
        keys=llama_keys,
    ),
    File(
        "starcoder2",
        dense.STARCODER2,
        "starcoder2",
        names.BLOCK | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        changes={"sliding_window": None},
    ),
    File(
        "stablelm",
        dense.STABLELM,
        "stablelm",
        names.BLOCK,
        layout=names.stack_head_norms,
        keys=lambda config: {**partial_keys(config), "use_parallel_residual": config["use_parallel_residual"]},
    ),
    File(
        "gptneox",
        dense.GPT_NEOX,
        "gptneox",
        names.NEOX_BLOCK,
        names.NEOX_TOP,
        layout=names.regroup_qkv,
        keys=lambda config: {**partial_keys(config), "use_parallel_residual": config["use_parallel_residual"]},
    ),
    File(
        "command-r",
        dense.COHERE,
        "command-r",
        names.BLOCK,
        changes={"use_qk_norm": False, "attention_bias": False},
        drop=r"[qk]_norm\.weight$|bias$",
        keys=lambda config: {"logit_scale": config["logit_scale"], "rope.scaling.type": "none"},
    ),
    File(
        "gemma3",
        dense.GEMMA3,
        "gemma3",
        names.BLOCK | names.SANDWICH,
        changes={"query_pre_attn_scalar": 24},
        layout=names.shift_norms,
        keys=lambda config: {
            "attention.sliding_window": config["sliding_window"],
            "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
            "rope.freq_base": config["rope_parameters"]["full_attention"]["rope_theta"],
            "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
            "rope.scaling.type": "linear",
            "rope.scaling.factor": config["rope_parameters"]["full_attention"]["factor"],
        },
    ),
    File(
        "qwen3moe",
        moe.QWEN3_MOE,
        "qwen3moe",
        names.BLOCK | names.MOE_BLOCK,
        changes={"attention_bias": False, "mlp_only_layers": [], "num_hidden_layers": 2},
        fresh=True,
        layout=layout.moe_to_mlx,
        keys=lambda config: expert_keys(config) | {"expert_feed_forward_length": config["moe_intermediate_size"]},
    ),
    File(
        "gpt-oss",
        moe.GPT_OSS,
        "gpt-oss",
        names.BLOCK | names.OSS_BLOCK,
        changes={"rope_parameters": {**moe.GPT_OSS.config["rope_parameters"], "truncate": True}},
        layout=names.gpt_oss,
        keys=lambda config: {
            **expert_keys(config),
            **yarn_keys(config),
            "attention.sliding_window": config["sliding_window"],
            "expert_feed_forward_length": config["intermediate_size"],
        },
    ),
    File(
        "deepseek2",
        moe.DEEPSEEK_V3,
        "deepseek2",
        names.BLOCK | names.MOE_BLOCK | names.MLA_BLOCK,
        changes={
            "attention_bias": False,
            "rope_parameters": {**moe.DEEPSEEK_V3.config["rope_parameters"], "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        drop=r"_(proj|mqa)\.bias$",
        layout=names.deepseek,
        keys=deepseek_keys,
    ),
    File(
        "mamba",
        moe.MAMBA,
        "mamba",
        names.MAMBA_BLOCK,
        names.MAMBA_TOP,
        changes={"use_bias": False},
        drop=r"(in|out)_proj\.bias$",
        layout=names.mamba_state,
        keys=mamba_keys,
    ),
    File(
        "llama-llama3",
        dense.LLAMA,
        "llama",
        names.BLOCK,
        variant="rope-llama3",
        layout=names.interleave_all,
        keys=llama_keys,
        extra=llama3_divisors,
    ),
    File(
        "llama-yarn",
        dense.LLAMA,
        "llama",
        names.BLOCK,
        variant="rope-yarn",
        layout=names.interleave_all,
        keys=lambda config: llama_keys(config) | yarn_keys(config),
    ),
    File(
        "llama-linear",
        dense.LLAMA,
        "llama",
        names.BLOCK,
        variant="rope-linear",
        layout=names.interleave_all,
        keys=lambda config: {
            **llama_keys(config),
            "rope.scaling.type": "linear",
            "rope.scaling.factor": config["rope_parameters"]["factor"],
        },
    ),
    # llama.cpp takes the long factors whenever its context is longer than the original one; transformers, when the
    # sequence is. They agree on long prompts.
    File(
        "phi3-longrope",
        dense.PHI3,
        "phi3",
        names.BLOCK | names.PHI3_BLOCK,
        variant="rope-longrope",
        keys=phi3_keys,
        extra=longrope_factors,
    ),
)
