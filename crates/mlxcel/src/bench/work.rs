//! What a case must move and compute, from the graph's own costs: the weights of every step, the cache behind its
//! tokens, and the arithmetic. Activations are left out of the bytes, since they stay in the processor's caches.

use std::collections::BTreeMap;

use mlxcel_engine::Caps;
use mlxcel_ir::{Bindings, Cost, Graph};

use super::case::{Case, Step};
use crate::session::Loaded;

/// Of all steps of a case together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub bytes: u64,
    pub flops: u64,
}

impl Work {
    /// `None` where the graph does not know its cost.
    pub fn of(case: &Case, graph: &Graph, loaded: &Loaded, caps: &Caps) -> Option<Work> {
        let (per_token, per_sequence) = (loaded.bytes_per_token(), loaded.bytes_per_sequence());
        let mut known: BTreeMap<Bindings, Cost> = BTreeMap::new();
        let mut work = Work::default();
        for step in case.steps(caps.step_tokens) {
            let sizes = sizes(case, &step, caps.block_size);
            let cost = match known.get(&sizes) {
                Some(cost) => *cost,
                None => graph.total_cost(&sizes)?,
            };
            known.insert(sizes, cost);
            let cached =
                per_token.checked_mul((step.start + step.tokens) as u64)?.checked_add(per_sequence)?;
            let read = cached.checked_mul(case.sequences as u64)?;
            work.bytes = work.bytes.checked_add(cost.weight_bytes)?.checked_add(read)?;
            work.flops = work.flops.checked_add(cost.flops)?;
        }
        Some(work)
    }
}

/// The graph's symbols in one step.
fn sizes(case: &Case, step: &Step, block_size: usize) -> Bindings {
    let sequences = case.sequences;
    let pages = (step.start + step.tokens).div_ceil(block_size);
    let sizes = [
        ("tokens", step.tokens * sequences),
        ("sequences", sequences),
        ("rows", if step.is_answered { sequences } else { 0 }),
        ("pages", pages),
        ("blocks", pages * sequences),
        ("block", block_size),
        ("slots", sequences),
    ];
    sizes.into_iter().map(|(name, size)| (name.to_string(), size)).collect()
}
