"""Tiny GGUF checkpoints of the golden weights: `fixtures/gguf/NAME.gguf` with `NAME.json` and `NAME.safetensors`.

Where an architecture's GGUF form cannot say what the golden configuration says (a window, a scale), the configuration
is changed; NAME.json holds the one that was judged by transformers.
"""

import dataclasses
import json
import re
import tempfile
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import save_file

import folder
import gguf_names as names
import reference
import variants
import weights
from gguf_files import FILES

ROOT = folder.ROOT.parent / "gguf"
ROWS = 8
SEEDS = 24
END = 2


def first(config, *fields):
    return next((config[field] for field in fields if config.get(field) is not None), None)


def common_keys(config):
    """What the converter writes for every architecture."""
    heads = first(config, "num_attention_heads", "n_head")
    rope = config.get("rope_parameters") or {}
    keys = {
        "block_count": first(config, "num_hidden_layers", "n_layer"),
        "context_length": first(config, "max_position_embeddings", "n_positions"),
        "embedding_length": first(config, "hidden_size", "n_embd"),
        "feed_forward_length": first(config, "intermediate_size", "n_inner"),
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": first(config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        "rope.freq_base": rope.get("rope_theta"),
    }
    return {key: value for key, value in keys.items() if value is not None}


def add_key(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def add_vocabulary(writer, size):
    """A SentencePiece vocabulary of three specials, every byte, and invented pieces up to `size`."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["\u2581"] + [f"\u2581w{index}" for index in range(size)]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (size + 1)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens[:size])
    writer.add_token_scores([-float(index) for index in range(size)])
    writer.add_token_types(kinds[:size])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_file(path, file, config, tensors):
    """`tensors` maps GGUF names to numpy arrays, or to (raw bytes, type)."""
    writer = gguf.GGUFWriter(path, file.arch)
    writer.add_name("tiny")
    writer.add_file_type(file.file_type)
    if file.file_type:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in (common_keys(config) | file.keys(config)).items():
        add_key(writer, f"{file.arch}.{key}", value)
    add_vocabulary(writer, config["vocab_size"])
    for name, value in tensors.items():
        data, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_judgement(file_name, config, cases):
    golden = {
        "family": config["model_type"],
        "config": config,
        "cases": [{"name": case.name, "prompt": case.prompt, "tokens": case.tokens} for case in cases],
    }
    (ROOT / f"{file_name}.json").write_text(folder.compact_lists(json.dumps(golden, indent=1)) + "\n")
    save_file({case.name: case.logits[:ROWS].contiguous() for case in cases}, ROOT / f"{file_name}.safetensors")


def fair_cases(file, tensors, config):
    """Cases without the end-of-text token, which llama.cpp will not choose when told to ignore it."""
    for seed in range(SEEDS):
        try:
            cases = variants.judge(file.family, tensors, config, seed)
        except reference.Unfair as reason:
            print(f"gguf {file.name}: {reason}", flush=True)
            continue
        if not any(END in case.tokens for case in cases):
            return cases
    raise SystemExit(f"gguf {file.name}: no fair prompts")


def fresh(file):
    """Tensors and configuration of a new model, for a configuration that the golden weights do not fit."""
    family = dataclasses.replace(file.family, config={**file.family.config, **file.changes})
    model = variants.build(family)
    weights.randomise(model, family, seed=0)
    with tempfile.TemporaryDirectory() as scratch:
        folder.save_model(model, Path(scratch))
        return folder.read_tensors(Path(scratch)), folder.read_config(Path(scratch))


def golden_weights(file):
    source = folder.ROOT / file.family.name / file.variant
    return folder.read_tensors(source), {**folder.read_config(source), **file.changes}


def make_file(file):
    tensors, config = fresh(file) if file.fresh else golden_weights(file)
    tensors = {name: tensor for name, tensor in tensors.items() if not re.search(file.drop, name)}
    cases = fair_cases(file, tensors, config)
    laid = file.layout(tensors, config)
    stored = {names.rename(name, file.block, file.top): np.ascontiguousarray(t.numpy()) for name, t in laid.items()}
    ROOT.mkdir(parents=True, exist_ok=True)
    write_file(ROOT / f"{file.name}.gguf", file, config, stored | file.extra(config))
    write_judgement(file.name, config, cases)
    print(f"gguf {file.name}: done", flush=True)


def make(_name):
    for file in FILES:
        make_file(file)
