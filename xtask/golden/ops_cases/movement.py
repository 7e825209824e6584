"""Ops that move and index elements, with numpy."""

import numpy as np
import torch

from .case import cases

CASES, case = cases()


@case
def shapes(c):
    x = c.give_normal("x", 2, 3, 4)
    row = c.give_normal("row", 3, 1)
    c.expect("reshape", x.reshape(4, 6))
    c.expect("transpose", x.permute(2, 0, 1))
    c.expect("broadcast", row.expand(2, 3, 4))
    c.expect("slice", x[:, 1:3])
    c.expect("slice_step", x[:, :, 1:4:2])
    c.expect("concat", torch.cat([x, x[:, :1], x[:, 2:]], dim=1))
    c.expect("pad", torch.nn.functional.pad(x, (1, 2, 0, 1, 3, 0), value=-1.5))
    c.expect("select", torch.where(x > 0, x, row.expand(3, 4)))


@case
def dynamic_slices(c):
    """Starts that would leave the tensor are moved back so that the slice fits."""
    x = c.give_normal("x", 5, 7).numpy()
    update = c.give_normal("update", 2, 3).numpy()
    for name, starts in [("inside", [1, 2]), ("beyond", [9, 5]), ("before", [-3, -1])]:
        c.give(name, torch.tensor(starts, dtype=torch.int32))
        i, j = min(max(starts[0], 0), 3), min(max(starts[1], 0), 4)
        c.expect(f"slice_{name}", torch.from_numpy(x[i : i + 2, j : j + 3]))
        changed = x.copy()
        changed[i : i + 2, j : j + 3] = update
        c.expect(f"update_{name}", torch.from_numpy(changed))


@case
def gathers(c):
    """Indices out of range are clamped."""
    x = c.give_normal("x", 4, 5, 3).numpy()
    index = c.give("index", torch.tensor([[0, 4, 2], [-1, 99, 3]], dtype=torch.int32)).numpy()
    along = c.give("along", c.integers(4, 2, 3, low=-2, high=8)).numpy()
    c.expect("axis1", torch.from_numpy(np.take(x, np.clip(index, 0, 4), axis=1)))
    c.expect("axis0", torch.from_numpy(np.take(x, np.clip(index, 0, 3), axis=0)))
    c.expect("along", torch.from_numpy(np.take_along_axis(x, np.clip(along, 0, 4), axis=1)))


@case
def scatters(c):
    """Duplicates: the later update wins, or both are added; an index out of range drops its row."""
    x = c.give_normal("x", 5, 3).numpy()
    index = c.give("index", torch.tensor([2, -1, 0, 2, 5, 4], dtype=torch.int32)).numpy()
    updates = c.give_normal("updates", 6, 3).numpy()
    written, added = x.copy(), x.astype(np.float64)
    for i, row in zip(index, updates):
        if 0 <= i < 5:
            written[i] = row
            added[i] += row
    c.expect("set", torch.from_numpy(written))
    c.expect("add", torch.from_numpy(added))


@case
def counting(c):
    c.give("x", torch.zeros(3, 2))
    c.expect("iota0", torch.arange(3)[:, None].expand(3, 2))
    c.expect("iota1", torch.arange(2.0)[None].expand(3, 2))
    c.expect("size", torch.tensor(3))
