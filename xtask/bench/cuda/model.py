"""Writes a Llama of random weights: `model.py 1b|8b|8b-q4 FOLDER`. The weights are bf16, or packed in four bits by groups of 64."""

import json
import math
import pathlib
import struct
import sys

import numpy

from shapes import SHAPES, VOCABULARY

GROUP = 64


def tensors(shape, packed):
    """Names, types and shapes in the order of the file."""
    hidden, inner, width = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * width, shape["num_key_value_heads"] * width

    def matrix(name, rows, columns):
        if not packed:
            return [(f"{name}.weight", "BF16", [rows, columns])]
        groups = [rows, columns // GROUP]
        codes = (f"{name}.weight", "U32", [rows, columns // 8])
        return [codes, (f"{name}.scales", "BF16", groups), (f"{name}.biases", "BF16", groups)]

    found = matrix("model.embed_tokens", VOCABULARY, hidden)
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found += matrix(f"{at}.self_attn.q_proj", queries, hidden)
        found += matrix(f"{at}.self_attn.k_proj", keys, hidden)
        found += matrix(f"{at}.self_attn.v_proj", keys, hidden)
        found += matrix(f"{at}.self_attn.o_proj", hidden, queries)
        found += matrix(f"{at}.mlp.gate_proj", inner, hidden)
        found += matrix(f"{at}.mlp.up_proj", inner, hidden)
        found += matrix(f"{at}.mlp.down_proj", hidden, inner)
        found += [(f"{at}.{norm}.weight", "BF16", [hidden]) for norm in ("input_layernorm", "post_attention_layernorm")]
    found.append(("model.norm.weight", "BF16", [hidden]))
    return found if shape["tie_word_embeddings"] else found + matrix("lm_head", VOCABULARY, hidden)


def bf16(numbers):
    return (numbers.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()


def sources():
    """Bytes that are repeated to fill a tensor, by what it is. Numbers are one more than a power of two, so that no two rows of a
    matrix are the same and the likeliest token is one."""
    random = numpy.random.default_rng(0)
    return {
        "plain": bf16(random.standard_normal((1 << 24) + 1) * 0.02),
        "codes": random.integers(0, 1 << 32, (1 << 23) + 1, dtype=numpy.uint32).tobytes(),
        "norm": bf16(numpy.ones(1 << 16)),
        "scales": bf16(numpy.full(1 << 20, 0.003)),
        "biases": bf16(numpy.full(1 << 20, -0.0225)),
    }


def kind(name, dtype):
    if "norm" in name:
        return "norm"
    ends = [end for end in ("scales", "biases") if name.endswith(end)]
    return ends[0] if ends else "codes" if dtype == "U32" else "plain"


def tokenizer():
    """Bytes by their usual names, and as many other entries as make the vocabulary full."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    names = {byte: chr(byte if byte in plain else next(others)) for byte in range(256)}
    entries = ["<unk>", "<s>", "</s>", *(names[byte] for byte in range(256))]
    entries += [f"w{i}" for i in range(len(entries), VOCABULARY)]
    special = [
        dict(id=i, content=entries[i], single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        for i in range(3)
    ]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    model = dict(type="BPE", vocab={entry: i for i, entry in enumerate(entries)}, merges=[])
    return dict(version="1.0", added_tokens=special, pre_tokenizer=level, decoder=level, model=model)


def main():
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    packed = name.endswith("-q4")
    shape = SHAPES[name.removesuffix("-q4")]
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"BF16": 2, "U32": 4}
    header, offset = {}, 0
    listed = tensors(shape, packed)
    for tensor, dtype, dims in listed:
        end = offset + math.prod(dims) * sizes[dtype]
        header[tensor] = dict(dtype=dtype, shape=dims, data_offsets=[offset, end])
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    bytes_of = sources()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor, dtype, _ in listed:
            begin, end = header[tensor]["data_offsets"]
            source = bytes_of[kind(tensor, dtype)]
            for start in range(begin, end, len(source)):
                file.write(source[: end - start])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    about = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", chat_template=template)
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    config = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=VOCABULARY,
        max_position_embeddings=65536,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        hidden_act="silu",
        bos_token_id=1,
        eos_token_id=2,
        torch_dtype="bfloat16",
        **shape,
    )
    if packed:
        config["quantization"] = dict(group_size=GROUP, bits=4)
    # Last, since it tells that the model is whole.
    (folder / "config.json").write_text(json.dumps(config))


main()
