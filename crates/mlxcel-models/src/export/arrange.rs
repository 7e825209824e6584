//! From the layout that models are published in to the one GGUF files have: experts stacked, heads turned for a
//! rotation of neighbours, and what else llama.cpp's converter changes. Each function rewrites a list of recipes whose
//! names are still the published ones.

use std::collections::BTreeMap;

use super::recipe::{Map, Origin, Recipe, View};
use crate::error::ModelError;

/// Sizes that the arrangements need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Parts of a latent head: not rotated, and value.
    pub(super) nope: usize,
    pub(super) value: usize,
}

/// One rearrangement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Queries and keys of each head from halves to neighbours.
    TurnHeads,
    /// Norms store the difference from one, GGUF the sum.
    NormsPlusOne,
    /// Rows grouped by head, then by what they are: GGUF groups by what they are first.
    RegroupQkv,
    /// Linear layers that may be stored `[in, out]`.
    TurnDense,
    /// The state matrix itself, not its logarithm; the convolution without its middle axis.
    MambaState,
    /// The joined expansion of latent vectors, apart for keys (turned) and values.
    SplitLatent,
    /// gpt-oss: gate and up are neighbours, and matrices `[in, out]`.
    SplitOssExperts,
    /// The same where they are packed, which they are the usual way round.
    SplitPackedOssExperts,
}

impl Step {
    pub(super) fn apply(self, recipes: Vec<Recipe>, sizes: Sizes) -> Result<Vec<Recipe>, ModelError> {
        let one = |recipe: Recipe| match self {
            Step::TurnHeads => turn_heads(recipe, sizes).map(|r| vec![r]),
            Step::NormsPlusOne => Ok(vec![plus_one(recipe)]),
            Step::RegroupQkv => regroup_qkv(recipe, sizes).map(|r| vec![r]),
            Step::TurnDense => Ok(vec![turn_dense(recipe)]),
            Step::MambaState => Ok(vec![mamba_state(recipe)]),
            Step::SplitLatent => split_latent(recipe, sizes),
            Step::SplitOssExperts => Ok(split_oss_experts(recipe, OssMatrices::InOut)),
            Step::SplitPackedOssExperts => Ok(split_oss_experts(recipe, OssMatrices::OutIn)),
        };
        let lists = recipes.into_iter().map(one).collect::<Result<Vec<_>, _>>()?;
        Ok(lists.into_iter().flatten().collect())
    }
}

/// `shape` as rows of its last axis, or as single elements where it has one axis.
fn as_rows(shape: &[usize]) -> (usize, Option<usize>) {
    match shape {
        [rows] => (*rows, None),
        [rows, cols] => (*rows, Some(*cols)),
        _ => (0, None),
    }
}

fn split_evenly(recipe: &Recipe, parts: usize) -> Result<usize, ModelError> {
    let (rows, _) = as_rows(&recipe.shape);
    if parts == 0 || rows == 0 || !rows.is_multiple_of(parts) {
        return Err(ModelError::TensorShape {
            name: recipe.name.clone(),
            found: recipe.shape.clone(),
            expected: vec![parts],
        });
    }
    Ok(rows / parts)
}

fn turn_heads(recipe: Recipe, sizes: Sizes) -> Result<Recipe, ModelError> {
    let module = recipe.name.rsplit('.').nth(1).unwrap_or_default();
    let heads = match module {
        "q_proj" => sizes.heads,
        "k_proj" => sizes.kv_heads,
        _ => return Ok(recipe),
    };
    let width = split_evenly(&recipe, heads)?;
    let view = View::of_rows(&[heads, width / 2, 2], &[width, 1, width / 2], as_rows(&recipe.shape).1);
    let (name, shape) = (recipe.name.clone(), recipe.shape.clone());
    Ok(recipe.viewed(name, shape, view))
}

fn plus_one(recipe: Recipe) -> Recipe {
    let is_norm = recipe.name.ends_with("norm.weight");
    if is_norm { Recipe { map: Map::PlusOne, ..recipe } } else { recipe }
}

