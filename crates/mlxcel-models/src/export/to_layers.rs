//! A model as tensors that quantise well: the weight of every linear layer is a tensor `X.weight` of its own, with its
//! inputs along the last axis, as MLX keeps them.

use super::Inventory;
use super::arrange::{Sizes, Step, split_joined};
use super::recipe::Recipe;
use super::table::ROWS;
use super::to_gguf::is_needed;
use crate::error::ModelError;

/// All tensors that the model uses, under the names MLX and the reader know.
pub fn to_layers(model: &Inventory) -> Result<Vec<Recipe>, ModelError> {
    let mut recipes: Vec<Recipe> =
        model.tensors.iter().map(|(name, t)| Recipe::keep(name, &t.file, &t.shape)).collect();
    let row = ROWS.iter().find(|row| row.family == model.family);
    let steps = row.map(|row| row.steps).unwrap_or_default();
    let makes_layers =
        |step: Step| matches!(step, Step::TurnDense | Step::SplitOssExperts | Step::SplitPackedOssExperts);
    for &step in steps.iter().filter(|step| makes_layers(**step) && is_needed(**step, model)) {
        recipes = step.apply(recipes, Sizes::default())?;
    }
    Ok(recipes.into_iter().flat_map(split_joined).collect())
}

/// Whether a tensor is the weight of a linear layer or an embedding, which MLX quantises.
pub fn is_layer(name: &str, shape: &[usize]) -> bool {
    const OTHERS: [&str; 4] = ["norm", "conv1d", ".gate.weight", ".router.weight"];
    shape.len() >= 2 && name.ends_with(".weight") && !OTHERS.iter().any(|part| name.contains(part))
}
