"""Products: contractions, convolutions, and matrices in packed formats."""

import affine
import gguf
import numpy as np
import torch
import torch.nn.functional as F

from .case import cases

CASES, case = cases()


@case
def dots(c):
    a = c.give_normal("a", 3, 4, 5).double()
    b = c.give_normal("b", 5, 3, 6).double()
    d = c.give_normal("d", 4, 3, 5, 2).double()
    c.expect("matmul", torch.einsum("ijk,kmn->ijmn", a, b))
    c.expect("batched", torch.einsum("bik,kbn->bin", a, b))
    c.expect("two_contracted", torch.einsum("ijk,jikn->n", a, d)[None])
    c.expect("batch_and_two", torch.einsum("ijk,jikn->jn", a, d))
    c.expect("crossed_batch", torch.einsum("ijk,jikn->kjin", a, d))
    c.expect("outer", torch.einsum("ijk,mno->ijkmno", a[:1, :2, :2], b[:2, :1, :3]))


@case
def integer_dots(c):
    a = c.give("a", c.integers(3, 40, low=-128, high=128, dtype=torch.int8))
    b = c.give("b", c.integers(40, 5, low=-128, high=128, dtype=torch.int8))
    c.expect("y", a.int() @ b.int())


@case
def half_dots(c):
    a = c.give_normal("a", 3, 64, dtype=torch.float16)
    b = c.give_normal("b", 64, 5, dtype=torch.float16)
    c.expect("y", (a.double() @ b.double()), torch.float16)
    c.expect("wide", (a.double() @ b.double()), torch.float32)


@case
def convolutions_1d(c):
    x, w = c.give_normal("x", 2, 6, 15).double(), c.give_normal("w", 4, 6, 3).double()
    grouped = c.give_normal("grouped", 9, 2, 4).double()
    depthwise = c.give_normal("depthwise", 6, 1, 5).double()
    c.expect("plain", F.conv1d(x, w))
    c.expect("strided", F.conv1d(x, w, stride=2, padding=1))
    c.expect("dilated", F.conv1d(x, w, dilation=3, padding=2))
    c.expect("grouped", F.conv1d(x, grouped, groups=3))
    c.expect("causal", F.conv1d(F.pad(x, (4, 0)), depthwise, groups=6))


@case
def convolutions_2d(c):
    x, w = c.give_normal("x", 2, 4, 9, 8).double(), c.give_normal("w", 6, 4, 3, 2).double()
    grouped = c.give_normal("grouped", 6, 2, 2, 3).double()
    c.expect("plain", F.conv2d(x, w))
    c.expect("mixed", F.conv2d(x, w, stride=(2, 3), padding=(1, 2), dilation=(2, 1)))
    c.expect("grouped", F.conv2d(x, grouped, groups=2, padding=1))
    c.expect("lopsided", F.conv2d(F.pad(x, (1, 2, 0, 3)), w, stride=2))


@case
def convolution_3d(c):
    x, w = c.give_normal("x", 1, 2, 5, 4, 6).double(), c.give_normal("w", 3, 2, 2, 3, 2).double()
    c.expect("y", F.conv3d(x, w, stride=(1, 1, 2), padding=(1, 0, 1)))


@case
def linears(c):
    x = c.give_normal("x", 2, 3, 32).double()
    bias = c.give_normal("bias", 5).double()
    for name, dtype in [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)]:
        w = c.give_normal(f"w_{name}", 5, 32, dtype=dtype).double()
        c.expect(f"y_{name}", x @ w.T + bias)
    c.expect("bare", x @ w.T)


@case
def embeddings(c):
    table = c.give_normal("table", 11, 6, dtype=torch.bfloat16)
    ids = c.give("ids", torch.tensor([[0, 10, 3], [3, 7, 1]], dtype=torch.int32))
    c.expect("f32", F.embedding(ids, table.float()))
    c.expect("bf16", F.embedding(ids, table), torch.bfloat16)