fn regroup_qkv(recipe: Recipe, sizes: Sizes) -> Result<Recipe, ModelError> {
    if !recipe.name.contains("query_key_value") {
        return Ok(recipe);
    }
    let width = split_evenly(&recipe, 3 * sizes.heads)?;
    let dims = [3, sizes.heads, width];
    let view = View::of_rows(&dims, &[width, 3 * width, 1], as_rows(&recipe.shape).1);
    let (name, shape) = (recipe.name.clone(), recipe.shape.clone());
    Ok(recipe.viewed(name, shape, view))
}

/// Which way round all are stored is told by the one whose two sides differ and whose bias is known: `c_attn` has three
/// times as many outputs as inputs, so the caller looks there.
fn turn_dense(recipe: Recipe) -> Recipe {
    const DENSE: [&str; 4] =
        ["attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"];
    match recipe.shape[..] {
        [rows, cols] if DENSE.iter().any(|name| recipe.name.ends_with(name)) => {
            let view = View { dims: vec![cols, rows], strides: vec![1, cols], offset: 0 };
            let name = recipe.name.clone();
            recipe.viewed(name, vec![cols, rows], view)
        }
        _ => recipe,
    }
}

fn mamba_state(recipe: Recipe) -> Recipe {
    if let Some(stem) = recipe.name.strip_suffix("A_log") {
        return Recipe { name: format!("{stem}A"), map: Map::NegExp, ..recipe };
    }
    match recipe.shape[..] {
        [inner, 1, kernel] | [inner, kernel, 1] if recipe.name.ends_with("conv1d.weight") => {
            let (name, shape) = (recipe.name.clone(), vec![inner, kernel]);
            let view = View::whole(&shape);
            recipe.viewed(name, shape, view)
        }
        _ => recipe,
    }
}

fn split_latent(recipe: Recipe, sizes: Sizes) -> Result<Vec<Recipe>, ModelError> {
    let Some(stem) = recipe.name.strip_suffix("kv_b_proj.weight").map(str::to_string) else {
        return Ok(vec![recipe]);
    };
    let rows = split_evenly(&recipe, sizes.heads)?;
    let (Some(rank), true) = (as_rows(&recipe.shape).1, rows == sizes.nope + sizes.value) else {
        let (found, expected) = (recipe.shape, vec![sizes.heads * (sizes.nope + sizes.value)]);
        return Err(ModelError::TensorShape { name: recipe.name, found, expected });
    };
    let (heads, nope, value) = (sizes.heads, sizes.nope, sizes.value);
    let keys = View { dims: vec![heads, rank, nope], strides: vec![rows * rank, 1, rank], offset: 0 };
    let values = View::of_rows(&[heads, value], &[rows, 1], Some(rank)).at(nope * rank);
    Ok(vec![
        recipe.clone().viewed(format!("{stem}embed_q.weight"), vec![heads, rank, nope], keys),
        recipe.viewed(format!("{stem}unembed_out.weight"), vec![heads, value, rank], values),
    ])
}

/// Which axis of an expert's matrix comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OssMatrices {
    InOut,
    OutIn,
}

fn split_oss_experts(recipe: Recipe, stored: OssMatrices) -> Vec<Recipe> {
    let ending =
        recipe.name.rsplit_once(".experts.").map(|(stem, ending)| (stem.to_string(), ending.to_string()));
    let Some((stem, ending)) = ending else { return vec![recipe] };
    let named = |name: &str| format!("{stem}.experts.{name}");
    let both = |name: &str, view: &dyn Fn(usize) -> View, shape: Vec<usize>| {
        let part = |side: usize, role: &str| {
            recipe.clone().viewed(named(&format!("{role}.{name}")), shape.clone(), view(side))
        };
        vec![part(0, "gate_proj"), part(1, "up_proj")]
    };
    match (ending.as_str(), &recipe.shape[..]) {
        ("gate_up_proj", &[experts, twice, hidden]) if stored == OssMatrices::OutIn => {
            let view =
                |side| View::of_rows(&[experts, twice / 2], &[twice, 2], Some(hidden)).at(side * hidden);
            both("weight", &view, vec![experts, twice / 2, hidden])
        }
        ("down_proj", _) if stored == OssMatrices::OutIn => {
            vec![Recipe { name: named("down_proj.weight"), ..recipe }]
        }
        ("gate_up_proj", &[experts, hidden, twice]) => {
            let dims = vec![experts, twice / 2, hidden];
            let strides = vec![hidden * twice, 2, twice];
            both(
                "weight",
                &|side| View { dims: dims.clone(), strides: strides.clone(), offset: side },
                dims.clone(),
            )
        }
        ("gate_up_proj_bias", &[experts, twice]) => {
            let dims = vec![experts, twice / 2];
            both(
                "bias",
                &|side| View { dims: dims.clone(), strides: vec![twice, 2], offset: side },
                dims.clone(),
            )
        }
        ("down_proj", &[experts, width, hidden]) => {
            let dims = vec![experts, hidden, width];
            let view = View { dims: dims.clone(), strides: vec![width * hidden, 1, hidden], offset: 0 };
            vec![recipe.clone().viewed(named("down_proj.weight"), dims, view)]
        }
        ("down_proj_bias", _) => vec![Recipe { name: named("down_proj.bias"), ..recipe }],
        _ => vec![recipe],
    }
}

