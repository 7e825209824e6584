"""Dequantisation fixtures: raw GGUF blocks and the values that the `gguf` package reads from them.

The bytes are random, so every code and packed scale occurs; only the half-precision scales are chosen, to be finite
(and once zero, once subnormal).
"""

import pathlib

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "gguf" / "dequant"
BLOCKS = 8
# Where the half-precision scales of a block lie, in bytes.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ2_XXS": (0,),
    "IQ3_XXS": (0,),
}
PLAIN = ("F32", "F16", "BF16")
VIEWS = {"F32": "<f4", "F16": "<f2"}
# Exponents of MXFP4: the ordinary range, and the two that make subnormal scales.
EXPONENTS = (0, 1, 2, 110, 125, 127, 128, 135)


def blocks_of(name, rng):
    kind = GGMLQuantizationType[name]
    raw = rng.integers(0, 256, size=(BLOCKS, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for offset in SCALES[name]:
        scales = rng.uniform(1e-3, 0.1, BLOCKS) * rng.choice([-1.0, 1.0], BLOCKS)
        scales[-1], scales[-2] = 0.0, 3e-7
        raw[:, offset : offset + 2] = scales.astype("<f2").view(np.uint8).reshape(BLOCKS, 2)
    return raw


def plain_bytes(name, rng):
    values = rng.standard_normal(67).astype(np.float32)
    values[:4] = [0.0, -0.0, 1e-40, -65504.0]
    if name == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return values.astype("<f4" if name == "F32" else "<f2").view(np.uint8)


def raw_of(name, rng):
    if name in PLAIN:
        return plain_bytes(name, rng)
    if name == "MXFP4":
        raw = rng.integers(0, 256, size=(BLOCKS, 17), dtype=np.uint8)
        raw[:, 0] = EXPONENTS
        return raw.reshape(-1)
    return blocks_of(name, rng).reshape(-1)


def make(_name):
    ROOT.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate((*PLAIN, *SCALES, "MXFP4")):
        raw = np.ascontiguousarray(raw_of(name, np.random.default_rng(index)))
        given = raw.view(VIEWS.get(name, np.uint8))
        values = dequantize(given, GGMLQuantizationType[name]).astype(np.float32).reshape(-1)
        assert np.isfinite(values).all(), name
        tensors = {"raw": torch.from_numpy(raw), "values": torch.from_numpy(values)}
        save_file(tensors, ROOT / f"{name}.safetensors")
    print("gguf-dequant: done", flush=True)
