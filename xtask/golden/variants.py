"""The variants of one family: f32, bf16, 4-bit, and the fused layout of experts. Each is judged from its own files."""

import dataclasses
import shutil
import tempfile
from pathlib import Path

import torch
import transformers

import affine
import dialect
import folder
import mxfp4
import reference
import weights

ROWS = reference.STEPS
FEW_ROWS = 8
MAX_SEEDS = 40
# mlx-lm never rounds this one.
KEPT = "e_score_correction_bias"


def build(family):
    """An uninitialised model of the family."""
    config = transformers.AutoConfig.for_model(family.kind, **family.config)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def cases_of(family, model, seed):
    vocab = model.config.vocab_size
    return reference.make_cases(model, family.lengths, vocab, seed, family.cache_exact)


def make_f32(family, model, root, seed, variant="f32"):
    path = root / variant
    folder.save_model(model, path)
    dialect.write_old(path)
    cases = cases_of(family, folder.load_model(path), seed)
    folder.write_golden(path, family.name, variant, cases, ROWS if variant == "f32" else FEW_ROWS)
    return cases


def make_fused(family, model, root, cases):
    """The same weights with experts stacked, as `save_pretrained` can also write them."""
    path = root / "f32-fused"
    folder.save_model(model, path, published=False)
    again = folder.load_model(path)
    for case in cases:
        assert reference.distance(reference.forced(again, case.prompt, case.tokens), case.logits) < 1e-5
    folder.write_golden(path, family.name, "f32-fused", cases, FEW_ROWS)


def make_bf16(family, root, seed):
    """Rounded as transformers rounds on loading: it keeps some small tensors in f32."""
    path = root / "bf16"
    folder.save_model(folder.load_model(root / "f32", torch.bfloat16), path)
    cases = cases_of(family, folder.load_model(path), seed)
    folder.write_golden(path, family.name, "bf16", cases, FEW_ROWS)
    return cases


def make_bf16_compute(family, root, cases):
    """Logits of the bf16 weights with bfloat16 arithmetic, along the tokens of the `bf16` variant."""
    path = root / "bf16-compute"
    path.mkdir(parents=True)
    model = folder.load_model(root / "bf16", torch.bfloat16)
    forced = [
        reference.Case(case.name, case.prompt, case.tokens, reference.forced(model, case.prompt, case.tokens))
        for case in cases
    ]
    folder.write_golden(path, family.name, "bf16-compute", forced, FEW_ROWS, {"weights": "bf16"})


def plan(name, tensor, quant):
    """(group_size, bits) for one tensor in MLX's layout, or None: only matrices whose last axis divides."""
    module = name.removesuffix(".weight")
    for suffix, choice in quant.overrides.items():
        if module.endswith(suffix):
            return choice
    if not name.endswith(".weight") or tensor.ndim < 2 or tensor.shape[-1] % quant.group_size:
        return None
    return quant.group_size, quant.bits


def quantise(tensors, quant):
    """Stored tensors, the values they stand for, and the per-module entries of config.json."""
    dtype = getattr(torch, quant.dtype)
    stored, meant, entries = {}, {}, {}
    for name, tensor in tensors.items():
        choice = plan(name, tensor, quant)
        if choice is None:
            stored[name] = tensor if name.endswith(KEPT) else tensor.to(dtype)
            meant[name] = stored[name].float()
            continue
        module = name.removesuffix(".weight")
        words, scales, biases = affine.quantise(tensor, *choice, dtype)
        stored |= {name: words, f"{module}.scales": scales, f"{module}.biases": biases}
        meant[name] = affine.dequantise(words, scales, biases, *choice)
        if choice != (quant.group_size, quant.bits):
            entries[module] = {"group_size": choice[0], "bits": choice[1]}
    return stored, meant, entries


def judge(family, tensors, config, seed):
    """Cases of plain tensors in transformers' names."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch)
        folder.write_tensors(plain, tensors, "pt")
        folder.write_json(plain / "config.json", config)
        return cases_of(family, folder.load_model(plain), seed)


def make_quant(family, root, seed, quant, variant="q4"):
    """MLX affine quantisation of the f32 variant; judged on the values that the stored tensors stand for."""
    path, source = root / variant, root / "f32"
    path.mkdir(parents=True)
    config = folder.read_config(source)
    stored, meant, entries = quantise(quant.to_mlx(folder.read_tensors(source), config), quant)
    folder.write_tensors(path, stored, "mlx")
    setting = {"group_size": quant.group_size, "bits": quant.bits, **entries}
    folder.write_json(path / "config.json", {**config, "dtype": quant.dtype, "quantization": setting})
    cases = judge(family, quant.from_mlx(meant, config), config, seed)
    folder.write_golden(path, family.name, variant, cases, FEW_ROWS)


def make_mxfp4(family, root, seed):
    """The published form of gpt-oss: experts in MXFP4, the rest in bf16."""
    path, source = root / "mxfp4", root / "bf16"
    path.mkdir(parents=True)
    config = folder.read_config(source)
    stored, meant = mxfp4.convert(folder.read_tensors(source))
    folder.write_tensors(path, stored, "pt")
    folder.write_json(path / "config.json", {**config, "quantization_config": mxfp4.SETTING})
    cases = judge(family, meant, config, seed)
    folder.write_golden(path, family.name, "mxfp4", cases, FEW_ROWS)


def make_extra(family, root, seed, variant):
    """An f32-only variant with a changed configuration and weights of its own."""
    changed = dataclasses.replace(family, config={**family.config, **family.extras[variant]})
    model = build(changed)
    weights.randomise(model, changed, seed)
    make_f32(changed, model, root, seed, variant)


def make_all(family, root, seed):
    model = build(family)
    weights.randomise(model, family, seed)
    cases = make_f32(family, model, root, seed)
    if family.fused:
        make_fused(family, model, root, cases)
    rounded = make_bf16(family, root, seed)
    if family.bf16_compute:
        make_bf16_compute(family, root, rounded)
    for variant, quant in family.quants.items():
        make_quant(family, root, seed, quant, variant)
    if family.mxfp4:
        make_mxfp4(family, root, seed)
    for variant in family.extras:
        make_extra(family, root, seed, variant)


def make(family):
    """All variants from the first weight seed for which every one of them is fair; returns that seed."""
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(MAX_SEEDS):
            root = Path(scratch) / str(seed)
            try:
                make_all(family, root, seed)
            except reference.Unfair as reason:
                print(f"{family.name}: seed {seed}: {reason}", flush=True)
                continue
            return install(family, root, seed)
    raise SystemExit(f"{family.name}: no fair seed below {MAX_SEEDS}")


def install(family, root, seed):
    for variant in sorted(root.iterdir()):
        target = folder.ROOT / family.name / variant.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(variant, target)
    print(f"{family.name}: seed {seed}", flush=True)
    return seed
