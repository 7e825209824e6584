//! Rows that are not packed on machines that have no products of pairs.

use std::convert::Infallible;
use std::marker::PhantomData;

use mlxcel_engine::EngineError;
use mlxcel_ir::DType;

use super::Halves;
use super::panel::Panel;
use super::tile::Product;
use crate::context::Context;
use crate::simd::SimdLevel;
use crate::weight::Rows;

/// Nothing, ever.
pub(crate) struct Paired<'a> {
    nothing: Infallible,
    life: PhantomData<&'a ()>,
}

pub(crate) fn suit(_: SimdLevel, _: DType, _: usize) -> bool {
    false
}

impl Paired<'_> {
    pub(super) fn new(_: &Context, _: &Panel<'_>, _: &Rows<'_>, _: Halves) -> Result<Self, EngineError> {
        unreachable!("no level has pairs")
    }

    pub(super) fn multiply<E>(&self, _: Product<'_, E>) {
        match self.nothing {}
    }
}
