//! The command line as a user meets it: the real binary, its output, its messages and its exit codes.

mod bench;
mod convert;
mod download;
mod embed;
mod errors;
mod golden;
mod help;
mod inspect;
mod list;
mod llama_cpp;
mod mlx;
mod packed;
mod parallel;
mod real_models;
mod reference;
mod rm;
mod run;
mod sampling;
mod serve;
#[path = "../../../mlxcel-hub/tests/protocol/server.rs"]
mod server;
mod snapshot;
mod stories;
mod streams;
mod support;
mod surroundings;
#[cfg(unix)]
mod terminal;
mod text;
mod tokenize;
mod wording;
