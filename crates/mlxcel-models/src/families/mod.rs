//! The model families, one file each: the configuration, the graph, and the names of the weights.

mod bert;
mod cohere;
mod deepseek_v3;
mod gemma2;
mod gemma3_text;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod llama;
mod mamba;
mod mistral;
mod mixtral;
mod olmo;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod smollm3;
mod stablelm;
mod starcoder2;

use serde_json::Value;

use crate::config::Common;
use crate::error::ModelError;
use crate::names::Rule;
use crate::net::Net;
use crate::rope::Rope;

/// A family of models.
#[derive(Clone, Copy)]
pub struct Family {
    /// `model_type` in `config.json`.
    pub name: &'static str,
    /// Other model types that are this family under another name.
    pub aliases: &'static [&'static str],
    /// Other spellings of tensor names in safetensors files.
    pub names: &'static [Rule],
    /// Tensors that some checkpoints carry and nothing needs: a published name contains one of these.
    pub ignore: &'static [&'static str],
    /// How GGUF files of this family differ; `None` where the family has no GGUF architecture.
    pub gguf: Option<Gguf>,
    pub build: Build,
}

/// Writes a family's graph.
pub type Build = for<'g> fn(&Net<'g>, &Value) -> Result<Built, ModelError>;

impl Family {
    /// A family with published names only, whose other fields can be set by update syntax.
    const fn new(name: &'static str, build: Build) -> Self {
        Family { name, aliases: &[], names: &[], ignore: &["rotary_emb.inv_freq"], gguf: None, build }
    }
}

/// GGUF's view of a family.
#[derive(Clone, Copy)]
pub struct Gguf {
    pub architecture: &'static str,
    /// Names beyond the common table.
    pub names: &'static [Rule],
    /// Queries and keys are stored for a rotation of neighbours.
    pub interleaved: bool,
}

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Continues texts: its graph has the outputs `logits` and `sampled`.
    Generate,
    /// Turns each sequence, whole in one step, into a vector: its graph has the output `embeddings`.
    Embed,
}

/// What a caller must know of a model besides its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    pub kind: ModelKind,
    pub vocab_size: usize,
    /// The longest sequence the model was made for.
    pub max_context: usize,
    /// A sequence that grows past this length must be computed anew, since its rotation changes.
    pub recompute_past: Option<usize>,
    /// Past this length the rotation of a token depends on how long its sequence was known to be, so that what was
    /// computed in one sequence cannot serve another.
    pub lengths_matter_past: Option<usize>,
}

impl Built {
    /// The usual facts of a decoder with these rotations.
    pub fn new(c: &Common, ropes: &[&Rope]) -> Self {
        let recompute_past = ropes.iter().find_map(|r| r.switches_at());
        let lengths_matter_past = ropes.iter().filter_map(|r| r.depends_on_length_past()).min();
        let max_context = ropes.iter().map(|r| r.reach).min().unwrap_or(c.context());
        let vocab_size = c.vocab_size;
        Built { kind: ModelKind::Generate, vocab_size, max_context, recompute_past, lengths_matter_past }
    }
}

/// All families, by name.
pub const FAMILIES: &[Family] = &[
    bert::FAMILY,
    cohere::FAMILY,
    deepseek_v3::FAMILY,
    gemma2::FAMILY,
    gemma3_text::FAMILY,
    gpt2::FAMILY,
    gpt_neox::FAMILY,
    gpt_oss::FAMILY,
    granite::FAMILY,
    llama::FAMILY,
    mamba::FAMILY,
    mistral::FAMILY,
    mixtral::FAMILY,
    olmo::FAMILY,
    olmo2::FAMILY,
    phi3::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    qwen3_moe::FAMILY,
    smollm3::FAMILY,
    stablelm::FAMILY,
    starcoder2::FAMILY,
];
