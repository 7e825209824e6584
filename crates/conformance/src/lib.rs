//! One suite that every engine passes: ops, models, goldens. Development only.

pub mod models;
pub mod ops;
pub mod sequence;
