//! Attention, over dense keys or over a paged cache, in one pass.
//!
//! Algorithm: flash attention. A line is a query and a head. Lines that share a KV head meet its keys in tiles of
//! [`core::KEYS`]: the tile is turned to `[dim][keys]` once for all of them, scores are products of lines with the turned
//! tile, the softmax runs over whole vectors of keys, and results are products of the weights with rows of values. Both
//! products keep six lines by four vectors in registers, so every vector of keys and values is loaded once for six
//! lines. A single token of a long sequence is cut at fixed keys ([`core::STRETCH`]) for the threads.
//!
//! Tokens from which the next one is drawn are few lines at a time; with fast products their scores are dot products with
//! keys where they lie, which saves the turning (`dots`). Tokens that known ones follow go through AMX tiles then, where the
//! machine has them and the cache has 16 bits or fewer (`amx`). Which way a token goes depends on its sequence alone.
//!
//! Layout: a cache is `[blocks, block, kv_heads, dim]` of `f32`, `f16` or `bf16`, or of codes of eight bits with a step
//! behind each row (`coded`). Values are read where they lie and widened in registers; only rows that are no whole vectors
//! are copied.
//!
//! Batch, chunk and thread invariance: tiles and stretches depend only on a key's place in its sequence, every score is
//! one chain of additions over the width, or by dots one for each lane, or an element of a tile, and every result one over the
//! keys of a stretch, and stretches are joined in order. A token's result does not depend on which other tokens are computed beside it, nor on who computes what.
//! Only tiles within the window are visited.
//!
//! Versions tried for one token, in processor time of one thread for all 30 layers of SmolLM2-135M at depth 4096 with a cache of
//! `f16`, on a busy Sapphire Rapids (`cargo bench -p mlxcel-cpu --bench attention`), one after the other in one run:
//!
//! | version | one token |
//! |---|---|
//! | dots with keys where they lie, nothing fetched | 16.0 ms |
//! | the rows of the next head's tile fetched in bursts | 15.4 ms |
//! | fetched a few at a time between the dots | 12.4–13.5 ms |
//!
//! Reading alone took 9.0 ms there and arithmetic alone 4.8. What was asked for a tile ahead had left the first-level cache again,
//! and every tile of every head had its own list of addresses and its own softmax, while memory had nothing to do. With rows
//! in the order in which they lie, a chunk ahead, and one softmax for a stretch, whole steps of SmolLM2 at that depth, run in turn
//! on two threads, quartiles in tokens for each second: 54.7, 57.5, 60.7 before and 63.7, 69.3, 77.9 after, in a quieter
//! minute 74.8, 80.5, 82.4 and 85.2, 88.4, 89.9; a 1.5B shape with Q4_K 13.6, 14.3, 15.1 and 16.1, 17.1, 17.6.
//!
//! Prompts through tiles, the same bench (512 tokens of all layers, one thread, a cache of `f16`): 192 to 156 ms with
//! SmolLM2-135M from nothing and 1872 to 1108 behind 3584 tokens, 360 to 188 and 4995 to 2275 ms with a 1.5B shape. With sums of tiles that
//! are stored where they are read, and operands that begin with cache lines, two threads take 28 ms where they took 44, and 58
//! where they took 88 (512 tokens in a prompt, on another machine). With sixteen lines beside each other in a vector (`amx`) a layer of
//! SmolLM2's shape takes 0.56 to 0.65 ms where it took 0.86 to 0.92.
//!
//! Checked against the decompositions. References: Dao et al., FlashAttention, arXiv 2205.14135; Dao et al.,
//! Flash-Decoding for long-context inference, 2023.
#![allow(
    clippy::needless_range_loop,
    reason = "loops of kernels stay plain: closures may be compiled without a level's instructions"
)]

#[cfg(target_arch = "x86_64")]
mod amx;
mod coded;
mod core;
mod dense;
mod dots;
mod drive;
#[cfg(target_arch = "x86_64")]
mod lay;
mod paged;
mod soft;
mod tile;
mod turn;

pub(crate) use dense::dense;
pub(crate) use paged::{Sequences, Step, paged};

/// What the two kinds share of their specifications.
#[derive(Clone, Copy, Debug)]
struct Scores {
    scale: f32,
    softcap: Option<f32>,
    masked: bool,
}
