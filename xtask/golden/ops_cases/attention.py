"""Dense attention. The plain forms come from torch; the others from a loop over heads and queries."""

import torch
import torch.nn.functional as F

from .case import cases

CASES, case = cases()


def _give_qkv(c, queries, keys, heads=4, kv_heads=2, dim=8, value_dim=None, dtype=torch.float32):
    """`[batch, length, heads, dim]` each."""
    q = c.give_normal("q", 2, queries, heads, dim, dtype=dtype)
    k = c.give_normal("k", 2, keys, kv_heads, dim, dtype=dtype)
    v = c.give_normal("v", 2, keys, kv_heads, value_dim or dim, dtype=dtype)
    return q.double(), k.double(), v.double()


def _torch(q, k, v, scale, mask=None, causal=False):
    """torch's own kernel, which wants heads before length."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True)
    return y.transpose(1, 2)


def _one_query(q, keys, values, seen, scale, bias=None, cap=None, sink=None):
    """One query `[dim]` over the keys `[n, dim]` that `seen` lists."""
    if not seen:
        return torch.zeros(values.shape[1], dtype=torch.float64)
    scores = keys[seen] @ q * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias[seen]
    if sink is not None:
        scores = torch.cat([scores, sink.reshape(1)])
    weights = scores.softmax(0)[: len(seen)]
    return weights @ values[seen]


def loop(q, k, v, scale, window=None, causal=True, keep=None, bias=None, cap=None, sinks=None):
    """Query i of n stands at key position `keys - n + i`; query heads share key heads in runs."""
    batch, queries, heads, _ = q.shape
    keys, kv_heads = k.shape[1], k.shape[2]
    out = torch.zeros(batch, queries, heads, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // kv_heads)
            for i in range(queries):
                at = keys - queries + i
                seen = [
                    j
                    for j in range(keys)
                    if (not causal or j <= at)
                    and (window is None or j > at - window)
                    and (keep is None or bool(keep[b, h, i, j]))
                ]
                row = None if bias is None else bias[b, h, i]
                sink = None if sinks is None else sinks[h]
                out[b, i, h] = _one_query(q[b, i, h], k[b, :, kv], v[b, :, kv], seen, scale, row, cap, sink)
    return out


@case
def attention_full(c):
    q, k, v = _give_qkv(c, 5, 5, kv_heads=4)
    c.expect("y", _torch(q, k, v, 8**-0.5))


@case
def attention_causal(c):
    q, k, v = _give_qkv(c, 6, 6)
    c.expect("y", _torch(q, k, v, 8**-0.5, causal=True))


@case
def attention_causal_behind_a_cache(c):
    """Three queries at the end of eleven keys."""
    q, k, v = _give_qkv(c, 3, 11)
    mask = torch.ones(3, 11, dtype=torch.bool).tril(diagonal=11 - 3)
    c.expect("y", _torch(q, k, v, 0.3, mask=mask))


@case
def attention_window(c):
    q, k, v = _give_qkv(c, 9, 9)
    c.expect("y", loop(q, k, v, 8**-0.5, window=4))


@case
def attention_window_behind_a_cache(c):
    """One query that sees the last four of twelve keys, whatever its index in the query tensor."""
    q, k, v = _give_qkv(c, 2, 12)
    c.expect("y", loop(q, k, v, 8**-0.5, window=4))
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[0, 7:11] = True
    mask[1, 8:12] = True
    c.expect("again", _torch(q, k, v, 8**-0.5, mask=mask))


@case
def attention_window_both_ways(c):
    q, k, v = _give_qkv(c, 7, 7)
    c.expect("y", loop(q, k, v, 8**-0.5, window=3, causal=False))


@case
def attention_bool_mask(c):
    """One row keeps nothing and gives zeros."""
    q, k, v = _give_qkv(c, 4, 6)
    keep = torch.from_numpy(c.random.uniform(size=(2, 1, 4, 6)) < 0.6)
    keep[1, 0, 2] = False
    c.give("keep", keep)
    c.expect("y", loop(q, k, v, 8**-0.5, causal=False, keep=keep.expand(2, 4, 4, 6)))


@case
def attention_bias_mask(c):
    q, k, v = _give_qkv(c, 4, 6)
    bias = c.give_normal("bias", 1, 4, 4, 6, scale=2.0)
    bias[0, :, :, 1] = float("-inf")
    c.give("bias", bias)
    c.expect("y", _torch(q, k, v, 0.4, mask=bias.double()))


@case
def attention_soft_cap(c):
    """Scores far above the cap, so that dropping it shows."""
    q, k, v = _give_qkv(c, 5, 5)
    c.expect("y", loop(q, k, v, 3.0, cap=2.5))


@case
def attention_sinks(c):
    q, k, v = _give_qkv(c, 5, 5)
    sinks = c.give_normal("sinks", 4).double()
    c.expect("y", loop(q, k, v, 8**-0.5, sinks=sinks))


@case
def attention_of_shared_heads(c):
    """Six query heads over two key heads: heads 0-2 share the first, 3-5 the second."""
    q, k, v = _give_qkv(c, 4, 7, heads=6, kv_heads=2)
    c.expect("y", loop(q, k, v, 8**-0.5))


@case
def attention_of_one_key_head(c):
    q, k, v = _give_qkv(c, 4, 4, heads=5, kv_heads=1, value_dim=3)
    c.expect("y", loop(q, k, v, 8**-0.5))


@case
def attention_everything(c):
    q, k, v = _give_qkv(c, 3, 10, heads=6, kv_heads=3, value_dim=5)
    bias = c.give_normal("bias", 2, 1, 3, 10).double().expand(2, 6, 3, 10)
    sinks = c.give_normal("sinks", 6).double()
    c.expect("y", loop(q, k, v, 0.7, window=5, bias=bias, cap=4.0, sinks=sinks))


@case
def attention_bf16(c):
    q, k, v = _give_qkv(c, 3, 9, dtype=torch.bfloat16)
    c.expect("y", loop(q, k, v, 8**-0.5), torch.bfloat16)
