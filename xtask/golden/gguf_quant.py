"""A llama whose matrices are in every quantised GGUF format a text model uses: `fixtures/gguf/llama-quant.gguf`.

The blocks are drawn rather than encoded: random codes and packed scales, centred on zero by the choice of the block's
minimum. Their meaning is what the `gguf` package reads, and transformers judges that.
"""

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize, quantize

import dense
import gguf_files
import gguf_keys
import gguf_models
import gguf_names
import reference
import variants
from family import Family

CONFIG = {
    **dense.IDS,
    "vocab_size": 131,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": dense.theta(10000.0),
    "tie_word_embeddings": False,
}
KINDS = {
    "token_embd": "Q8_0",
    "output": "Q6_K",
    "blk.0.attn_q": "Q4_K",
    "blk.0.attn_k": "Q8_0",
    "blk.0.attn_v": "Q6_K",
    "blk.0.attn_output": "Q5_K",
    "blk.0.ffn_gate": "Q3_K",
    "blk.0.ffn_up": "Q2_K",
    "blk.0.ffn_down": "IQ4_XS",
    "blk.1.attn_q": "Q4_0",
    "blk.1.attn_k": "Q5_0",
    "blk.1.attn_v": "Q4_1",
    "blk.1.attn_output": "Q5_1",
    "blk.1.ffn_gate": "IQ4_NL",
    "blk.1.ffn_up": "IQ3_XXS",
    "blk.1.ffn_down": "IQ2_XXS",
}
# Formats that the package can encode; the others are drawn.
ENCODED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
# Offset of the scale, then, where there is one, of the minimum's scale, and the mean code it must cancel.
LAYOUT = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0),
    "IQ4_NL": (0, None, 0),
    "IQ4_XS": (0, None, 0),
    "IQ2_XXS": (0, None, 0),
    "IQ3_XXS": (0, None, 0),
}
STD = 0.1


def halves(values):
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)


def share_scales(raw, kind):
    """Makes each sub-block's minimum equal to its scale, so that one ratio centres all of them."""
    if kind == "Q2_K":
        low = raw[:, :16] & 15
        raw[:, :16] = low | (low << 4)
    else:
        # Bytes 0-3 hold six-bit scales, 4-7 minima; 8-11 the low four bits of both for the second half.
        raw[:, 8:12] = raw[:, 4:8]
        low = raw[:, 12:16] & 15
        raw[:, 12:16] = low | (low << 4)


def drawn(kind, rows, columns, rng):
    """Random blocks with values of standard deviation `STD`."""
    width, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, size=(rows * columns // width, size), dtype=np.uint8)
    scale_at, minimum_at, mean = LAYOUT[kind]
    if minimum_at is not None:
        share_scales(raw, kind)
    for scale in (1e-3, None):
        scale = scale or 1e-3 * STD / values.std()
        spread = scale * rng.uniform(0.7, 1.3, len(raw))
        raw[:, scale_at : scale_at + 2] = halves(spread)
        if minimum_at is not None:
            raw[:, minimum_at : minimum_at + 2] = halves(spread * mean)
        values = dequantize(raw.reshape(rows, -1), GGMLQuantizationType[kind])
    return raw.reshape(rows, -1)


def blocks(kind, shape, rng):
    if kind in ENCODED:
        plain = rng.standard_normal(shape, dtype=np.float32) * np.float32(STD)
        return quantize(plain, GGMLQuantizationType[kind])
    return drawn(kind, *shape, rng)


def deinterleave(tensor, heads):
    """The inverse of the row order that the file has for q and k."""
    pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()


def draw_all(model, rng):
    """Tensors for the file, and the same values under transformers' names."""
    stored, meant = {}, {}
    heads = {"q_proj": CONFIG["num_attention_heads"], "k_proj": CONFIG["num_key_value_heads"]}
    for name, tensor in sorted(model.state_dict().items()):
        target = gguf_names.rename(name, gguf_names.BLOCK, gguf_names.TOP)
        kind = KINDS.get(target.removesuffix(".weight"))
        if kind is None:
            values = (1 + 0.25 * rng.standard_normal(tuple(tensor.shape))).astype(np.float32)
            stored[target], meant[name] = values, torch.from_numpy(values)
            continue
        raw = blocks(kind, tuple(tensor.shape), rng)
        stored[target] = raw, GGMLQuantizationType[kind]
        values = torch.from_numpy(dequantize(raw, GGMLQuantizationType[kind]).astype(np.float32))
        projection = name.split(".")[-2]
        meant[name] = deinterleave(values, heads[projection]) if projection in heads else values
    return stored, meant


def make(_name):
    family = Family("llama", CONFIG)
    file = gguf_files.File(
        "llama-quant",
        family,
        "llama",
        gguf_names.BLOCK,
        file_type=gguf.LlamaFileType.MOSTLY_Q4_K_M,
        keys=gguf_keys.llama_keys,
    )
    model = variants.build(family)
    config = {"model_type": "llama", "dtype": "float32", "architectures": ["LlamaForCausalLM"], **CONFIG}
    for seed in range(variants.MAX_SEEDS):
        stored, meant = draw_all(model, np.random.default_rng(seed))
        try:
            cases = variants.judge(family, meant, config, seed)
        except reference.Unfair as reason:
            print(f"gguf llama-quant: seed {seed}: {reason}", flush=True)
            continue
        gguf_models.write_file(gguf_models.ROOT / "llama-quant.gguf", file, config, stored)
        gguf_models.write_judgement("llama-quant", config, cases)
        return print(f"gguf llama-quant: seed {seed}", flush=True)
    raise SystemExit("gguf llama-quant: no fair seed")
