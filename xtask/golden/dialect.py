"""The older dialect of config.json for the same model: `rope_theta` + `rope_scaling` + `torch_dtype`.

Written as config-old.json beside config.json, after checking that transformers reads both as the same model.
"""

import json

import transformers

import folder

# Names that a family gave to the base and the rotated fraction before they were common.
NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}
LAYERED = ("full_attention", "sliding_attention")


def split(parameters, names):
    """Top-level fields and `rope_scaling` from one flat dictionary of rope parameters."""
    parameters = dict(parameters)
    top = {}
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in parameters:
            top[names.get(key, key)] = parameters.pop(key)
    if parameters.get("rope_type", "default") == "default":
        return top, None
    return top, parameters


def older(config):
    """The same configuration in the older dialect."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"
    parameters = config.pop("rope_parameters", None)
    if parameters is None:
        return config
    if any(key in parameters for key in LAYERED):
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
    top, scaling = split(parameters, NAMES.get(config["model_type"], {}))
    return {**config, **top, "rope_scaling": scaling}


def read(config):
    """Every field as transformers understands it, less what does not change the model."""
    kind = config["model_type"]
    parsed = transformers.AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k != "model_type"})
    fields = json.loads(parsed.to_json_string(use_diff=False))
    dropped = ("transformers_version", "dtype", "torch_dtype")
    return {key: value for key, value in fields.items() if key not in dropped}


def write_old(path):
    config = folder.read_config(path)
    old = older(config)
    new_fields, old_fields = read(config), read(old)
    differing = [key for key in new_fields if new_fields[key] != old_fields.get(key)]
    assert not differing, f"{path}: the dialects differ in {differing}"
    folder.write_json(path / "config-old.json", old)
