//! The engine against the naive reference engine, through the seam that both share.
#![allow(clippy::unwrap_used)]

mod support;

mod model;
