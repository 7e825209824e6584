"""Branches, loops and scans."""

import torch

from .case import cases

CASES, case = cases()


@case
def branches(c):
    x = c.give_normal("x", 3, 4).double()
    w = c.give_normal("w", 4).double()
    c.expect("then", x * w + 1)
    c.expect("then_sum", (x * w).sum(1))
    c.expect("other", x - w)
    c.expect("other_sum", x.sum(1))


@case
def newton_until_converged(c):
    """Several carried values of several types, and a bound that is only captured."""
    x = c.give("x", torch.tensor([2.0, 9.0, 100.0]))
    limit = c.give("limit", torch.tensor(6, dtype=torch.int32))
    root, steps = x.double(), 0
    while steps < int(limit):
        root, steps = (root + x.double() / root) / 2, steps + 1
    c.expect("root", root)
    c.expect("steps", torch.tensor(steps))


@case
def a_loop_that_never_runs(c):
    x = c.give_normal("x", 3)
    c.give("limit", torch.tensor(0, dtype=torch.int32))
    c.expect("root", x)
    c.expect("steps", torch.tensor(0))


@case
def recurrence(c):
    """h = tanh(h w + x), with the running maximum as a second carried value and two stacked outputs."""
    x = c.give_normal("x", 6, 4).double()
    gate = c.give_normal("gate", 6).double()
    w = c.give_normal("w", 4, 4, scale=0.5).double()
    h, best, rows, tops = torch.zeros(4).double(), torch.full((), -1e30).double(), [], []
    for t in range(6):
        h = torch.tanh(h @ w + x[t] * gate[t])
        best = torch.maximum(best, h.max())
        rows.append(h * 2)
        tops.append(best)
    c.expect("last", h)
    c.expect("best", best)
    c.expect("rows", torch.stack(rows))
    c.expect("tops", torch.stack(tops))
