//! The command line as a user meets it: the real binary, its output, its messages and its exit codes.

mod errors;
mod golden;
mod help;
mod inspect;
mod real_models;
mod reference;
mod run;
mod sampling;
mod snapshot;
mod stories;
mod streams;
mod support;
#[cfg(unix)]
mod terminal;
mod text;
mod tokenize;
