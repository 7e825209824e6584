"""Choosing experts and tokens."""

import numpy as np
import torch

from .case import cases

CASES, case = cases()


@case
def route_softmax(c):
    """As mixtral and qwen3_moe: softmax over all experts, the best k, with and without renormalising."""
    logits = c.give_normal("logits", 6, 8, scale=2.0).double()
    weights, ids = torch.topk(logits.softmax(1), 3, dim=1)
    c.expect("ids", ids)
    c.expect("plain", weights)
    c.expect("renormalised", weights / weights.sum(1, keepdim=True))


@case
def route_softmax_of_chosen(c):
    """As gpt_oss: the best k logits first, softmax over those."""
    logits = c.give_normal("logits", 6, 8, scale=2.0).double()
    best, ids = torch.topk(logits, 4, dim=1)
    c.expect("ids", ids)
    c.expect("weights", best.softmax(1))


@case
def route_grouped_sigmoid(c):
    """As deepseek_v3: the correction and the groups decide who is chosen, the bare sigmoid decides the weights."""
    logits = c.give_normal("logits", 9, 16, scale=2.0).double()
    correction = c.give_normal("correction", 16, scale=0.5).double()
    scores = logits.sigmoid()
    choice = scores + correction
    by_group = choice.reshape(9, 4, 4)
    rank = by_group.topk(2, dim=2).values.sum(2)
    kept = torch.zeros(9, 4, dtype=torch.bool).scatter(1, rank.topk(2, dim=1).indices, True)
    allowed = kept[:, :, None].expand(9, 4, 4).reshape(9, 16)
    ids = choice.masked_fill(~allowed, float("-inf")).topk(5, dim=1).indices
    weights = scores.gather(1, ids)
    c.expect("ids", ids)
    c.expect("weights", weights / weights.sum(1, keepdim=True) * 2.5)


@case
def route_sigmoid(c):
    logits = c.give_normal("logits", 5, 7, scale=2.0).double()
    weights, ids = torch.topk(logits.sigmoid(), 2, dim=1)
    c.expect("ids", ids)
    c.expect("weights", weights * 1.5)


MASK = 0xFFFFFFFF


def _mix(h):
    h = ((h ^ (h >> 16)) * 0x7FEB352D) & MASK
    h = ((h ^ (h >> 15)) * 0x846CA68B) & MASK
    return h ^ (h >> 16)


def _uniform(seed, step):
    return (_mix(_mix((seed + 0x9E3779B9) & MASK) ^ step) >> 8) / 2**24


def _draw(logits, temperature, top_k, top_p, min_p, seed, step):
    """Walks the tokens from the likeliest down and keeps a set; then inverts the cumulative distribution."""
    if temperature <= 0:
        return int(np.argmax(logits))
    order = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    if top_k > 0:
        order = order[:top_k]
    p = np.exp(np.array([logits[t] - logits[order[0]] for t in order]) / temperature)
    share, kept, mass = p / p.sum(), [], 0.0
    for rank in range(len(order)):
        if rank > 0 and (mass >= top_p or p[rank] < min_p * p[0]):
            break
        kept.append(rank)
        mass += share[rank]
    target, passed = _uniform(seed, step) * p[kept].sum(), 0.0
    for rank in kept:
        passed += p[rank]
        if passed > target:
            return order[rank]
    return order[kept[-1]]


@case
def draws(c):
    """Forty rows with every mixture of filters; a drawing at the edge of two tokens would be no fair test."""
    rows, vocabulary = 40, 30
    logits = c.give_normal("logits", rows, vocabulary, scale=1.5).double().numpy()
    grid = np.arange(rows)
    temperature = np.where(grid % 5 == 0, 0.0, c.random.uniform(0.4, 1.6, rows)).astype(np.float32)
    top_k = np.where(grid % 3 == 0, 0, c.random.integers(1, 20, rows)).astype(np.int32)
    top_p = np.where(grid % 4 == 0, 1.0, c.random.uniform(0.3, 0.98, rows)).astype(np.float32)
    min_p = np.where(grid % 2 == 0, 0.0, c.random.uniform(0.0, 0.3, rows)).astype(np.float32)
    seed = c.random.integers(0, 2**32, rows, dtype=np.uint32)
    step = c.random.integers(0, 10_000, rows, dtype=np.uint32)
    named = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, step=step)
    for name, values in named.items():
        c.give(name, torch.from_numpy(values))
    drawn = [
        _draw(logits[r], *(values[r].item() for values in named.values()))
        for r in range(rows)
    ]
    assert len(set(drawn)) > 10
    c.expect("drawn", torch.tensor(drawn))
