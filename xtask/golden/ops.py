"""Makes the op fixtures, `fixtures/ops/GROUP.safetensors`: inputs of small graphs and what torch or numpy make of them.

Every case is computed by a formula written here without a look at the engine's own decompositions, in float64 unless
it says otherwise, and rounded once. A tensor is named `CASE/STEP/in/NAME` or `CASE/STEP/out/NAME`. Attributes such as
scales and windows stand here and, once more, in the Rust table that builds the graphs.
"""

import pathlib

import torch
from safetensors.torch import save_file

from ops_cases import attention, choice, contraction, control, elementwise, movement
from ops_cases import norm, order, paged, recurrent, signals
from ops_cases.case import Case

ROOT = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "ops"
GROUPS = [elementwise, movement, order, norm, contraction, attention, paged, choice, recurrent, signals, control]
LIMIT_BYTES = 1_000_000


def main():
    torch.set_num_threads(1)
    ROOT.mkdir(parents=True, exist_ok=True)
    total = 0
    for group in GROUPS:
        name = group.__name__.rsplit(".", 1)[-1]
        tensors = {}
        for build in group.CASES:
            case = Case(build.__name__)
            build(case)
            tensors |= case.tensors
        path = ROOT / f"{name}.safetensors"
        save_file(dict(sorted(tensors.items())), path)
        total += path.stat().st_size
        print(f"{name}: {len(group.CASES)} cases, {path.stat().st_size} bytes")
    if total > LIMIT_BYTES:
        raise SystemExit(f"{total} bytes of fixtures, more than {LIMIT_BYTES}")


if __name__ == "__main__":
    main()
