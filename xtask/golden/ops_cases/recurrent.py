"""Recurrent layers over ragged batches: each sequence is computed whole and alone, then cut into the steps' chunks."""

import torch
import torch.nn.functional as F

from .case import cases

CASES, case = cases()

# Tokens per sequence and step; sequence s lives in slot SLOTS[s]. The Rust table repeats both.
PLAN = [[4, 2], [1, 3], [1, 1]]
SLOTS = [2, 0]


def _chunks():
    """For each step, the range of each sequence."""
    done = [0] * len(SLOTS)
    for step in PLAN:
        yield [range(d, d + n) for d, n in zip(done, step)]
        done = [d + n for d, n in zip(done, step)]


def _cut(all_of, ranges):
    return torch.cat([t[r.start : r.stop] for t, r in zip(all_of, ranges)])


def _length(s):
    return sum(step[s] for step in PLAN)


@case
def selective_scans(c):
    channels, width = 6, 4
    a = -c.uniform(channels, width, low=0.1, high=2.0)
    d = c.normal(channels)
    per_token = {
        "x": [c.normal(_length(s), channels) for s in range(2)],
        "dt": [c.uniform(_length(s), channels, low=0.01, high=0.8) for s in range(2)],
        "b": [c.normal(_length(s), width) for s in range(2)],
        "c": [c.normal(_length(s), width) for s in range(2)],
    }
    whole = [_scan(*(t[s].double() for t in per_token.values()), a.double(), d.double()) for s in range(2)]
    for number, ranges in enumerate(_chunks()):
        for name, tensors in per_token.items():
            c.give(name, _cut(tensors, ranges), step=number)
        c.give("a", a, step=number)
        c.give("d", d, step=number)
        c.expect("y", _cut(whole, ranges), step=number)


def _scan(x, dt, b, c_out, a, d):
    """The discretised state-space recurrence, element by element."""
    h, rows = torch.zeros_like(a), []
    for t in range(len(x)):
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                h[i, j] = torch.exp(dt[t, i] * a[i, j]) * h[i, j] + dt[t, i] * b[t, j] * x[t, i]
        rows.append(h @ c_out[t] + d * x[t])
    return torch.stack(rows)


@case
def causal_convolutions(c):
    channels, kernel = 5, 4
    w, bias = c.normal(channels, kernel), c.normal(channels)
    x = [c.normal(_length(s), channels) for s in range(2)]
    whole = [
        F.conv1d(F.pad(t.double().T[None], (kernel - 1, 0)), w.double()[:, None], bias.double(), groups=channels)[0].T
        for t in x
    ]
    for number, ranges in enumerate(_chunks()):
        c.give("x", _cut(x, ranges), step=number)
        c.give("w", w, step=number)
        c.give("bias", bias, step=number)
        c.expect("y", _cut(whole, ranges), step=number)
