//! A loaded model: its text side, and a thread that computes. Routes ask it for answers and vectors; it does not know
//! what a request looked like.

mod embedding;
mod pace;
mod pool;
mod source;
mod text;
mod thread;

use std::sync::Arc;

pub use embedding::EmbeddingThread;
pub use pool::{First, Keeping, Models, Standing};
pub use source::{Card, EmbedError, Embedder, Info, LoadError, MakeRunner, Parts, Source, Work};
pub use text::Text;
pub use thread::{Admission, Lost, ModelThread, NotAdmitted, Ticket, Update, What};

use crate::metrics::ModelMetrics;
use crate::refusal::{Kind, Refusal};

pub struct Model {
    pub id: String,
    pub info: Info,
    pub text: Text,
    worker: Worker,
}

enum Worker {
    Generating(ModelThread),
    Embedding(EmbeddingThread),
}

impl Model {
    pub fn new(id: &str, parts: Parts, metrics: Arc<ModelMetrics>) -> Result<Self, LoadError> {
        let Parts { info, tokenizer, templates, end_ids, work } = parts;
        let text = Text::new(tokenizer, templates, end_ids, info.vocab_size)?;
        let worker = match work {
            Work::Generate(make) => {
                Worker::Generating(ModelThread::start(id, make, info.queue, Arc::clone(&metrics))?)
            }
            Work::Embed(embedder) => Worker::Embedding(EmbeddingThread::start(id, embedder, info.queue)?),
        };
        metrics.is_ready.set(1);
        Ok(Model { id: id.to_string(), info, text, worker })
    }

    /// Whether its thread can compute now.
    pub fn is_ready(&self) -> bool {
        match &self.worker {
            Worker::Generating(thread) => thread.is_up(),
            Worker::Embedding(thread) => thread.is_up(),
        }
    }

    /// What makes text.
    pub fn generating(&self) -> Result<&ModelThread, Refusal> {
        match &self.worker {
            Worker::Generating(thread) => Ok(thread),
            Worker::Embedding(_) => {
                let message =
                    format!("the model '{}' makes embeddings and no text; ask another one", self.id);
                Err(Refusal { param: Some("model".to_string()), ..Refusal::new(Kind::Invalid, message) })
            }
        }
    }

    /// What makes vectors.
    pub fn embedding(&self) -> Result<&EmbeddingThread, Refusal> {
        match &self.worker {
            Worker::Embedding(thread) => Ok(thread),
            Worker::Generating(_) => {
                let message =
                    format!("the model '{}' makes text and no embeddings; ask another one", self.id);
                Err(Refusal { param: Some("model".to_string()), ..Refusal::new(Kind::Invalid, message) })
            }
        }
    }
}
