"""One case: named inputs and expected outputs per step, and random numbers of its own."""

import zlib

import numpy as np
import torch


class Case:
    def __init__(self, name):
        self.name = name
        self.tensors = {}
        self.random = np.random.default_rng(zlib.crc32(name.encode()))

    def give(self, name, tensor, step=0):
        """Stores an input and returns it."""
        self.tensors[f"{self.name}/{step}/in/{name}"] = stored(tensor)
        return tensor

    def expect(self, name, tensor, dtype=None, step=0):
        """Stores an expected output: floats as float32, integers as int32, unless `dtype` says otherwise."""
        tensor = torch.as_tensor(tensor)
        if dtype is None:
            dtype = torch.float32 if tensor.dtype.is_floating_point else torch.int32
            dtype = torch.bool if tensor.dtype == torch.bool else dtype
        self.tensors[f"{self.name}/{step}/out/{name}"] = stored(tensor.to(dtype))

    def normal(self, *shape, dtype=torch.float32, scale=1.0):
        return torch.from_numpy(self.random.standard_normal(shape) * scale).to(dtype)

    def uniform(self, *shape, low=-1.0, high=1.0, dtype=torch.float32):
        return torch.from_numpy(self.random.uniform(low, high, shape)).to(dtype)

    def integers(self, *shape, low, high, dtype=torch.int32):
        return torch.from_numpy(self.random.integers(low, high, shape)).to(dtype)

    def give_normal(self, name, *shape, dtype=torch.float32, scale=1.0):
        return self.give(name, self.normal(*shape, dtype=dtype, scale=scale))


def stored(tensor):
    return torch.as_tensor(tensor).contiguous().clone()


def cases():
    """A list and the decorator that appends to it."""
    found = []

    def case(build):
        found.append(build)
        return build

    return found, case
