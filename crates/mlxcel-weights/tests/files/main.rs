//! Whole files, sound and corrupt, read through the public interface.
#![allow(clippy::unwrap_used)]

mod checkpoints;
mod encoding;
mod forge;
mod formats;
mod hostile_gguf;
mod hostile_safetensors;
mod random;
mod writing;
