//! Attention, over dense keys or over a paged cache, in one pass.
//!
//! Algorithm: flash attention. A line is a query and a head. Lines that share a KV head meet its keys in tiles of
//! [`core::KEYS`]: the tile is turned to `[dim][keys]` once for all of them, scores are products of lines with the turned
//! tile, the softmax runs over whole vectors of keys, and results are products of the weights with rows of values. Both
//! products keep six lines by four vectors in registers, so every vector of keys and values is loaded once for six
//! lines. A single token of a long sequence is cut at fixed keys ([`core::STRETCH`]) for the threads.
//!
//! Layout: a cache is `[blocks, block, kv_heads, dim]` of `f32`, `f16` or `bf16`. Values are read where they lie and
//! widened in registers; only rows that are no whole vectors are copied.
//!
//! Batch, chunk and thread invariance: tiles and stretches depend only on a key's place in its sequence, every score is
//! one chain of additions over the width and every result one over the keys of a stretch, and stretches are joined in
//! order. A token's result does not depend on which other tokens are computed beside it, nor on who computes what.
//! Only tiles within the window are visited.
//!
//! Versions tried, in processor time of one thread for all 30 layers of SmolLM2-135M with a cache of `f16`, on a busy
//! Sapphire Rapids (two runs of one binary differ by a tenth):
//!
//! | version | one token at depth 4096 | 512 tokens |
//! |---|---|---|
//! | a head's tiles one after the other | 20.9 ms | 178 ms |
//! | all heads of a tile before the next keys | 19.8 ms | 180 ms |
//! | and the rows of the next tile fetched while this one is turned | 15.6 ms | 177 ms |
//! | at once: every other line fetched, sums kept in lanes, fused polynomials, the maximum found in one chain | 19.1 ms | 241 ms |
//! | the last with every line fetched and the maximum found in lanes | 16.5 ms | 162 ms |
//! | addresses once for all heads of a tile (kept) | 12–18 % below the line before, run in turn | within the noise |
//!
//! With a cache that fits the second level, samples of the third version fall for a third on turning keys, a quarter
//! each on fetching and on products, a tenth on the softmax.
//!
//! Checked against the decompositions. References: Dao et al., FlashAttention, arXiv 2205.14135; Dao et al.,
//! Flash-Decoding for long-context inference, 2023.
#![allow(
    clippy::needless_range_loop,
    reason = "loops of kernels stay plain: closures may be compiled without a level's instructions"
)]

mod core;
mod dense;
mod drive;
mod paged;
mod soft;
mod tile;
mod turn;

pub(crate) use dense::dense;
pub(crate) use paged::paged;

/// What the two kinds share of their specifications.
#[derive(Clone, Copy, Debug)]
struct Scores {
    scale: f32,
    softcap: Option<f32>,
    masked: bool,
}
