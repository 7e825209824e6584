//! What differs between operating systems, behind functions that are the same on all of them. Code that compiles on one
//! system only is nowhere else, which `cargo xtask tidy` sees to; other crates choose at most between names and paths by
//! `cfg!`. It knows nothing of models, engines or servers.

pub mod files;
pub mod large_pages;
pub mod library;
pub mod mapping;
pub mod memory;
pub mod signals;
#[cfg(feature = "tokio")]
pub mod sockets;
pub mod terminal;
pub mod tiles;
