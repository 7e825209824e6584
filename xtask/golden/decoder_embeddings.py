"""Embeddings of tiny decoders: the hidden states of transformers, pooled as sentence-transformers does."""

import json
import pathlib

import torch
import transformers

FAMILIES = ["llama", "qwen3", "gemma2", "gpt2", "mamba", "cohere"]
TEXTS = [[5, 17, 101, 3, 44, 200, 9], [7], [i % 97 + 1 for i in range(23)]]


def unit(x):
    return [round(float(v), 7) for v in x / x.norm()]


def make(_):
    cases = {}
    for family in FAMILIES:
        folder = pathlib.Path("fixtures/golden") / family / "f32"
        model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            rows = [model(torch.tensor([ids])).last_hidden_state[0] for ids in TEXTS]
        cases[family] = {"mean": [unit(x.mean(0)) for x in rows], "last": [unit(x[-1]) for x in rows]}
    out = pathlib.Path("fixtures/golden/decoder-embeddings.json")
    out.write_text(json.dumps({"texts": TEXTS, "families": cases}, separators=(",", ":")) + "\n")
