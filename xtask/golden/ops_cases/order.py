"""Reductions, running reductions, sorting and choosing."""

import numpy as np
import torch

from .case import cases

CASES, case = cases()


@case
def reductions(c):
    x = c.give_normal("x", 3, 4, 5).double()
    n = c.give("n", c.integers(4, 6, low=-9, high=9))
    c.expect("sum", x.sum((0, 2)))
    c.expect("sum_all", x.sum())
    c.expect("prod", x.prod(1))
    c.expect("max", x.amax((1, 2)))
    c.expect("min", x.amin(0))
    c.expect("int_sum", n.sum(1))
    c.expect("int_prod", n.prod(0, dtype=torch.int32))
    c.expect("int_max", n.amax(1))


@case
def running(c):
    x = c.give_normal("x", 4, 9).double()
    n = c.give("n", c.integers(3, 7, low=-5, high=6))
    c.expect("sum", x.cumsum(1))
    c.expect("prod", x.cumprod(1))
    c.expect("max", x.cummax(0).values)
    c.expect("min", x.cummin(1).values)
    c.expect("int_sum", n.cumsum(1))


@case
def sorting(c):
    """Stable: equal values keep their order, both ways; NaN is the largest."""
    x = c.give("x", c.integers(4, 17, low=-3, high=4).float())
    for name, axis in [("rows", 1), ("columns", 0)]:
        for descending in [False, True]:
            values, order = torch.sort(x, dim=axis, descending=descending, stable=True)
            c.expect(f"{name}_{'falling' if descending else 'rising'}", values)
            c.expect(f"{name}_{'falling' if descending else 'rising'}_order", order)
    odd = c.give("odd", torch.tensor([1.0, float("nan"), -2.0, float("inf"), float("nan"), float("-inf")]))
    values, order = torch.sort(odd, stable=True)
    c.expect("odd", values)
    c.expect("odd_order", order)


@case
def top_of_distinct(c):
    """The third largest of an unsorted row is the last of the top three, not the first."""
    x = c.give("x", torch.from_numpy(c.random.permutation(40).reshape(2, 20).astype(np.float32)))
    values, order = torch.topk(x, 3, dim=1, sorted=True)
    c.expect("values", values)
    c.expect("order", order)
    c.expect("threshold", values[:, 2])
    c.expect("kept", torch.where(x >= values[:, 2:], x, -1.0))


@case
def top_of_equals(c):
    """Among equals the first comes first."""
    x = c.give("x", c.integers(5, 12, low=0, high=4).float()).numpy()
    order = np.argsort(-x, axis=1, kind="stable")[:, :5]
    c.expect("values", torch.from_numpy(np.take_along_axis(x, order, axis=1)))
    c.expect("order", torch.from_numpy(order))


@case
def largest(c):
    x = c.give("x", c.integers(6, 9, low=0, high=4).float()).numpy()
    n = c.give("n", c.integers(6, 9, low=-2, high=3)).numpy()
    c.expect("rows", torch.from_numpy(x.argmax(1)))
    c.expect("columns", torch.from_numpy(x.argmax(0)))
    c.expect("int_rows", torch.from_numpy(n.argmax(1)))
