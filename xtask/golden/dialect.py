"""The older dialect of config.json for the same model: `rope_theta` + `rope_scaling` + `torch_dtype`, and layer types
derived from a pattern instead of listed.

Written as config-old.json beside config.json, after checking that transformers reads both as the same model.
"""

import copy
import json

import transformers

import folder

# Names that a family gave to the base and the rotated fraction before they were common.
NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}
# Fields that the newer version writes under another name than published files have.
RENAMED = {"qwen3_moe": {"num_local_experts": "num_experts"}}
# Under which key a kind of scaling was published; Llama 3 and Gemma 3 came after the renaming.
KEYS = {"llama3": "rope_type"}
# Fields that say how others were derived, or that older files do not have.
DERIVED = ("transformers_version", "dtype", "torch_dtype", "_sliding_window_pattern")
LAYERED = ("full_attention", "sliding_attention")


def split(parameters, names):
    """Top-level fields and `rope_scaling` from one flat dictionary of rope parameters."""
    parameters = dict(parameters)
    top = {}
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in parameters:
            top[names.get(key, key)] = parameters.pop(key)
    kind = parameters.pop("rope_type", "default")
    if kind == "default":
        return top, None
    return top, {KEYS.get(kind, "type"): kind, **parameters}


def older(config):
    """The same configuration in the older dialect."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"
    for new, old in RENAMED.get(config["model_type"], {}).items():
        config[old] = config.pop(new)
    if config.pop("_sliding_window_pattern", None):
        config["sliding_window_pattern"] = config["layer_types"].index("full_attention") + 1
    config.pop("layer_types", None)
    parameters = config.pop("rope_parameters", None)
    if parameters is None:
        return config
    if any(key in parameters for key in LAYERED):
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
    top, scaling = split(parameters, NAMES.get(config["model_type"], {}))
    if config["model_type"] == "gemma3_text" and scaling:
        scaling["rope_type"] = scaling.pop("type")
    return {**config, **top, "rope_scaling": scaling}


def layered(fields):
    """Rope parameters per layer type, where there are such."""
    return [value for value in (fields.get("rope_parameters") or {}).values() if isinstance(value, dict)]


def read(config):
    """Every field as transformers understands it, less what does not change the model."""
    config = copy.deepcopy(config)
    kind = config.pop("model_type")
    parsed = transformers.AutoConfig.for_model(kind, **config)
    fields = json.loads(parsed.to_json_string(use_diff=False))
    for rope in (fields.get("rope_parameters") or {}, *layered(fields)):
        rope.pop("type", None)
    return {key: value for key, value in fields.items() if key not in DERIVED}


def write_old(path):
    config = folder.read_config(path)
    old = older(config)
    new_fields, old_fields = read(config), read(old)
    differing = [key for key in new_fields if new_fields[key] != old_fields.get(key)]
    assert not differing, f"{path}: the dialects differ in {differing}"
    folder.write_json(path / "config-old.json", old)