@case
def expert_linears(c):
    """`shared` has one row per token for all its experts, `own` one row per expert."""
    w = c.give_normal("w", 4, 5, 16).double()
    bias = c.give_normal("bias", 4, 5).double()
    ids = c.give("ids", torch.tensor([[0, 3], [2, 1], [3, 3]], dtype=torch.int32)).long()
    shared, own = c.give_normal("shared", 3, 1, 16).double(), c.give_normal("own", 3, 2, 16).double()
    c.expect("shared", torch.einsum("tkoi,ti->tko", w[ids], shared[:, 0]))
    c.expect("own", torch.einsum("tkoi,tki->tko", w[ids], own) + bias[ids])


def _products(c, w):
    """What the three ops that read packed matrices make of `[12, cols]`, as a table, a matrix and four experts of 3."""
    x = c.give_normal("x", 3, w.shape[1]).double()
    ids = torch.tensor([[0, 3], [2, 1], [3, 3]])
    rows = torch.tensor([11, 0, 5])
    c.expect("linear", x @ w.T)
    c.expect("rows", w[rows])
    c.expect("experts", torch.einsum("tkoi,ti->tko", w.reshape(4, 3, -1)[ids], x))


def _affine(c, bits, group, dtype):
    w = c.normal(12, 128)
    words, scales, biases = affine.quantise(w, group, bits, dtype)
    c.give("w.codes", words.view(torch.uint8))
    c.give("w.scale", scales)
    c.give("w.bias", biases)
    _products(c, affine.dequantise(words, scales, biases, group, bits).double())


@case
def affine_2_bit(c):
    _affine(c, 2, 32, torch.float16)


@case
def affine_3_bit(c):
    _affine(c, 3, 64, torch.bfloat16)


@case
def affine_4_bit(c):
    _affine(c, 4, 64, torch.bfloat16)


@case
def affine_5_bit(c):
    _affine(c, 5, 128, torch.float32)


@case
def affine_6_bit(c):
    _affine(c, 6, 32, torch.float16)


@case
def affine_8_bit(c):
    _affine(c, 8, 64, torch.float32)


@case
def microscaling_4_bit(c):
    """OCP MXFP4: sixteen values of E2M1, one power of two per 32."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()
    values = torch.cat([values, -values])
    codes = c.integers(12, 128, low=0, high=16, dtype=torch.uint8)
    exponents = c.give("w.scale", c.integers(12, 4, low=121, high=128, dtype=torch.uint8))
    c.give("w.codes", codes[:, 0::2] | (codes[:, 1::2] << 4))
    scales = 2.0 ** (exponents.double() - 127)
    _products(c, values[codes.long()] * scales.repeat_interleave(32, dim=1))


def _gguf(c, kind, scales):
    """Random blocks of 256 columns; the half-precision numbers at the byte offsets `scales` are made sensible."""
    length, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = c.random.integers(0, 256, (12 * 256 // length, size), dtype=np.uint8)
    for at in scales:
        small = c.random.uniform(0.01, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = small.view(np.uint8).reshape(-1, 2)
    c.give("w.codes", torch.from_numpy(blocks.reshape(12, -1)))
    w = gguf.quants.dequantize(blocks.reshape(12, -1), kind)
    _products(c, torch.from_numpy(w.reshape(12, 256).copy()).double())


@case
def gguf_q4_0(c):
    _gguf(c, gguf.GGMLQuantizationType.Q4_0, [0])


@case
def gguf_q4_1(c):
    _gguf(c, gguf.GGMLQuantizationType.Q4_1, [0, 2])


@case
def gguf_q8_0(c):
    _gguf(c, gguf.GGMLQuantizationType.Q8_0, [0])


@case
def gguf_q4_k(c):
    _gguf(c, gguf.GGMLQuantizationType.Q4_K, [0, 2])


@case
def gguf_q6_k(c):
    _gguf(c, gguf.GGMLQuantizationType.Q6_K, [208])
