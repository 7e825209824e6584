"""How each architecture lies in a GGUF file: its metadata, tensor names and layout changes.

Learnt from what llama.cpp's converter produces. Knows nothing of writing files.
"""

import re

import torch

import layout

BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PHI3_BLOCK = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
GPT2_BLOCK = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
GPT2_TOP = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
}
NEOX_BLOCK = {
    "input_layernorm": "attn_norm",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
NEOX_TOP = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
}
MIXTRAL_BLOCK = {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.switch_mlp.gate_proj": "ffn_gate_exps",
    "block_sparse_moe.switch_mlp.up_proj": "ffn_up_exps",
    "block_sparse_moe.switch_mlp.down_proj": "ffn_down_exps",
}
MOE_BLOCK = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
    "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
}
OSS_BLOCK = {
    "self_attn.sinks": "attn_sinks",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "post_attention_layernorm": "post_attention_norm",
}
MLA_BLOCK = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.embed_q": "attn_k_b",
    "self_attn.unembed_out": "attn_v_b",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.gate.e_score_correction": "exp_probs_b",
}
MAMBA_BLOCK = {
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.x_proj": "ssm_x",
    "mixer.dt_proj": "ssm_dt",
    "mixer.out_proj": "ssm_out",
}
MAMBA_TOP = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm"}
BERT_BLOCK = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
BERT_TOP = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}


def rename(name, block, top):
    """The GGUF name of a tensor that has none yet; raises `KeyError` for one it does not know."""
    if name.startswith("blk."):
        return name
    path, _, suffix = name.rpartition(".")
    match = re.fullmatch(r"(?:model|backbone|transformer|gpt_neox|encoder)\.(?:layers|layer|h)\.(\d+)\.(.*)", path)
    if not match:
        return f"{top[path]}.{suffix}"
    index, inner = match.groups()
    return f"blk.{index}.{block[inner]}.{suffix}"


def interleave(tensor, heads):
    """Rows of each head from halves (i, i + d/2) to neighbours (2i, 2i + 1): llama.cpp's order for this family."""
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def interleave_all(tensors, config):
    counts = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    out = {}
    for name, tensor in tensors.items():
        projection = name.split(".")[-2]
        out[name] = interleave(tensor, counts[projection]) if projection in counts else tensor
    return out


def shift_norms(tensors, _config):
    """Gemma multiplies by 1 + weight; the file holds the sum."""
    return {name: tensor + 1 if name.endswith("norm.weight") else tensor for name, tensor in tensors.items()}


def regroup_qkv(tensors, config):
    """GPT-NeoX keeps q, k and v of a head together; the file has all q, all k, all v."""
    heads, out = config["num_attention_heads"], {}
    for name, tensor in tensors.items():
        if "query_key_value" in name:
            parts = tensor.reshape(heads, 3, -1, *tensor.shape[1:]).transpose(0, 1)
            tensor = parts.reshape(tensor.shape).contiguous()
        out[name] = tensor
    return out


def stack_head_norms(tensors, _config):
    """StableLM's per-head norms become one [heads, head_dim]."""
    out, stacks = {}, {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*)\.([qk])_layernorm\.norms\.(\d+)\.weight", name)
        if not match:
            out[name] = tensor
            continue
        prefix, which, head = match.groups()
        stacks.setdefault(f"{prefix}.{which}_norm.weight", {})[int(head)] = tensor
    return out | {name: torch.stack([part[head] for head in sorted(part)]) for name, part in stacks.items()}


def mamba_state(tensors, _config):
    """A is stored, not its logarithm; A and D have no suffix; the convolution loses its middle axis."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("conv1d.weight"):
            tensor = tensor.squeeze(1)
        index = re.search(r"layers\.(\d+)\.", name)
        if name.endswith("A_log"):
            out[f"blk.{index[1]}.ssm_a"] = -torch.exp(tensor)
        elif name.endswith("mixer.D"):
            out[f"blk.{index[1]}.ssm_d"] = tensor
        else:
            out[name] = tensor
    return out


def suffix_bare(tensors):
    """Tensors without a suffix get one: sinks and the routing correction."""
    out = {}
    for name, tensor in tensors.items():
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        out[f"{name}.weight" if name.endswith("sinks") else name] = tensor
    return out


def gpt_oss(tensors, config):
    return suffix_bare(layout.gpt_oss_to_mlx(tensors, config))


def deepseek(tensors, config):
    return suffix_bare(layout.deepseek_split_to_mlx(tensors, config))


def mixtral(tensors, config):
    return interleave_all(layout.mixtral_to_mlx(tensors, config), config)
