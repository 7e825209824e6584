"""Random but not degenerate weights for a tiny model.

Knows how to fill parameters by their role (embedding, projection, norm, bias); families override a role by a
regular expression on the parameter's name. Knows nothing of files.
"""

import math
import re

import numpy as np
import torch

# A gain well above 1 makes attention sharp and lets the residual branches outweigh the embedding, so that the
# next token is not simply a function of the last one.
PROJECTION_GAIN = 1.6
NORM_SPREAD = 0.25
BIAS_STD = 0.2


def embedding_names(model):
    """Names of the token, position and type tables."""
    tables = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
    return {f"{name}.weight" for name in tables}


def draw(rng, shape, std, mean=0.0):
    values = rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(std) + np.float32(mean)
    return torch.from_numpy(values)


def value_for(rng, name, tensor, family, tables):
    for pattern, fill in family.init.items():
        if re.search(pattern, name):
            return fill(rng, tensor.shape)
    if name in tables:
        return draw(rng, tensor.shape, family.embed_std)
    if tensor.ndim >= 2:
        # Fused experts and convolution kernels: the last axis is the contracted one in every layout but GPT-2's
        # and gpt-oss's, which override.
        return draw(rng, tensor.shape, PROJECTION_GAIN / math.sqrt(tensor.shape[-1]))
    if name.endswith("bias"):
        return draw(rng, tensor.shape, BIAS_STD)
    return draw(rng, tensor.shape, NORM_SPREAD, mean=family.norm_mean)


def persistent_buffers(model):
    """Buffers that a checkpoint holds, such as the routing correction of DeepSeek-V3."""
    kept = set(model.state_dict().keys())
    return [(name, buffer) for name, buffer in model.named_buffers() if name in kept]


@torch.no_grad()
def randomise(model, family, seed):
    """Fills every parameter and stored buffer of `model`, in name order, from one seeded stream."""
    rng = np.random.default_rng([seed, *family.name.encode()])
    tables = embedding_names(model)
    tensors = sorted(list(model.named_parameters()) + persistent_buffers(model))
    for name, tensor in tensors:
        if tensor.is_floating_point():
            tensor.copy_(value_for(rng, name, tensor, family, tables))
