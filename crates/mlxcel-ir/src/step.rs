//! The inputs of a step: the contract between the graphs that models build and the batches that are fed to them.
//! Everything a step needs is a named tensor, so an engine knows nothing of batches beyond graph inputs.

use crate::builder::{Builder, PagedBatch, SampleParams, Tensor};
use crate::dtype::DType;
use crate::shape;

/// Result names.
pub const LOGITS: &str = "logits";
pub const SAMPLED: &str = "sampled";
pub const EMBEDDINGS: &str = "embeddings";

/// Handles of all step inputs. Declared together; what a model does not use is removed with the dead code.
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'g> {
    /// Token ids, sequences laid end to end: `i32 [tokens]`.
    pub tokens: Tensor<'g>,
    /// Place of each token in its sequence: `i32 [tokens]`.
    pub positions: Tensor<'g>,
    /// Which sequence of the step each token belongs to: `i32 [tokens]`, −1 for padding.
    pub seq_ids: Tensor<'g>,
    /// Where each token's key and value go, `block * block_size + offset`: `i32 [tokens]`, −1 for nowhere.
    pub slot_mapping: Tensor<'g>,
    /// The blocks of each sequence in order: `i32 [sequences, pages]`.
    pub block_table: Tensor<'g>,
    /// The recurrent-state slot of each token's sequence: `i32 [tokens]`, −1 for nowhere.
    pub slot_ids: Tensor<'g>,
    /// How many tokens are known of each token's sequence, computed or not, so that a prompt fed in chunks sees the
    /// same number in every chunk: `i32 [tokens]`.
    pub known_lens: Tensor<'g>,
    /// Rows whose logits are wanted: `i32 [rows]`.
    pub logit_rows: Tensor<'g>,
    /// Number of tokens of each sequence in this step: `i32 [sequences]`.
    pub query_lens: Tensor<'g>,
    pub sampling: SampleParams<'g>,
}

impl<'g> StepInputs<'g> {
    pub fn declare(b: &'g Builder) -> Self {
        let per_token = |name: &str, pad: i64| b.input_padded(name, DType::I32, shape!["tokens"], pad);
        let per_row = |name: &str, dtype: DType| b.input(name, dtype, shape!["rows"]);
        StepInputs {
            tokens: per_token("tokens", 0),
            positions: per_token("positions", 0),
            seq_ids: per_token("seq_ids", -1),
            slot_mapping: per_token("slot_mapping", -1),
            block_table: b.input("block_table", DType::I32, shape!["sequences", "pages"]),
            slot_ids: per_token("slot_ids", -1),
            known_lens: per_token("known_lens", 0),
            logit_rows: per_row("logit_rows", DType::I32),
            query_lens: b.input("query_lens", DType::I32, shape!["sequences"]),
            sampling: SampleParams {
                temperature: per_row("temperature", DType::F32),
                top_k: per_row("top_k", DType::I32),
                top_p: per_row("top_p", DType::F32),
                min_p: per_row("min_p", DType::F32),
                seed: per_row("seed", DType::U32),
                step: per_row("step", DType::U32),
            },
        }
    }

    /// What paged attention reads; keys and values are kept in their own type.
    pub fn paged(&self) -> PagedBatch<'g> {
        PagedBatch {
            positions: self.positions,
            seq_ids: self.seq_ids,
            slot_mapping: self.slot_mapping,
            block_table: self.block_table,
            cache: None,
        }
    }
}
