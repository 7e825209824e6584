//! How memory is shared out among weights, work and cache. Engines with memory of their own have a fixed amount of it, so
//! what the cache may take is what the others leave; elsewhere it is a share of what the machine has free.

use anyhow::{Result, bail};
use mlxcel_engine::Engine;
use mlxcel_ir::{Bindings, Op};

use crate::memory;
use crate::report::in_words;
use crate::session::Loaded;

/// The largest step that will be asked for.
#[derive(Clone, Copy, Debug)]
pub struct StepSize {
    pub tokens: usize,
    pub sequences: usize,
}

/// What is taken of an engine's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub weights: u64,
    pub work: u64,
    /// What is left for the cache.
    pub cache: u64,
}

/// Results that a step has at once, of the largest it makes; a guess on the safe side.
const RESULTS_AT_ONCE: u64 = 4;

/// For what is small or not counted: plans, constants, inputs.
const SMALL: u64 = 256 << 20;

/// What the cache may take, if that is known. Refuses a model that leaves nothing, before any of it is loaded.
pub fn cache_bytes(engine: &dyn Engine, loaded: &Loaded, step: StepSize) -> Result<Option<u64>> {
    match engine.free_memory() {
        Some(free) => Ok(Some(share(free, loaded, step)?.cache)),
        None => Ok(memory::cache_bytes()),
    }
}

/// Shares out what an engine has free.
pub fn share(free: u64, loaded: &Loaded, step: StepSize) -> Result<Budget> {
    let (weights, work) = (weight_bytes(loaded), work_bytes(loaded, step));
    match free.checked_sub(weights.saturating_add(work)) {
        Some(cache) if cache > 0 => Ok(Budget { weights, work, cache }),
        _ => bail!(
            "the model has {} of weights and needs {} to work, but only {} of the device's memory can be used; give \
             a smaller model, or more of it (--gpu-memory with cuda, MLXCEL_XLA_MEMORY with xla)",
            in_words(weights, "B"),
            in_words(work, "B"),
            in_words(free, "B"),
        ),
    }
}

fn weight_bytes(loaded: &Loaded) -> u64 {
    let tensors = loaded.checkpoint.names().filter_map(|name| loaded.checkpoint.info(name));
    let bytes = tensors.filter_map(|(dtype, shape)| dtype.storage_bytes(shape));
    bytes.fold(0u64, |sum, n| sum.saturating_add(n as u64))
}

/// Some of the largest results of a step, and one packed weight as plain numbers, as prompts are multiplied with.
fn work_bytes(loaded: &Loaded, step: StepSize) -> u64 {
    let sizes = [
        ("tokens", step.tokens),
        ("sequences", step.sequences),
        ("rows", step.sequences),
        ("pages", 1),
        ("blocks", 1),
        ("block", 1),
        ("slots", 1),
    ];
    let sizes: Bindings = sizes.map(|(name, size)| (name.to_string(), size.max(1))).into();
    let (mut largest, mut unpacked) = (0, 0);
    for node in loaded.model.graph.nodes() {
        match &node.op {
            Op::Weight { dtype, shape, .. } if dtype.is_quant() => {
                let elements = shape.iter().try_fold(1u64, |n, d| n.checked_mul(d.as_fixed()? as u64));
                unpacked = unpacked.max(elements.unwrap_or(0).saturating_mul(2));
            }
            Op::Weight { .. } | Op::Constant(_) | Op::State { .. } | Op::Input { .. } => {}
            _ => {
                let bytes = node.types.iter().filter_map(|t| t.bytes(&sizes));
                largest = largest.max(bytes.fold(0, u64::saturating_add));
            }
        }
    }
    largest.saturating_mul(RESULTS_AT_ONCE).saturating_add(unpacked).saturating_add(SMALL)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cli::{CachePrecision, Precision, TypeArgs};
    use crate::loading;

    const STEP: StepSize = StepSize { tokens: 64, sequences: 4 };

    fn loaded() -> Loaded {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/llama/f32");
        let types = TypeArgs { dtype: Precision::F32, kv_dtype: CachePrecision::Auto };
        let caps = mlxcel_engine::ReferenceEngine.caps();
        loading::load_without_text(&path, types, &caps).expect("the fixture is a model")
    }

    #[test]
    fn what_weights_and_work_leave_is_for_the_cache() {
        let loaded = loaded();
        let budget = share(10 << 30, &loaded, STEP).unwrap();
        let stored: u64 = std::fs::metadata(loaded_file()).unwrap().len();
        assert!(budget.weights > 0 && budget.weights <= stored, "{budget:?}");
        assert!(budget.work >= SMALL, "{budget:?}");
        assert_eq!(budget.weights + budget.work + budget.cache, 10 << 30);
        let larger = StepSize { tokens: 1 << 16, ..STEP };
        assert!(share(10 << 30, &loaded, larger).unwrap().work > budget.work);
    }

    fn loaded_file() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/llama/f32/model.safetensors")
    }

    #[test]
    fn a_model_that_leaves_nothing_is_refused_with_the_numbers() {
        let refused = share(1 << 20, &loaded(), STEP).unwrap_err().to_string();
        assert!(refused.contains("of weights") && refused.contains("only 1.0 MB"), "{refused}");
    }
}
