"""Makes the golden fixtures: `golden.py FAMILY...` or `golden.py all`. Deterministic for the pinned versions."""

import sys
import warnings

import torch
import transformers

import dense
import moe
import variants

REGISTRY = {family.name: family for family in dense.FAMILIES + moe.FAMILIES}


def main(names):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    chosen = list(REGISTRY) if names == ["all"] else names
    unknown = [name for name in chosen if name not in REGISTRY]
    if unknown or not chosen:
        raise SystemExit(f"usage: golden.py FAMILY... | all; families: {' '.join(REGISTRY)}; unknown: {unknown}")
    for name in chosen:
        variants.make(REGISTRY[name])


if __name__ == "__main__":
    main(sys.argv[1:])
