"""Softmax, norms and rotary embeddings."""

import torch
import torch.nn.functional as F

from .case import cases

CASES, case = cases()


@case
def softmaxes(c):
    x = c.give_normal("x", 3, 5, 7, scale=4.0)
    c.expect("last", x.double().softmax(2))
    c.expect("middle", x.double().softmax(1))
    large = c.give("large", torch.tensor([[1e4, 1e4 - 1, -1e4], [-1e30, -1e30, 0.0]])).double()
    c.expect("large", large.softmax(1))


@case
def layer_norms(c):
    x = c.give_normal("x", 4, 24, scale=3.0)
    weight, bias = c.give_normal("weight", 24), c.give_normal("bias", 24)
    x, weight, bias = x.double(), weight.double(), bias.double()
    c.expect("both", F.layer_norm(x, (24,), weight, bias, eps=1e-5))
    c.expect("weight_only", F.layer_norm(x, (24,), weight, None, eps=1e-6))
    c.expect("bare", F.layer_norm(x, (24,), eps=1e-5))


@case
def rms_norms(c):
    x, weight = c.give_normal("x", 5, 24, scale=3.0).double(), c.give_normal("weight", 24).double()
    residual = c.give_normal("residual", 5, 24).double()
    c.expect("weighted", F.rms_norm(x, (24,), weight, eps=1e-6))
    c.expect("bare", F.rms_norm(x, (24,), eps=1e-5))
    c.expect("sum", x + residual)
    c.expect("sum_norm", F.rms_norm(x + residual, (24,), weight, eps=1e-5))


@case
def rms_norm_bf16(c):
    x, weight = c.give_normal("x", 5, 64, dtype=torch.bfloat16), c.give_normal("weight", 64, dtype=torch.bfloat16)
    c.expect("y", F.rms_norm(x.float(), (64,), weight.float(), eps=1e-6), torch.bfloat16)


@case
def group_norms(c):
    x = c.give_normal("x", 2, 6, 3, 5).double()
    weight, bias = c.give_normal("weight", 6).double(), c.give_normal("bias", 6).double()
    c.expect("two", F.group_norm(x, 2, weight, bias, eps=1e-5))
    c.expect("six", F.group_norm(x, 6, weight, bias, eps=1e-5))


def _rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], dim=-1)


def _by_halves(x, positions, freq, scale=1.0):
    """As in transformers: positions times frequencies, doubled, cosine and sine times the attention factor."""
    rotary = 2 * freq.shape[-1]
    angle = positions.double()[:, None] * freq.double()
    angle = torch.cat([angle, angle], dim=-1)[:, None]
    turned, rest = x.double()[..., :rotary], x.double()[..., rotary:]
    turned = turned * angle.cos() * scale + _rotate_half(turned) * angle.sin() * scale
    return torch.cat([turned, rest], dim=-1)


def _by_neighbours(x, positions, freq, scale=1.0):
    """As complex numbers: neighbours are real and imaginary part."""
    rotary = 2 * freq.shape[-1]
    pairs = torch.view_as_complex(x.double()[..., :rotary].reshape(*x.shape[:-1], rotary // 2, 2).contiguous())
    angle = (positions.double()[:, None] * freq.double())[:, None]
    turned = torch.view_as_real(pairs * torch.polar(torch.full_like(angle, scale), angle)).flatten(-2)
    return torch.cat([turned, x.double()[..., rotary:]], dim=-1)


@case
def rope(c):
    x = c.give_normal("x", 5, 3, 16)
    positions = c.give("positions", torch.tensor([0, 1, 7, 100, 513], dtype=torch.int32))
    freq = c.give("freq", (10000.0 ** -(torch.arange(8) / 8.0)).float())
    c.expect("halves", _by_halves(x, positions, freq))
    c.expect("neighbours", _by_neighbours(x, positions, freq))
    c.expect("halves_scaled", _by_halves(x, positions, freq, 1.25))
    c.expect("neighbours_scaled", _by_neighbours(x, positions, freq, 0.8))


@case
def rope_partial(c):
    x = c.give_normal("x", 4, 2, 20)
    positions = c.give("positions", torch.tensor([3, 4, 5, 60], dtype=torch.int32))
    freq = c.give("freq", (500.0 ** -(torch.arange(3) / 3.0)).float())
    c.expect("halves", _by_halves(x, positions, freq))
    c.expect("neighbours", _by_neighbours(x, positions, freq))


@case
def rope_per_token(c):
    x = c.give_normal("x", 4, 2, 12)
    positions = c.give("positions", torch.tensor([0, 9, 2, 33], dtype=torch.int32))
    freq = c.give("freq", c.uniform(4, 6, low=0.001, high=1.0))
    c.expect("halves", _by_halves(x, positions, freq))
    c.expect("neighbours", _by_neighbours(x, positions, freq))
