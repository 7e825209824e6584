//! Mixture of experts: routing, and the matrix that each token's experts choose.

use super::count;
use crate::builder::{Builder, Tensor};
use crate::dtype::DType;
use crate::op::{ReduceOp, RouteGroups, RouteScore, RouteSpec};
use crate::shape::Dim;

pub(super) fn route<'g>(b: &'g Builder, x: &[Tensor<'g>], spec: &RouteSpec) -> Vec<Tensor<'g>> {
    let logits = x[0].cast(DType::F32);
    let scores = match spec.score {
        RouteScore::Softmax => logits.softmax(1),
        RouteScore::Sigmoid => logits.sigmoid(),
        RouteScore::SoftmaxOfChosen => logits,
    };
    let mut choice = x.get(1).map_or(scores, |c| scores + c.cast(DType::F32));
    if let Some(groups) = spec.groups {
        choice = keep_best_groups(b, choice, groups);
    }
    let [_, ids] = choice.top_k(spec.top_k);
    let mut weights = scores.take_along(ids, 1);
    if spec.score == RouteScore::SoftmaxOfChosen {
        weights = weights.softmax(1);
    }
    if spec.renormalize {
        weights = weights / (weights.reduce_keep(ReduceOp::Sum, 1) + 1e-20);
    }
    vec![weights * spec.scale, ids]
}

/// Scores outside the best groups become −∞ (as a large negative number).
fn keep_best_groups<'g>(b: &'g Builder, choice: Tensor<'g>, groups: RouteGroups) -> Tensor<'g> {
    let (tokens, experts) = (choice.dim(0), choice.dim(1));
    let size = experts.as_fixed().expect("the number of experts is fixed") / groups.count;
    let split = vec![tokens.clone(), Dim::fixed(groups.count), Dim::fixed(size)];
    let by_group = choice.reshape(split);
    let [best_two, _] = by_group.top_k(2);
    let [_, kept] = best_two.reduce(ReduceOp::Sum, &[2]).top_k(groups.keep); // [tokens, keep]
    let ids = count(b, Dim::fixed(groups.count)).reshape(vec![
        Dim::fixed(1),
        Dim::fixed(groups.count),
        Dim::fixed(1),
    ]);
    let hit = kept.unsqueeze(1).eq(ids).cast(DType::I32).reduce(ReduceOp::Max, &[2]); // [tokens, groups]
    let keep = hit.gt(hit.number(0.0)).unsqueeze(2);
    keep.select(by_group, by_group.number(-1e30)).reshape(vec![tokens, experts])
}

/// Every expert on every token, then the chosen ones: exact, and only sensible for small shapes.
pub(super) fn linear<'g>(x: &[Tensor<'g>]) -> Tensor<'g> {
    let (tokens, w, ids) = (x[0], x[1], x[2]);
    let all = tokens.dot_general(w.dequantize(tokens.dtype()), &[], &[(2, 2)]); // [t, 1 or k, experts, out]
    let (t, k, experts, out) = (ids.dim(0), ids.dim(1), w.dim(0), w.dim(1));
    let all = all.broadcast(vec![t.clone(), k.clone(), experts.clone(), out.clone()]);
    let chosen = ids.reshape(vec![t.clone(), k.clone(), Dim::fixed(1), Dim::fixed(1)]);
    let index = chosen.broadcast(vec![t.clone(), k.clone(), Dim::fixed(1), out.clone()]);
    let mut y = all.take_along(index, 2).reshape(vec![t, k, out]);
    if let Some(bias) = x.get(3) {
        y = y + bias.cast(y.dtype()).gather(ids, 0);
    }
    y
}
