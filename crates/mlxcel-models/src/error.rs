//! Why a checkpoint cannot become a model. Every variant names the field or tensor to look at.

use mlxcel_ir::{DType, IrError};
use mlxcel_weights::WeightsError;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Graph(#[from] IrError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("the folder has weights but no config.json: it does not say which model this is")]
    NoConfig,
    #[error("config.json has no \"model_type\"")]
    NoModelType,
    #[error("model type '{found}' is not supported; supported are {}", supported.join(", "))]
    UnknownFamily { found: String, supported: Vec<&'static str> },
    #[error("GGUF architecture '{found}' is not supported; supported are {}", supported.join(", "))]
    UnknownArchitecture { found: String, supported: Vec<&'static str> },
    #[error("the configuration's field '{field}' cannot be read: {reason}")]
    Field { field: String, reason: String },
    #[error("{family} models make text and this one does not say how it makes embeddings: choose a pooling")]
    NoPooling { family: &'static str },
    #[error("tensor '{name}' is missing")]
    MissingTensor { name: String },
    #[error("tensor '{name}' has shape {found:?}, expected {expected:?}")]
    TensorShape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor '{name}' is {found}, but the pieces before it are {expected}")]
    TensorType { name: String, found: DType, expected: DType },
    #[error("two tensors stand for '{name}': '{first}' and '{second}'")]
    Ambiguous { name: String, first: String, second: String },
    #[error("'{family}' models cannot be converted from or to GGUF; those that can: {}", supported.join(", "))]
    NoGguf { family: &'static str, supported: Vec<&'static str> },
    #[error("a GGUF file of a '{family}' model cannot say that '{field}' is {found}")]
    NotInGguf { family: &'static str, field: String, found: String },
    #[error("tensor '{name}' has no name in GGUF files")]
    NoGgufName { name: String },
    #[error("{count} tensors of the checkpoint are not used by this model, such as '{}'", examples.join("', '"))]
    UnusedTensors { count: usize, examples: Vec<String> },
}

impl ModelError {
    /// A field whose value is understood as JSON but makes no sense.
    pub fn field(field: &str, reason: impl Into<String>) -> Self {
        ModelError::Field { field: field.to_string(), reason: reason.into() }
    }
}
