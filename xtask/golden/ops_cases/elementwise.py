"""Ops of one element, and casts."""

import numpy as np
import torch
import torch.nn.functional as F

from .case import cases

CASES, case = cases()


@case
def activations(c):
    x = c.give("x", torch.linspace(-7, 7, 57)).double()
    c.expect("relu", F.relu(x))
    c.expect("relu2", F.relu(x) ** 2)
    c.expect("silu", F.silu(x))
    c.expect("gelu", F.gelu(x))
    c.expect("gelu_tanh", F.gelu(x, approximate="tanh"))
    c.expect("quick_gelu", x * torch.sigmoid(1.702 * x))
    c.expect("softplus", torch.nn.functional.softplus(x, threshold=1e9))


@case
def extreme_activations(c):
    x = c.give("x", torch.tensor([-1e4, -200.0, -30.0, 0.0, 30.0, 200.0, 1e4])).double()
    c.expect("silu", F.silu(x))
    c.expect("gelu", F.gelu(x))
    c.expect("gelu_tanh", F.gelu(x, approximate="tanh"))
    c.expect("softplus", torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs())))


@case
def unary(c):
    x = c.give("x", torch.cat([torch.linspace(-5, 5, 41), torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])])).double()
    positive = c.give("positive", c.uniform(40, low=0.01, high=30.0)).double()
    for name in ["neg", "abs", "sign", "exp", "sin", "cos", "tanh", "erf", "sigmoid", "floor", "ceil", "round"]:
        c.expect(name, getattr(torch, name)(x))
    for name in ["log", "log1p", "sqrt", "rsqrt"]:
        c.expect(name, getattr(torch, name)(positive))


@case
def binary(c):
    a = c.give("a", c.normal(4, 1, 5, scale=3.0)).double()
    b = c.give("b", c.normal(3, 1, scale=3.0)).double()
    base = c.give("base", c.uniform(4, 5, low=0.1, high=3.0)).double()
    c.expect("add", a + b)
    c.expect("sub", a - b)
    c.expect("mul", a * b)
    c.expect("div", a / b)
    c.expect("rem", torch.fmod(a, b))
    c.expect("max", torch.maximum(a, b))
    c.expect("min", torch.minimum(a, b))
    c.expect("pow", base[:, None] ** b)
    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        c.expect(name, getattr(torch, name)(a.round(), b.round()))


@case
def not_a_number_is_passed_on(c):
    nan = float("nan")
    a = c.give("a", torch.tensor([nan, 1.0, nan, 2.0, float("inf"), float("-inf")]))
    b = c.give("b", torch.tensor([1.0, nan, nan, 3.0, 1.0, 1.0]))
    c.expect("max", torch.maximum(a, b))
    c.expect("min", torch.minimum(a, b))
    c.expect("lt", a < b)
    c.expect("ne", a != b)
    c.expect("eq", a == b)


def _integers(c, dtype, low, high, shift):
    kind = np.dtype(dtype)
    a = c.random.integers(low, high, 48, dtype=kind, endpoint=True)
    b = c.random.integers(low, high, 48, dtype=kind, endpoint=True)
    b[:4] = [1, 2, 3, 7]
    b[b == 0] = 5
    by = c.random.integers(0, shift, 48).astype(kind)
    for name, t in [("a", a), ("b", b), ("by", by)]:
        c.give(name, torch.from_numpy(t))
    with np.errstate(over="ignore"):
        quotient = (np.abs(a.astype(object)) // np.abs(b.astype(object))) * np.sign(a.astype(object)) * np.sign(
            b.astype(object)
        )
        results = {
            "add": a + b,
            "sub": a - b,
            "mul": a * b,
            "div": _wrap(quotient, kind),
            "rem": _wrap(a.astype(object) - quotient * b.astype(object), kind),
            "and": a & b,
            "or": a | b,
            "xor": a ^ b,
            "shl": a << by,
            "shr": a >> by,
            "not": ~a,
            "max": np.maximum(a, b),
            "min": np.minimum(a, b),
        }
    for name, t in results.items():
        assert t.dtype == kind, (name, t.dtype)
        c.expect(name, torch.from_numpy(t), torch.from_numpy(t).dtype)
    c.expect("lt", torch.from_numpy(a < b))


def _wrap(values, kind):
    bits = kind.itemsize * 8
    unsigned = np.array([int(v) % 2**bits for v in values], dtype=f"u{kind.itemsize}")
    return unsigned.view(kind)


@case
def integers_i32(c):
    _integers(c, "int32", -(2**31), 2**31 - 1, 32)


@case
def integers_u32(c):
    _integers(c, "uint32", 0, 2**32 - 1, 32)


@case
def integers_i8(c):
    _integers(c, "int8", -128, 127, 8)


@case
def integers_u8(c):
    _integers(c, "uint8", 0, 255, 8)


@case
def integers_i64(c):
    _integers(c, "int64", -(2**63), 2**63 - 1, 64)


@case
def integers_u64(c):
    _integers(c, "uint64", 0, 2**64 - 1, 64)


@case
def casts(c):
    x = c.give("x", torch.tensor([-3.7, -0.5, 0.0, 0.49, 1.5, 2.5, 99.99, 100.001, 0.3333333, 1e-3]))
    n = c.give("n", torch.tensor([-70000, -129, -1, 0, 1, 127, 128, 255, 256, 70001, 16777217], dtype=torch.int32))
    for name, dtype in [("f16", torch.float16), ("bf16", torch.bfloat16), ("f64", torch.float64)]:
        c.expect(f"x_{name}", x.to(dtype), dtype)
        c.expect(f"n_{name}", n.to(dtype), dtype)
    for name, dtype in [("f8e4m3", torch.float8_e4m3fn), ("f8e5m2", torch.float8_e5m2)]:
        c.expect(f"x_{name}", x.to(dtype), dtype)
    for name, dtype in [("i8", torch.int8), ("i16", torch.int16), ("i32", torch.int32), ("i64", torch.int64)]:
        c.expect(f"x_{name}", torch.trunc(x).to(dtype), dtype)
        c.expect(f"n_{name}", n.to(dtype), dtype)
    c.expect("n_u8", n.to(torch.uint8), torch.uint8)
    c.expect("x_bool", x != 0)
    c.expect("n_bool", n != 0)
    c.expect("n_f32", n.to(torch.float32))
