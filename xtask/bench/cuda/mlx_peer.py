"""MLX through mlx-lm on random weights: `mlx_peer.py SHAPE:SEQUENCES:BITS…`, 16 bits for bf16. Prints how many tokens are made
in a second after prompts of 128, and how fast one long prompt is."""

import sys
import time

try:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.models.llama import Model, ModelArgs
except ImportError as error:
    sys.exit(f"left out: {error}")

from shapes import LONG_PROMPT, PROMPT, SHAPES, VOCABULARY

STEPS = 128


def measure(name, sequences, bits):
    arguments = ModelArgs(model_type="llama", rms_norm_eps=1e-5, vocab_size=VOCABULARY, rope_theta=500000.0, **SHAPES[name])
    model = Model(arguments)
    model.set_dtype(mx.bfloat16)
    if bits < 16:
        nn.quantize(model, group_size=64, bits=bits)
    mx.eval(model.parameters())
    cache = make_prompt_cache(model)

    def step(tokens):
        following = mx.argmax(model(tokens, cache=cache)[:, -1:], -1)
        mx.async_eval(following)
        return following

    tokens = step(mx.random.randint(5, 100_000, (sequences, PROMPT)))
    for _ in range(16):
        tokens = step(tokens)
    mx.eval(tokens)
    started = time.perf_counter()
    for _ in range(STEPS):
        tokens = step(tokens)
    mx.eval(tokens)
    made = sequences * STEPS / (time.perf_counter() - started)
    prompt = mx.random.randint(5, 100_000, (1, LONG_PROMPT))
    read = lambda: mx.eval(mx.argmax(model(prompt, cache=make_prompt_cache(model))[:, -1], -1))
    read()
    started = time.perf_counter()
    read()
    rate = LONG_PROMPT / (time.perf_counter() - started)
    print(f"{name}, {bits} bits, {sequences} sequences: {made:.0f} tok/s; prompt of {LONG_PROMPT}: {rate:.0f} tok/s", flush=True)


print(f"MLX {mx.__version__} on {mx.default_device()}", flush=True)
for case in sys.argv[1:]:
    shape, count, width = case.split(":")
    measure(shape, int(count), int(width))
