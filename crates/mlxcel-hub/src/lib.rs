//! Fetching and keeping files: a model named by path or alias becomes a path on this machine.
//!
//! Packages come from whatever package index the environment configures, or through the machine's own `pip` and
//! `npm`; no registry host is written here. Every archive and every file taken out of one is pinned by size and
//! SHA-256, checked, and moved into the cache in one rename, so a path this crate returns is always whole.
//!
//! This crate deliberately knows nothing of tensors, engines or what is inside a model file, and it prints nothing
//! except through [`Progress`].

mod archive;
mod cache;
mod digest;
mod error;
mod folder;
mod http;
mod hub;
mod link;
mod npm;
mod paths;
mod pins;
mod pip;
mod progress;
mod settings;
mod simple;
mod tool;

use std::path::PathBuf;

pub use error::{Error, Result};
pub use hub::Hub;
pub use pins::{
    ALIASES, CORPORA, DEFAULT_MODEL, Folder, MINILM, Member, Package, Pinned, Registry, SMOLLM2, STORIES15M,
};
pub use progress::{Event, Progress, Stderr};
pub use settings::Settings;

/// The path of the model `spec` names: a folder, a `.gguf` file, or an alias such as [`DEFAULT_MODEL`].
///
/// An alias is fetched into the cache on first use, with progress on stderr. A name in [`ALIASES`] always means the
/// alias; write `./name` for a folder that happens to be called the same.
pub fn resolve(spec: &str) -> Result<PathBuf> {
    // A path needs no cache, so none need be configured.
    if Pinned::by_alias(spec).is_none() {
        return hub::local(spec);
    }
    Hub::new(Settings::from_env()?, Stderr::new()).resolve(spec)
}
