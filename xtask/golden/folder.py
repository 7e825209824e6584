"""Checkpoint folders on disk: config.json and model.safetensors as a user would have them, and the golden files."""

import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "golden"
EXTRA = ("generation_config.json",)


def save_model(model, folder, published=True):
    """`save_pretrained`, less the files that tests do not need. `published` keeps the hub's names for experts."""
    model.save_pretrained(folder, save_original_format=published)
    for name in EXTRA:
        (folder / name).unlink(missing_ok=True)


def load_model(folder, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="eager",
        experts_implementation="eager",
        local_files_only=True,
    )
    return model.eval()


def read_tensors(folder):
    return load_file(folder / "model.safetensors")


def write_tensors(folder, tensors, form):
    contiguous = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": form})


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_golden(folder, family, variant, cases, rows, extra=None):
    """golden.json, and the first `rows` logit rows of each case."""
    golden = {
        "family": family,
        "transformers": transformers.__version__,
        "variant": variant,
        "cases": [{"name": case.name, "prompt": case.prompt, "tokens": case.tokens} for case in cases],
        **(extra or {}),
    }
    # Lists of ids on one line each: the file stays readable and small.
    text = json.dumps(golden, indent=1)
    (folder / "golden.json").write_text(compact_lists(text) + "\n")
    save_file({case.name: case.logits[:rows].contiguous() for case in cases}, folder / "logits.safetensors")


def compact_lists(text):
    """Joins the lines of innermost lists."""
    out, depth_list = [], False
    for line in text.split("\n"):
        body = line.strip()
        if depth_list:
            out[-1] += (" " if out[-1][-1] not in "[" and body[0] != "]" else "") + body
            depth_list = not body.startswith("]")
        else:
            out.append(line)
            depth_list = body.endswith("[") and '"cases"' not in line
    return "\n".join(out)
