//! Where models come from. The server asks for them by name and gets what it needs to serve one; engines, graphs and
//! files stay with who implements [`Source`].

use std::collections::BTreeSet;

use mlxcel_sched::Runner;
use mlxcel_text::{ChatTemplates, Tokenizer};

/// Knows models by name and can load them.
pub trait Source: Send + Sync {
    /// What can be asked for now, the default first.
    fn cards(&self) -> Vec<Card>;

    /// Loads a model by the id of its card; may take long.
    fn load(&self, id: &str) -> Result<Parts, LoadError>;
}

/// A model that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    pub id: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// When its files were made, in seconds since 1970.
    pub created: u64,
}

impl Card {
    pub fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Why a model could not be loaded, in the words of who tried.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct LoadError {
    pub reason: String,
}

/// A loaded model, in parts.
pub struct Parts {
    pub info: Info,
    pub tokenizer: Tokenizer,
    pub templates: ChatTemplates,
    /// Tokens that end an answer.
    pub end_ids: BTreeSet<u32>,
    pub work: Work,
}

/// What is told about a model.
#[derive(Clone, Debug, Default)]
pub struct Info {
    pub family: String,
    pub engine: String,
    pub device: String,
    /// Tokens of a sequence at most, as it was loaded.
    pub context: usize,
    pub vocab_size: usize,
    /// Requests that are computed side by side.
    pub parallel: usize,
    /// Requests that wait at most.
    pub queue: usize,
    pub path: String,
}

/// What a model does.
pub enum Work {
    /// Makes text. Called once at first, and again each time the engine has broken down.
    Generate(MakeRunner),
    /// Makes vectors.
    Embed(Box<dyn Embedder>),
}

/// Makes a runner with fresh state.
pub type MakeRunner = Box<dyn FnMut() -> Result<Runner, LoadError> + Send>;

/// Turns sequences into vectors, several in one go.
pub trait Embedder: Send {
    /// None of the sequences is empty or longer than the context.
    fn embed(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError>;
}

/// Why vectors could not be made, in the words of who tried.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct EmbedError {
    pub reason: String,
}
