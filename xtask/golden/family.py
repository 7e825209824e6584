"""What a family of the fixtures is: its tiny configuration and how its checkpoint differs from the ordinary."""

import dataclasses
from collections.abc import Callable

LENGTHS = (("short", 7), ("long", 117), ("one", 1))


def same_names(tensors, _config):
    return dict(tensors)


@dataclasses.dataclass(frozen=True)
class Quant:
    """How a quantised variant is made, in mlx-lm's form; `dtype` is that of scales, biases and all that stays plain."""

    group_size: int = 32
    bits: int = 4
    dtype: str = "bfloat16"
    # Modules with parameters of their own: path suffix to (group_size, bits), or None to leave them alone.
    overrides: dict = dataclasses.field(default_factory=dict)
    # From the names transformers saves to the names stored, and back.
    to_mlx: Callable = same_names
    from_mlx: Callable = same_names


@dataclasses.dataclass(frozen=True)
class Family:
    name: str
    config: dict
    model_type: str = ""
    embed_std: float = 1.0
    norm_mean: float = 1.0
    # Regular expression on a parameter's name to a function (rng, shape) that draws it.
    init: dict = dataclasses.field(default_factory=dict)
    lengths: tuple = LENGTHS
    # False where decoding with a cache is by design not the same as recomputing everything.
    cache_exact: bool = True
    # Also write experts stacked, as `save_pretrained` can.
    fused: bool = False
    # Also write the experts in MXFP4, as gpt-oss is published.
    mxfp4: bool = False
    # Small f32-only variants: name to changes of the configuration.
    extras: dict = dataclasses.field(default_factory=dict)
    bf16_compute: bool = False
    # Variant name to its quantisation.
    quants: dict = dataclasses.field(default_factory=lambda: {"q4": Quant()})

    @property
    def kind(self):
        return self.model_type or self.name
