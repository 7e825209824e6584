//! Sampling. Tokens are ordered by logit; temperature, then top-k, top-p and min-p (each on the renormalised rest
//! of the ones before) leave a prefix of that order; a uniform number derived from seed and step picks from it.
//! A temperature of zero picks the first.

use crate::builder::{Builder, Tensor};
use crate::dtype::DType;
use crate::op::ReduceOp;

pub(super) fn sample<'g>(b: &'g Builder, x: &[Tensor<'g>]) -> Tensor<'g> {
    let [logits, temperature, top_k, top_p, min_p, seed, step] = x else {
        unreachable!("the verifier counted seven operands")
    };
    let column = |t: &Tensor<'g>| t.unsqueeze(1);
    let [sorted, order] = logits.cast(DType::F32).sort_descending(1); // [rows, vocabulary]
    let greedy = temperature.le(temperature.number(0.0));
    let safe = greedy.select(temperature.number(1.0), *temperature);
    let scaled = sorted / column(&safe);
    let weights = (scaled - scaled.slice(1, 0, 1)).exp();

    let rank = b.iota(DType::I32, sorted.shape(), 1);
    let everything = top_k.le(top_k.number(0.0));
    let limit = everything.select(top_k.number(i32::MAX as f64), *top_k);
    let zero = weights.number(0.0);
    let weights = rank.lt(column(&limit)).select(weights, zero);

    // A token stays while the mass before it is below top_p of the whole.
    let before = weights.cumulative(ReduceOp::Sum, 1) - weights;
    let total = weights.reduce_keep(ReduceOp::Sum, 1);
    let first = rank.eq(rank.number(0.0));
    let weights = (first | before.lt(column(top_p) * total)).select(weights, zero);
    // The largest weight is 1 by construction, so min_p compares directly.
    let weights = (first | weights.ge(column(min_p))).select(weights, zero);

    let cumulative = weights.cumulative(ReduceOp::Sum, 1);
    let target = column(&uniform(*seed, *step)) * weights.reduce_keep(ReduceOp::Sum, 1);
    let passed = cumulative.le(target) & weights.gt(zero);
    let index = passed.cast(DType::I32).reduce(ReduceOp::Sum, &[1]);
    let kept = weights.gt(zero).cast(DType::I32).reduce(ReduceOp::Sum, &[1]);
    let index = index.min(kept - 1.0);
    let index = greedy.select(index.number(0.0), index);
    order.take_along(index.unsqueeze(1), 1).reshape(seed.shape())
}

/// A number in `[0, 1)` with 24 random bits: two rounds of a 32-bit finaliser over seed and step.
fn uniform<'g>(seed: Tensor<'g>, step: Tensor<'g>) -> Tensor<'g> {
    let mixed = mix(mix(seed + 0x9e37_79b9u32 as f64) ^ step);
    (mixed >> 8.0).cast(DType::F32) * (1.0 / (1u32 << 24) as f64)
}

fn mix(h: Tensor<'_>) -> Tensor<'_> {
    let h = (h ^ (h >> 16.0)) * 0x7feb_352du32 as f64;
    let h = (h ^ (h >> 15.0)) * 0x846c_a68bu32 as f64;
    h ^ (h >> 16.0)
}
