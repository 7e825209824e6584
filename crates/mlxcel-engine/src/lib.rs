//! The seam between what is computed and what computes it: an [`Engine`] compiles a graph with its weights into a
//! [`Program`]; a program takes named tensors and gives named tensors back. Beside the traits live the plain data
//! that drives a step ([`Batch`]), sampling on the host, what engines with static shapes share ([`buckets`]), a null
//! engine for tests and the naive reference engine.
//! Nothing here knows a concrete engine or a model.

mod batch;
pub mod buckets;
mod error;
mod null;
mod plan;
mod reference;
pub mod sampling;
mod segments;
mod shards;
mod sharing;

use mlxcel_ir::{Bindings, Graph, Op, Type};
pub use mlxcel_ir::{DType, HostTensor, step};
pub use mlxcel_weights as weights;
use mlxcel_weights::WeightTensor;

pub use batch::{Batch, Logits, SequenceState};
pub use error::EngineError;
pub use null::NullEngine;
pub use plan::{Choice, PlanLine, plan};
pub use reference::{ReferenceEngine, ReferenceMember};
pub use segments::{FoldedWeights, Segments, segments};
pub use shards::Shards;
pub use sharing::{Seat, Sharing};

/// What an engine is and on what it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    pub name: &'static str,
    /// The device in words a person recognises.
    pub device: String,
    /// Tokens in a block of the KV cache.
    pub block_size: usize,
    /// Threads of this machine's processor that compute.
    pub threads: usize,
    /// Whether it is with numbers of 16 bits that it is fast: models are then computed in the type they are stored in,
    /// and in f32 on request.
    pub prefers_16_bits: bool,
    /// Tokens that a step should have at most, unless somebody asks for another number: enough to use the device.
    pub step_tokens: usize,
    /// Whether a row's numbers are the same to the bit, whatever rows are computed beside it: always in f32, and in other
    /// types as far as the engine's documents say.
    pub exact_rows: bool,
}

impl Caps {
    /// What processors are busy with for long enough, and what engines take whose steps of more would need too much memory.
    pub const STEP_TOKENS: usize = 512;
    /// Products with fewer rows leave a large GPU half idle.
    pub const GPU_STEP_TOKENS: usize = 2048;
}

/// Runs graphs on some device.
pub trait Engine: Send + Sync {
    fn caps(&self) -> Caps;

    /// Whether the engine runs this composite itself; what it does not is decomposed for it.
    fn native(&self, op: &Op, operands: &[Type]) -> bool;

    /// Bytes that the engine may still take of a memory of its own, for weights, states and work; `None` if it has the
    /// machine's only.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// Loads the weights and prepares the graph. `dims` binds the sizes of the states: `blocks`, `block`, `slots`.
    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError>;
}

/// A compiled graph with its weights and its state.
pub trait Program: Send {
    /// Starts a step that computes the named outputs. Feeds that the graph does not declare are ignored.
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError>;

    /// Waits for a step and returns its outputs in the order they were asked for.
    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError>;

    /// Copies entries of every state whose first axis is `axis` (`blocks` or `slots`), from first to second.
    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError>;

    /// Bytes that a step with these outputs keeps beside weights, states and feeds, where the graph's symbols have
    /// these sizes; `None` if the engine cannot tell beforehand.
    fn working_bytes(&mut self, _outputs: &[&str], _sizes: &Bindings) -> Result<Option<u64>, EngineError> {
        Ok(None)
    }

    /// Whether a token that known tokens follow (`known_lens`) is computed otherwise than the same token as the last
    /// one known. What was computed of it then serves only sequences in which it is followed too.
    fn rounds_prompts(&self) -> bool {
        false
    }

    /// Whether what is drawn from a row of logits is below zero if one of them is not a number. Then nobody has to look
    /// at the logits to find out.
    fn draws_no_nan(&self) -> bool {
        false
    }

    /// Whether a step has failed in such a way that its states are gone. Then only a program that is compiled anew
    /// helps.
    fn is_lost(&self) -> bool {
        false
    }
}

/// A step that was submitted and not collected.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Where weights come from, by the names that a graph's weights list as their pieces.
pub trait WeightSource: Sync {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError>;
}

/// Where graphs without weights get none from.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWeights;

impl WeightSource for NoWeights {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        Err(mlxcel_weights::WeightsError::UnknownTensor { name: name.to_string() }.into())
    }
}

impl WeightSource for mlxcel_weights::Checkpoint {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        Ok(mlxcel_weights::Checkpoint::tensor(self, name)?)
    }
}

/// The pieces of a declared weight, checked against its declaration; `node` is the weight's node.
pub fn load_pieces(op: &Op, weights: &dyn WeightSource) -> Result<Vec<WeightTensor>, EngineError> {
    let Op::Weight { name, dtype, shape, pieces } = op else { unreachable!("{} is not a weight", op.name()) };
    let loaded = pieces.iter().map(|p| weights.tensor(p)).collect::<Result<Vec<_>, _>>()?;
    let expected: Option<usize> = shape.iter().try_fold(1usize, |a, d| a.checked_mul(d.as_fixed()?));
    let found: usize = loaded.iter().map(|t| t.elements()).sum();
    if expected != Some(found) || loaded.iter().any(|t| t.dtype != *dtype) {
        return Err(EngineError::WeightType {
            name: name.clone(),
            declared: Type::new(*dtype, shape.clone()).to_string(),
            found: loaded.iter().map(|t| format!("{}{:?}", t.dtype, t.shape)).collect::<Vec<_>>().join(" + "),
        });
    }
    Ok(loaded)
}

/// Named tensors for one step.
#[derive(Clone, Debug, Default)]
pub struct Feeds(Vec<(String, HostTensor)>);

impl Feeds {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn insert(&mut self, name: &str, t: HostTensor) {
        self.0.push((name.to_string(), t));
    }

    pub fn get(&self, name: &str) -> Option<&HostTensor> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    /// Checks the feeds of a graph's inputs and binds its symbols by their shapes, on top of `dims`.
    pub fn bind(&self, graph: &Graph, dims: &Bindings) -> Result<Bindings, EngineError> {
        let mut bindings = dims.clone();
        for (_, node) in graph.inputs() {
            let Op::Input { name, dtype, shape, .. } = &node.op else { continue };
            let t = self.get(name).ok_or_else(|| EngineError::MissingFeed { name: name.clone() })?;
            let mismatch = || EngineError::FeedType {
                name: name.clone(),
                declared: node.types[0].to_string(),
                found: format!("{}{:?}", t.dtype(), t.shape()),
            };
            if t.dtype() != *dtype || t.shape().len() != shape.len() {
                return Err(mismatch());
            }
            for (dim, &n) in shape.iter().zip(t.shape()) {
                if let Some(symbol) = dim.as_symbol() {
                    bindings.entry(symbol.to_string()).or_insert(n);
                }
            }
            let bound = shape.iter().zip(t.shape()).all(|(d, &n)| d.eval(&bindings) == Some(n));
            if !bound {
                return Err(mismatch());
            }
        }
        Ok(bindings)
    }
}