/// Tensors published one by one, such as `experts.3.w1.weight` or `q_norm.norms.3.weight`, become one with a new first
/// axis; experts with gate and up joined are taken apart.
pub(super) fn stack(recipes: Vec<Recipe>) -> Result<Vec<Recipe>, ModelError> {
    let (mut out, mut stacks) = (Vec::new(), BTreeMap::<String, BTreeMap<usize, Recipe>>::new());
    for recipe in recipes {
        match stacked_name(&recipe.name) {
            Some((name, number)) => {
                stacks.entry(name).or_default().insert(number, recipe);
            }
            None => out.extend(split_joined(recipe)),
        }
    }
    for (name, members) in stacks {
        out.push(join(name, members.into_values().collect())?);
    }
    Ok(out)
}

/// The name of the stack that a tensor belongs to, and its place there.
fn stacked_name(name: &str) -> Option<(String, usize)> {
    let (stem, rest, stacked) = match (name.rsplit_once(".experts."), name.rsplit_once(".norms.")) {
        (Some((stem, rest)), _) => (stem, rest, "switch_mlp."),
        (_, Some((stem, rest))) => (stem, rest, ""),
        _ => return None,
    };
    let (number, ending) = rest.split_once('.')?;
    let role = match ending.strip_suffix(".weight") {
        Some("w1") => "gate_proj.weight",
        Some("w3") => "up_proj.weight",
        Some("w2") => "down_proj.weight",
        _ => ending,
    };
    Some((format!("{stem}.{stacked}{role}"), number.parse().ok()?))
}

fn join(name: String, members: Vec<Recipe>) -> Result<Recipe, ModelError> {
    let shape = members[0].shape.clone();
    let mut files = Vec::new();
    for member in &members {
        if member.shape != shape {
            let (found, expected) = (member.shape.clone(), shape);
            return Err(ModelError::TensorShape { name: member.name.clone(), found, expected });
        }
        if let Origin::Stored { files: one, .. } = &member.origin {
            files.extend(one.iter().cloned());
        }
    }
    let whole = [&[members.len()], &shape[..]].concat();
    let origin = Origin::Stored { files, each: shape, view: View::whole(&whole) };
    Ok(Recipe { name, shape: whole, origin, map: Map::Keep })
}

/// Stacked experts as transformers holds them: rows of gate, then rows of up.
pub(super) fn split_joined(recipe: Recipe) -> Vec<Recipe> {
    let named = |stem: &str, role: &str| format!("{stem}.switch_mlp.{role}.weight");
    if let (Some(stem), &[experts, twice, cols]) =
        (recipe.name.strip_suffix(".experts.gate_up_proj"), &recipe.shape[..])
    {
        let shape = vec![experts, twice / 2, cols];
        let part = |side: usize, role: &str| {
            let view = View::of_rows(&[experts, twice / 2], &[twice, 1], Some(cols));
            recipe.clone().viewed(named(stem, role), shape.clone(), view.at(side * twice / 2 * cols))
        };
        return vec![part(0, "gate_proj"), part(1, "up_proj")];
    }
    match recipe.name.strip_suffix(".experts.down_proj") {
        Some(stem) => vec![Recipe { name: named(stem, "down_proj"), ..recipe }],
        None => vec![recipe],
    }
}
