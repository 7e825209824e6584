//! Noise that a model can run on: norms near one, biases near zero, matrices that keep the scale of what they are
//! multiplied with, so that logits stay finite at any depth.

use mlxcel_weights::write::RandomRows;

use super::arrange::Step;
use super::table::ROWS;

/// The rows of an imagined tensor.
pub fn random_rows(family: &str, seed: u64, name: &str, shape: &[usize]) -> RandomRows {
    let (mean, deviation) = distribution(family, name, shape);
    let cols = shape.last().copied().unwrap_or(1);
    RandomRows { key: RandomRows::key(seed, name), cols, mean, deviation }
}

fn distribution(family: &str, name: &str, shape: &[usize]) -> (f32, f32) {
    const SMALL: f32 = 0.02;
    let is_embedding =
        ["embed_tokens", "embed_in", "embeddings", "wte", "wpe"].iter().any(|e| name.contains(e));
    let is_norm = shape.len() == 1 && name.ends_with(".weight") || name.contains("norm");
    let stores_difference =
        ROWS.iter().any(|row| row.family == family && row.steps.contains(&Step::NormsPlusOne));
    if name.ends_with("bias") {
        (0.0, SMALL)
    } else if is_norm {
        (if stores_difference { 0.0 } else { 1.0 }, SMALL)
    } else if name.ends_with(".D") {
        (1.0, SMALL)
    } else if name.ends_with(".A_log") {
        // States that forget after a few to a few dozen tokens.
        (1.0, 0.5)
    } else if is_embedding || shape.len() < 2 {
        (0.0, SMALL)
    } else {
        let inputs = shape.last().copied().unwrap_or(1).max(1);
        (0.0, 1.0 / (inputs as f32).sqrt())
    }
}
