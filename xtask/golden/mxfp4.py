"""MXFP4 as gpt-oss is published: 32 values of 4 bits (e2m1) under one power-of-two scale.

`*_blocks` is [experts, out, in / 32, 16] with the earlier of two values in a byte's low nibble; `*_scales` is
[experts, out, in / 32], an exponent biased by 127. The dense tensors are [experts, in, out].
"""

import torch

BLOCK = 32
BIAS = 127
LARGEST = 6.0
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
SETTING = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def quantise(rows):
    """f32 [..., in] to (blocks, scales)."""
    groups = rows.reshape(*rows.shape[:-1], -1, BLOCK)
    peak = groups.abs().amax(-1, keepdim=True).clamp_min(1e-20)
    exponent = torch.ceil(torch.log2(peak / LARGEST))
    scaled = groups / torch.exp2(exponent)
    codes = (scaled[..., None] - VALUES).abs().argmin(-1).to(torch.uint8)
    blocks = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return blocks, (exponent.squeeze(-1) + BIAS).to(torch.uint8)


def dequantise(blocks, scales):
    """(blocks, scales) to f32 [..., in]."""
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2).long()
    values = VALUES[codes] * torch.exp2(scales.float() - BIAS)[..., None]
    return values.flatten(-2)


def convert(tensors):
    """Stored tensors, and the values they stand for under transformers' names."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name], meant[name] = tensor, tensor.float()
            continue
        blocks, scales = quantise(tensor.float().transpose(1, 2).contiguous())
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        meant[name] = dequantise(blocks, scales).transpose(1, 2).contiguous()
    return stored, meant
