"""The encoder family: sentence embeddings of BERT, pooled as sentence-transformers pools them.

A case is a batch of token lists of different lengths. Each list is run alone and, as a check, padded in the batch.
"""

import json
import shutil

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import dialect
import folder
import variants
import weights
from family import Family, Quant

BERT = Family(
    name="bert",
    config={
        "vocab_size": 263,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 160,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
)
CASES = {"short": (7, 3, 12), "long": (131, 40, 64), "one": (1,)}
SEED = 0


def load(path):
    model = transformers.AutoModel.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


def unit(vector):
    return torch.nn.functional.normalize(vector, dim=-1)


@torch.no_grad()
def hidden(model, prompt):
    ids = torch.tensor([prompt])
    return model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]


@torch.no_grad()
def padded_means(model, prompts):
    """Mean pooling over a padded batch with its mask, to be compared with each list alone."""
    width = max(map(len, prompts))
    ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts])
    mask = torch.tensor([[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in prompts])
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return unit((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def embed(model, prompts):
    states = [hidden(model, prompt) for prompt in prompts]
    mean = unit(torch.stack([state.mean(0) for state in states]))
    cls = unit(torch.stack([state[0] for state in states]))
    assert (mean - padded_means(model, prompts)).abs().max() < 1e-5
    return states[0], mean, cls


def write(path, variant, model):
    rng = np.random.default_rng(SEED)
    golden = {"family": "bert", "transformers": transformers.__version__, "variant": variant, "cases": []}
    tensors = {}
    for name, lengths in CASES.items():
        prompts = [[int(token) for token in rng.integers(3, 263, size=length)] for length in lengths]
        first, mean, cls = embed(model, prompts)
        golden["cases"].append({"name": name, "prompt": prompts})
        tensors |= {f"{name}.mean": mean, f"{name}.cls": cls}
        if name == "short":
            tensors["short.hidden"] = first
    (path / "golden.json").write_text(folder.compact_lists(json.dumps(golden, indent=1)) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "logits.safetensors")


def make_quant(source, path, quant):
    path.mkdir()
    config = folder.read_config(source)
    stored, meant, _ = variants.quantise(folder.read_tensors(source), quant)
    setting = {"group_size": quant.group_size, "bits": quant.bits}
    folder.write_tensors(path, meant, "pt")
    folder.write_json(path / "config.json", config)
    write(path, "q4", load(path))
    folder.write_tensors(path, stored, "mlx")
    folder.write_json(path / "config.json", {**config, "dtype": quant.dtype, "quantization": setting})


def make(family):
    root = folder.ROOT / family.name
    shutil.rmtree(root, ignore_errors=True)
    config = transformers.AutoConfig.for_model("bert", **family.config)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    weights.randomise(model, family, SEED)
    folder.save_model(model, root / "f32")
    dialect.write_old(root / "f32")
    write(root / "f32", "f32", load(root / "f32"))
    folder.save_model(model.to(torch.bfloat16), root / "bf16")
    write(root / "bf16", "bf16", load(root / "bf16"))
    make_quant(root / "f32", root / "q4", Quant())
    print(f"{family.name}: seed {SEED}", flush=True)
