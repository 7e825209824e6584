//! The command line as a user meets it: the real binary, its output, its messages and its exit codes.

mod errors;
mod golden;
mod inspect;
mod real_models;
mod sampling;
mod stories;
mod streams;
mod support;
mod text;
