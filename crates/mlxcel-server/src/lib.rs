//! HTTP in front of the scheduler: the OpenAI, Anthropic and llama-server interfaces, their streams and their errors,
//! keys, limits and metrics.
//!
//! A [`Source`] hands out loaded models: a tokenizer, templates, and what makes a scheduler's runner. Which engine
//! computes and where files lie is not known here; no tensor passes through.

mod app;
mod config;
mod connection;
mod conversation;
mod error;
mod front;
mod generate;
mod ids;
mod keys;
mod lifecycle;
mod listen;
mod metrics;
mod model;
mod openai;
mod openapi;
mod order;
mod reading;
mod refusal;
mod routes;
mod server;
mod sse;
mod strict;
mod tls;
mod trace;
mod wire;

pub use config::{Config, Limits, Listen, Otlp, TlsFiles};
pub use error::ServerError;
pub use keys::read_keys;
pub use lifecycle::{Lifecycle, Phase};
pub use model::{
    Card, EmbedError, Embedder, First, Info, Keeping, LoadError, MakeRunner, Parts, Source, Work,
};
pub use order::Defaults;
pub use server::{Server, serve};
