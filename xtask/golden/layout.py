"""Tensor names and layouts: from what transformers saves to what mlx-lm stores, and back.

Every function maps a dictionary of tensors and the config.json beside it; each pair is its own inverse.
"""

import re

import torch

# Experts as published, and the role of each projection in mlx-lm's stacked form.
PROJECTIONS = {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}
MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def stack_experts(tensors, roles):
    """`experts.E.NAME.weight` for every expert becomes `switch_mlp.ROLE.weight` [experts, out, in]."""
    out, stacks = {}, {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)\.weight", name)
        if not match:
            out[name] = tensor
            continue
        prefix, expert, projection = match.groups()
        stacks.setdefault(f"{prefix}.switch_mlp.{roles[projection]}.weight", {})[int(expert)] = tensor
    for name, parts in stacks.items():
        out[name] = torch.stack([parts[expert] for expert in range(len(parts))])
    return out


def unstack_experts(tensors, roles):
    names = {role: name for name, role in roles.items()}
    out = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*)\.switch_mlp\.(\w+)\.weight", name)
        if not match:
            out[name] = tensor
            continue
        prefix, role = match.groups()
        for expert, part in enumerate(tensor):
            out[f"{prefix}.experts.{expert}.{names[role]}.weight"] = part
    return out


def mixtral_to_mlx(tensors, _config):
    return stack_experts(tensors, MIXTRAL)


def mixtral_from_mlx(tensors, _config):
    return unstack_experts(tensors, MIXTRAL)


def moe_to_mlx(tensors, _config):
    return stack_experts(tensors, PROJECTIONS)


def moe_from_mlx(tensors, _config):
    return unstack_experts(tensors, PROJECTIONS)


def deepseek_split_to_mlx(tensors, config):
    """As newer mlx-lm: kv_b_proj becomes per-head embed_q (keys, transposed) and unembed_out (values)."""
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    out = {}
    for name, tensor in stack_experts(tensors, PROJECTIONS).items():
        if not name.endswith("kv_b_proj.weight"):
            out[name] = tensor
            continue
        prefix = name.removesuffix("kv_b_proj.weight")
        heads = tensor.reshape(-1, nope + value, tensor.shape[-1])
        out[f"{prefix}embed_q.weight"] = heads[:, :nope].transpose(1, 2).contiguous()
        out[f"{prefix}unembed_out.weight"] = heads[:, nope:].contiguous()
    return out


def deepseek_split_from_mlx(tensors, _config):
    out = {}
    for name, tensor in unstack_experts(tensors, PROJECTIONS).items():
        if name.endswith("embed_q.weight"):
            values = tensors[name.replace("embed_q", "unembed_out")]
            heads = torch.cat((tensor.transpose(1, 2), values), dim=1)
            out[name.replace("embed_q", "kv_b_proj")] = heads.reshape(-1, heads.shape[-1])
        elif not name.endswith("unembed_out.weight"):
            out[name] = tensor
    return out


def gpt_oss_to_mlx(tensors, _config):
    """De-interleaves gate and up, and turns [experts, in, out] into [experts, out, in]."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("gate_up_proj"):
            rows = tensor.transpose(1, 2)
            out[name.replace("gate_up_proj", "gate_proj.weight")] = rows[:, ::2].contiguous()
            out[name.replace("gate_up_proj", "up_proj.weight")] = rows[:, 1::2].contiguous()
        elif name.endswith("gate_up_proj_bias"):
            out[name.replace("gate_up_proj_bias", "gate_proj.bias")] = tensor[:, ::2].contiguous()
            out[name.replace("gate_up_proj_bias", "up_proj.bias")] = tensor[:, 1::2].contiguous()
        elif name.endswith("down_proj"):
            out[f"{name}.weight"] = tensor.transpose(1, 2).contiguous()
        elif name.endswith("down_proj_bias"):
            out[name.replace("down_proj_bias", "down_proj.bias")] = tensor
        else:
            out[name] = tensor
    return out


def gpt_oss_from_mlx(tensors, _config):
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_proj.weight"):
            pair = torch.stack((tensor, tensors[name.replace("gate_proj", "up_proj")]), dim=2)
            merged = pair.flatten(1, 2).transpose(1, 2).contiguous()
            out[name.replace("gate_proj.weight", "gate_up_proj")] = merged
        elif name.endswith("experts.gate_proj.bias"):
            pair = torch.stack((tensor, tensors[name.replace("gate_proj", "up_proj")]), dim=2)
            out[name.replace("gate_proj.bias", "gate_up_proj_bias")] = pair.flatten(1, 2)
        elif name.endswith("experts.down_proj.weight"):
            out[name.removesuffix(".weight")] = tensor.transpose(1, 2).contiguous()
        elif name.endswith("experts.down_proj.bias"):
            out[name.replace("down_proj.bias", "down_proj_bias")] = tensor
        elif "experts.up_proj" not in name:
            out[name] = tensor
    return out


def is_conv1d(name):
    return re.search(r"\.c_(attn|proj|fc)\.weight$", name) is not None


def gpt2_to_mlx(tensors, _config):
    named = {name.replace("transformer.", "model.", 1): tensor for name, tensor in tensors.items()}
    return {name: tensor.T.contiguous() if is_conv1d(name) else tensor for name, tensor in named.items()}


def gpt2_from_mlx(tensors, _config):
    named = {name.replace("model.", "transformer.", 1): tensor for name, tensor in tensors.items()}
    return {name: tensor.T.contiguous() if is_conv1d(name) else tensor for name, tensor in named.items()}


def gpt_neox_to_mlx(tensors, _config):
    out = {}
    for name, tensor in tensors.items():
        name = name.replace("gpt_neox.layers.", "h.").replace("gpt_neox.", "")
        out[f"model.{name}"] = tensor
    return out


def gpt_neox_from_mlx(tensors, _config):
    out = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("model.")
        if name != "embed_out.weight":
            name = "gpt_neox." + re.sub(r"^h\.", "layers.", name)
        out[name] = tensor
    return out


def mamba_mlx(tensors, _config):
    """The convolution's kernel is [channels, taps, 1] there and [channels, 1, taps] here."""
    return {
        name: tensor.transpose(1, 2).contiguous() if name.endswith("conv1d.weight") else tensor
        for name, tensor in tensors.items()
    }
