"""Small f32 variants, one per kind of rotary scaling: `llama/rope-*` and `phi3/rope-*`.

Where the frequencies depend on the length reached (dynamic, longrope), the cases record what `generate()` computes with
its cache: one pass over the prompt, then one token a pass, each with the frequencies of its own pass.
"""

import tempfile
from pathlib import Path

import reference
import variants
import weights
from dense import IDS
from family import Family

TINY = {
    **IDS,
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
LENGTHS = (("short", 7), ("long", 117))
# One below the original context throughout, one above it throughout, and one that crosses it while decoding.
CROSSING = (("short", 7), ("long", 117), ("cross", 40))
FACTORS = {
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 4.0],
    "long_factor": [1.2, 1.5, 2.5, 3.5, 5.0, 7.0, 9.0, 12.0],
}


def scaled(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def original(length):
    return {"original_max_position_embeddings": length}


LLAMA = {
    "rope-linear": scaled("linear", factor=3.0),
    "rope-dynamic": {**scaled("dynamic", factor=2.0), "max_position_embeddings": 32},
    "rope-llama3": scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **original(64)),
    "rope-yarn": scaled("yarn", factor=4.0, **original(128)),
    "rope-yarn-mscale": scaled(
        "yarn", factor=4.0, beta_fast=16.0, beta_slow=2.0, mscale=1.2, mscale_all_dim=0.6, **original(128)
    ),
    "rope-yarn-factor": scaled("yarn", factor=4.0, attention_factor=1.3, truncate=False, **original(128)),
}
PHI3 = {
    "rope-longrope": {**scaled("longrope", **FACTORS), **original(64)},
    "rope-longrope-partial": {
        **scaled(
            "longrope",
            partial_rotary_factor=0.75,
            attention_factor=1.15,
            short_factor=FACTORS["short_factor"][:6],
            long_factor=FACTORS["long_factor"][:6],
        ),
        **original(64),
    },
}


def families():
    for variant, change in LLAMA.items():
        exact = variant != "rope-dynamic"
        yield variant, Family("llama", {**TINY, **change}, embed_std=0.5, lengths=LENGTHS, cache_exact=exact)
    for variant, change in PHI3.items():
        yield variant, Family("phi3", {**TINY, **change}, embed_std=0.5, lengths=CROSSING, cache_exact=False)


def make_one(variant, family):
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(variants.MAX_SEEDS):
            root = Path(scratch) / str(seed)
            model = variants.build(family)
            weights.randomise(model, family, seed)
            try:
                variants.make_f32(family, model, root, seed, variant)
            except reference.Unfair as reason:
                print(f"{family.name}/{variant}: seed {seed}: {reason}", flush=True)
                continue
            return variants.install(family, root, seed)
    raise SystemExit(f"{family.name}/{variant}: no fair seed")


def make(_name):
    for variant, family in families():
        make_one(variant, family)
