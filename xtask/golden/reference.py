"""What transformers computes: greedy tokens and the logits that chose them, and whether they are a fair oracle.

A case is fair when decoding with the cache agrees with recomputing everything, when the winner of every position is
clear of the runner-up, and when disturbing every weight by a few roundings moves the logits far less than the tolerance
the engines are held to (which also rules out an expert chosen by a hair).
"""

import copy
import dataclasses

import numpy as np
import torch

STEPS = 48
MIN_DISTINCT = 12
MIN_MARGIN = 1e-3
SHAKE = 5e-7
MAX_NOISE = 3e-5


class Unfair(Exception):
    """This seed does not make a usable case; try another."""


@dataclasses.dataclass
class Case:
    name: str
    prompt: list
    tokens: list
    logits: torch.Tensor


def prompt_for(rng, length, vocab):
    return [int(token) for token in rng.integers(3, vocab, size=length)]


@torch.no_grad()
def greedy(model, prompt, steps=STEPS):
    """Tokens and raw logits [steps, vocab] of `generate()` with the cache; the end-of-text token does not stop it."""
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=steps,
        do_sample=False,
        use_cache=True,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = out.sequences[0, len(prompt) :].tolist()
    return tokens, torch.cat(out.logits).float()


@torch.no_grad()
def forced(model, prompt, tokens):
    """The same logits from one forward pass over the prompt and the tokens chosen."""
    ids = torch.tensor([prompt + tokens[:-1]])
    return model(ids, use_cache=False).logits[0, len(prompt) - 1 :].float()


def distance(ours, theirs):
    """Largest difference relative to the largest logit."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def margin(logits):
    """Smallest lead of the best logit over the second, relative to the row's largest magnitude."""
    top = logits.topk(2, dim=-1).values
    return float(((top[:, 0] - top[:, 1]) / logits.abs().max(dim=-1).values).min())


@torch.no_grad()
def shaken(model):
    """The same model in float64 with every weight off by a few units in the last place of float32."""
    other = copy.deepcopy(model).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in other.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.mul_(1 + SHAKE * noise)
    return other


def check(model, other, case, cache_exact):
    """Raises `Unfair` unless the case can judge an engine. `other` is the shaken model."""
    if len(set(case.tokens)) < MIN_DISTINCT:
        raise Unfair(f"{case.name}: only {len(set(case.tokens))} distinct tokens")
    if margin(case.logits) < MIN_MARGIN:
        raise Unfair(f"{case.name}: margin {margin(case.logits):.1e}")
    if not cache_exact:
        return
    full = forced(model, case.prompt, case.tokens)
    if full.argmax(-1).tolist() != case.tokens:
        raise Unfair(f"{case.name}: cached and full decoding disagree")
    noise = max(distance(case.logits, full), distance(case.logits, forced(other, case.prompt, case.tokens)))
    if noise > MAX_NOISE:
        raise Unfair(f"{case.name}: rounding noise {noise:.1e}")


def make_cases(model, lengths, vocab, seed, cache_exact=True, tries=16):
    """One fair case per (name, prompt length); prompts are redrawn until they are fair."""
    other = shaken(model)
    cases = []
    for name, length in lengths:
        for attempt in range(tries):
            rng = np.random.default_rng([seed, length, attempt])
            prompt = prompt_for(rng, length, vocab)
            # Some rotary embeddings remember the longest sequence seen, so such a model is fresh for every case.
            fresh = model if cache_exact else copy.deepcopy(model)
            case = Case(name, prompt, *greedy(fresh, prompt))
            try:
                check(model, other, case, cache_exact)
                break
            except Unfair as reason:
                last = reason
        else:
            raise Unfair(f"no fair prompt in {tries}: {last}")
        cases.append(case)
    return cases
