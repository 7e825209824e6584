"""MLX's affine quantisation, from its published format: w = scale * q + bias per group along the last axis.

The codes of a row form one little-endian bit stream (first element in the lowest bits), stored as uint32 words. For
2, 4 and 8 bits that is "32/bits codes per word"; for 3, 5 and 6 bits codes straddle words.
"""

import numpy as np
import torch

WORD = 32


def pack(codes, bits):
    """uint codes [..., K] to uint32 [..., K * bits / 32]."""
    shifts = np.arange(bits, dtype=np.uint32)
    stream = ((codes[..., None] >> shifts) & 1).astype(np.uint8)
    stream = stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    packed = np.packbits(stream, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u4")


def unpack(words, bits):
    """The inverse of `pack`."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    stream = stream.reshape(*words.shape[:-1], words.shape[-1] * WORD // bits, bits).astype(np.uint32)
    return (stream << np.arange(bits, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)


def quantise(weight, group_size, bits, dtype):
    """f32 [..., K] to (words, scales, biases); scales and biases [..., K / group_size] are rounded to `dtype`."""
    groups = weight.float().reshape(*weight.shape[:-1], -1, group_size)
    low, high = groups.amin(-1), groups.amax(-1)
    top = 2**bits - 1
    scales = ((high - low) / top).to(dtype)
    biases = low.to(dtype)
    codes = ((groups - biases.float()[..., None]) / scales.float()[..., None]).round().clamp(0, top)
    codes = codes.reshape(weight.shape).to(torch.int64).numpy().astype(np.uint32)
    return torch.from_numpy(pack(codes, bits)), scales, biases


def dequantise(words, scales, biases, group_size, bits):
    """(words, scales, biases) back to f32 [..., K]."""
    codes = torch.from_numpy(unpack(words.numpy(), bits).astype(np.float32))
    groups = codes.reshape(*codes.shape[:-1], -1, group_size)
    values = groups * scales.float()[..., None] + biases.float()[..., None]
    return values.reshape(codes.shape)
