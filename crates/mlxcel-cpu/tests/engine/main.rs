//! The engine against the naive reference engine, through the seam that both share.
#![allow(clippy::unwrap_used)]

emulator::lend!(mlxcel_cpu::SimdLevel::suppose);

mod support;

mod attention;
mod contract;
mod control;
mod elementwise;
mod feeds;
mod linear;
mod model;
mod movement;
mod norm;
mod normed;
mod recurrent;
mod reduce;
mod repeated;
mod rounded;
mod state;
mod weights;
