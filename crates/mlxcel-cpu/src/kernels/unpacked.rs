//! Where there are no byte products yet: no weight is ever packed, and the type that says so has no values.

use mlxcel_engine::EngineError;
use mlxcel_ir::DType;

use super::linear::{Panel, Sink};
use crate::context::Context;
use crate::simd::SimdLevel;
use crate::weight::Rows;

#[derive(Debug)]
pub(crate) enum Packed {}

impl Packed {
    pub(crate) fn suits(_: SimdLevel, _: DType) -> bool {
        false
    }

    pub(crate) fn new(_: &Context, _: &Rows<'_>, _: usize) -> Result<Self, EngineError> {
        unreachable!("no type suits")
    }

    pub(crate) fn multiply(
        &self,
        _: &Context,
        _: &Panel<'_>,
        _: (usize, usize),
        _: &Sink<'_>,
    ) -> Result<(), EngineError> {
        match *self {}
    }
}
