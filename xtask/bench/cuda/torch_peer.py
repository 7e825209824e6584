"""transformers with a static cache, compiled, on random weights: `torch_peer.py SHAPE:SEQUENCES…`. Prints what is made in a
second after prompts of 128 tokens, prompts included, and how fast one long prompt is."""

import sys
import time

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    sys.exit(f"left out: {error}")

from shapes import ANSWER, LONG_PROMPT, PROMPT, SHAPES, VOCABULARY


def seconds(work):
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(name, sequences):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=8192, **SHAPES[name]))
    model = model.eval()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    ids = torch.randint(5, 100_000, (sequences, PROMPT), device="cuda")
    limits = dict(max_new_tokens=ANSWER, min_new_tokens=ANSWER, do_sample=False, cache_implementation="static")
    answer = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **limits)
    # The first calls compile.
    answer()
    answer()
    made = sequences * ANSWER / min(seconds(answer) for _ in range(2))
    prompt = torch.randint(5, 100_000, (1, LONG_PROMPT), device="cuda")
    read = lambda: model(prompt, logits_to_keep=1)
    read()
    fastest = min(seconds(read) for _ in range(3))
    print(f"{name}, {sequences} sequences: {made:.0f} tok/s; prompt of {LONG_PROMPT}: {LONG_PROMPT / fastest:.0f} tok/s", flush=True)


with torch.no_grad():
    for case in sys.argv[1:]:
        shape, count = case.split(":")
        measure(shape, int(count))
        torch.cuda.empty_cache()
