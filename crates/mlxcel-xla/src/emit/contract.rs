//! Products of tensors. Narrow floats are summed in f32; f32 is never cut to fewer bits.

use mlxcel_ir::{DType, Op};

use super::{Emitter, Val};
use crate::error::XlaError;

type Axes<'a> = (&'a [(usize, usize)], &'a [(usize, usize)]);

/// The type that operands are multiplied in, and that sums have.
fn widths(operands: DType, result: DType, narrow_products: bool) -> (DType, DType) {
    let narrow = |d: DType| matches!(d, DType::F16 | DType::BF16);
    match (operands, result) {
        (a, b) if a.is_float() && b.is_float() => {
            let sum = if narrow(b) && !(narrow_products && a == b) { DType::F32 } else { b };
            let multiplied = if a.size() == Some(1) { DType::F32 } else { a };
            (multiplied, if sum.size() < multiplied.size() { multiplied } else { sum })
        }
        // Whole numbers wrap, so that the type of the result is wide enough; a float counts them exactly enough.
        (a, b) if a.is_float() => (a, if b.is_float() { b } else { a }),
        (_, b) => (b, b),
    }
}

impl Emitter {
    pub(super) fn dot(&mut self, (a, b): (&Val, &Val), axes: Axes<'_>, out: &Val) -> Result<(), XlaError> {
        let (multiplied, summed) = widths(a.dtype, out.dtype, self.options.narrow_products);
        let (a, b) = (self.convert(a, multiplied)?, self.convert(b, multiplied)?);
        let direct = summed == out.dtype;
        let sum = if direct { out.clone() } else { self.temporary(summed, &out.sizes) };
        let list = |axes: &[(usize, usize)]| -> (Vec<usize>, Vec<usize>) { axes.iter().copied().unzip() };
        let (batch, contract) = (list(axes.0), list(axes.1));
        let batching = if axes.0.is_empty() {
            String::new()
        } else {
            format!("batching_dims = {:?} x {:?}, ", batch.0, batch.1)
        };
        // Without this, accelerators round f32 to fewer bits before they multiply.
        let precision = if multiplied == DType::F32 { "HIGHEST" } else { "DEFAULT" };
        let (left, right, to) = (a.ty()?, b.ty()?, sum.ty()?);
        self.line(format_args!(
            "{} = stablehlo.dot_general {}, {}, {batching}contracting_dims = {:?} x {:?}, \
             precision = [{precision}, {precision}] : ({left}, {right}) -> {to}",
            sum.name, a.name, b.name, contract.0, contract.1
        ));
        if direct { Ok(()) } else { self.convert_to(&sum, out) }
    }

    pub(super) fn conv(&mut self, op: &Op, (x, w): (&Val, &Val), out: &Val) -> Result<(), XlaError> {
        let Op::Conv { strides, padding, dilation, groups } = op else {
            unreachable!("{} is not a convolution", op.name())
        };
        let wide = if out.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let (x, w) = (self.convert(x, wide)?, self.convert(w, wide)?);
        let direct = wide == out.dtype;
        let sum = if direct { out.clone() } else { self.temporary(wide, &out.sizes) };
        let spatial: String = (0..strides.len()).map(|i| format!(", {i}")).collect();
        let pads =
            padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect::<Vec<_>>().join(", ");
        let (from, kernel, to) = (x.ty()?, w.ty()?, sum.ty()?);
        self.line(format_args!(
            "{} = stablehlo.convolution({}, {}) dim_numbers = [b, f{spatial}]x[o, i{spatial}]->[b, f{spatial}], \
             window = {{stride = {strides:?}, pad = [{pads}], rhs_dilate = {dilation:?}}} \
             {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64, \
             precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}} : ({from}, {kernel}) -> {to}",
            sum.name, x.name, w.name
        ));
        if direct { Ok(()) } else { self.convert_to(&sum, out) }
    }
}
