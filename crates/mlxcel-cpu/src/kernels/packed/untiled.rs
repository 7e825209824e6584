//! Where there are no tiles: no level says that there are, so nobody comes here.

use std::ops::Range;

use mlxcel_engine::EngineError;

use super::Job;
use super::activations::Activations;
use super::format::Format;

/// Elements of `k` that a row of `bf16` numbers is padded to.
pub(super) const STEP: usize = 32;

/// Tokens that are multiplied beside those in tiles.
pub(super) enum Few {}

impl Job<'_> {
    pub(super) fn mixed(&self, _: &[Range<usize>]) -> Result<(), EngineError> {
        unreachable!("no level has tiles")
    }

    pub(super) fn in_tiles(&self, _: (usize, &[usize]), _: Option<&Few>) -> Result<(), EngineError> {
        unreachable!("no level has tiles")
    }

    pub(super) fn in_byte_tiles(&self, _: &Format, _: &Activations<'_>, _: usize) -> Result<(), EngineError> {
        unreachable!("no level has tiles")
    }
}
