//! Attention, over dense keys or over a paged cache, in one pass.
//!
//! Algorithm: flash attention. A task is a few queries of one sequence with all the heads that share a KV head, so a
//! block of keys and values is read (and, if it is not `f32`, widened) once for all of them. Keys are visited in tiles
//! of [`core::KEYS`] that begin at multiples of it, counted from the start of the sequence; each tile updates the
//! running maximum, the running sum and the weighted values of every query that sees part of it.
//!
//! Layout: a cache is `[blocks, block, kv_heads, dim]`; a tile is a list of row pointers, into the cache itself where
//! rows are whole vectors of `f32`.
//!
//! Batch and chunk invariance: tiles depend only on a key's place in its sequence, scores are summed as in
//! [`super::linear`], and values are added in order of the keys, so a token's result does not depend on which other
//! tokens are computed beside it. Only tiles within the window are visited.
//!
//! Checked against the decompositions. Reference: Dao et al., FlashAttention, arXiv 2205.14135.

mod core;
mod dense;
mod paged;

pub(crate) use dense::dense;
pub(crate) use paged::paged;

/// Queries that a task takes: enough to share tiles, few enough to spread over threads.
const QUERIES: usize = 8;

/// What the two kinds share of their specifications.
#[derive(Clone, Copy, Debug)]
struct Scores {
    scale: f32,
    softcap: Option<f32>,
}
