//! One suite that every engine passes: ops, models, goldens. Development only. An engine's crate instantiates it with
//! the macros of [`suites`]; the tests of this crate run it on the reference engine.

pub mod embeddings;
pub mod models;
pub mod ops;
pub mod scheduled;
pub mod sequence;
pub mod sharded;
pub mod suites;

pub use mlxcel_engine::Engine;
