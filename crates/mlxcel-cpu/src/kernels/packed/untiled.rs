//! Where there are no tiles: no level says that there are, so nobody comes here.

use std::convert::Infallible;
use std::marker::PhantomData;

use mlxcel_engine::EngineError;

use super::activations::Activations;
use super::format::Format;
use super::{Job, Packed};
use crate::context::Context;
use crate::kernels::linear::{Feed, Panel, Sink};

/// Elements of `k` that a row of `bf16` numbers is padded to.
pub(super) const STEP: usize = 32;

impl Job<'_> {
    pub(super) fn mixed(&self, _: &[usize]) -> Result<(), EngineError> {
        unreachable!("no level has tiles")
    }

    pub(super) fn alike(&self, _: bool) -> Result<(), EngineError> {
        unreachable!("no level has tiles")
    }

    pub(super) fn in_byte_tiles(&self, _: &Format, _: &Activations<'_>, _: usize) -> Result<(), EngineError> {
        unreachable!("no level has tiles")
    }
}

/// Tokens in tiles, of which there are none.
pub(crate) struct Tokens<'a>(Infallible, PhantomData<&'a ()>);

impl Packed {
    /// Never in tiles.
    ///
    /// # Safety
    /// There is nothing to promise.
    pub(crate) unsafe fn lay<'a>(
        &self,
        _: &'a Context,
        _: (usize, &[usize]),
        _: impl Fn(usize) -> *const f32 + Sync,
        _: impl Fn(usize) -> *const f32 + Sync,
    ) -> Result<Option<Tokens<'a>>, EngineError> {
        Ok(None)
    }
}

/// Gated tokens, of which there are none.
pub(crate) struct Gated {
    pub(crate) exact: Vec<usize>,
    never: Infallible,
}

/// Always the general way.
pub(crate) fn gated(
    _: &Context,
    _: (&Packed, &Packed),
    _: &Panel<'_>,
    _: (&Feed, Option<&[f32]>),
    _: &Sink<'_>,
) -> Result<Option<Gated>, EngineError> {
    Ok(None)
}

impl Gated {
    pub(crate) fn multiply(
        self,
        _: &Context,
        _: &Packed,
        _: &Panel<'_>,
        _: &Sink<'_>,
    ) -> Result<(), EngineError> {
        match self.never {}
    }
}
