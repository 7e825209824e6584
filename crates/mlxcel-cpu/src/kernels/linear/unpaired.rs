//! Rounded tokens with rows that are not packed, on machines that have no products of pairs: there are none.

use std::convert::Infallible;
use std::marker::PhantomData;

use mlxcel_engine::EngineError;
use mlxcel_ir::DType;

use super::panel::Panel;
use super::tile::Product;
use crate::context::Context;
use crate::simd::SimdLevel;
use crate::weight::Rows;

/// Nothing, ever.
pub(crate) struct Rounded<'a> {
    nothing: Infallible,
    life: PhantomData<&'a ()>,
}

pub(crate) fn rounds(_: SimdLevel, _: DType, _: usize) -> bool {
    false
}

impl Rounded<'_> {
    pub(super) fn new(_: &Context, _: &Panel<'_>, _: &Rows<'_>) -> Result<Self, EngineError> {
        unreachable!("no level rounds")
    }

    pub(super) fn multiply<E>(&self, _: Product<'_, E>) {
        match self.nothing {}
    }
}
