"""Attention over a paged cache: each sequence is computed whole and alone, then cut into the steps' chunks."""

import math

import torch

from .attention import loop
from .case import cases

CASES, case = cases()

# Per step, how many tokens each of the three sequences adds; the Rust table repeats the plan.
PLAN = [[5, 0, 2], [1, 6, 0], [3, 1, 1], [1, 1, 1]]


def _paged(c, heads, kv_heads, dim, value_dim=None, window=None, cap=None, has_sinks=False, scale=0.35):
    """Each sequence as one plain causal attention over all it ever was given, cut into the plan's chunks."""
    lengths = [sum(step[s] for step in PLAN) for s in range(3)]
    q = [c.normal(n, heads, dim) for n in lengths]
    k = [c.normal(n, kv_heads, dim) for n in lengths]
    v = [t[..., :value_dim] if value_dim else c.normal(*t.shape) for t in k]
    sinks = c.give_normal("sinks", heads).double() if has_sinks else None
    whole = [
        loop(*(t[None].double() for t in (q[s], k[s], v[s])), scale, window=window, cap=cap, sinks=sinks)[0]
        for s in range(3)
    ]
    done = [0, 0, 0]
    for number, step in enumerate(PLAN):
        cut = lambda all_of: torch.cat([all_of[s][done[s] : done[s] + step[s]] for s in range(3)])
        c.give("q", cut(q), step=number)
        c.give("k", cut(k), step=number)
        if value_dim is None:
            c.give("v", cut(v), step=number)
        if sinks is not None:
            c.give("sinks", sinks.float(), step=number)
        c.expect("y", cut(whole), step=number)
        done = [d + n for d, n in zip(done, step)]


@case
def paged_plain(c):
    _paged(c, heads=4, kv_heads=2, dim=8)


@case
def paged_window(c):
    _paged(c, heads=4, kv_heads=4, dim=8, window=3)


@case
def paged_soft_cap(c):
    _paged(c, heads=2, kv_heads=1, dim=8, cap=1.5, scale=2.0)


@case
def paged_sinks(c):
    _paged(c, heads=4, kv_heads=2, dim=8, window=4, has_sinks=True)


@case
def paged_values_in_keys(c):
    _paged(c, heads=4, kv_heads=1, dim=12, value_dim=7, scale=1 / math.sqrt(12))
