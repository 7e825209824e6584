//! Reductions, running reductions and order. Sums of narrow floats are kept in f32.

use mlxcel_ir::{BinaryOp, CompareOp, DType, HostTensor, ReduceOp};

use super::{Emitter, Val, types};
use crate::error::XlaError;

fn binary(op: ReduceOp) -> BinaryOp {
    match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Min => BinaryOp::Min,
    }
}

fn name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "add",
        ReduceOp::Prod => "multiply",
        ReduceOp::Max => "maximum",
        ReduceOp::Min => "minimum",
    }
}

/// What a reduction of nothing gives.
fn neutral(op: ReduceOp, dtype: DType) -> HostTensor {
    match (op, dtype) {
        (ReduceOp::Sum, _) => HostTensor::from_f64(dtype, &[], &[0.0]),
        (ReduceOp::Prod, _) => HostTensor::from_f64(dtype, &[], &[1.0]),
        (ReduceOp::Max, d) if d.is_float() => HostTensor::from_f64(dtype, &[], &[f64::NEG_INFINITY]),
        (ReduceOp::Min, d) if d.is_float() => HostTensor::from_f64(dtype, &[], &[f64::INFINITY]),
        // From the other end of what 64 bits hold, numbers saturate to the end of their own type.
        (ReduceOp::Max, DType::I64) => HostTensor::scalar(i64::MIN),
        (ReduceOp::Max, _) => HostTensor::from_f64(dtype, &[], &[-1e19]),
        (ReduceOp::Min, DType::I64) => HostTensor::scalar(i64::MAX),
        (ReduceOp::Min, DType::U64) => HostTensor::scalar(u64::MAX),
        (ReduceOp::Min, _) => HostTensor::from_f64(dtype, &[], &[1e19]),
    }
}

/// The type in which elements are combined.
fn wide(op: ReduceOp, dtype: DType) -> DType {
    let sums = matches!(op, ReduceOp::Sum | ReduceOp::Prod);
    if sums && dtype.is_float() && dtype != DType::F64 { DType::F32 } else { dtype }
}

impl Emitter {
    pub(super) fn reduce(
        &mut self,
        op: ReduceOp,
        axes: &[usize],
        x: &Val,
        out: &Val,
    ) -> Result<(), XlaError> {
        let x = self.convert(x, wide(op, x.dtype))?;
        let zero = self.temporary(x.dtype, &[]);
        self.constant(&zero, &neutral(op, x.dtype))?;
        let result = Val { dtype: x.dtype, ..out.clone() };
        let result = if result.dtype == out.dtype { result } else { self.temporary(x.dtype, &out.sizes) };
        let (from, number, to) = (x.ty()?, zero.ty()?, result.ty()?);
        self.line(format_args!(
            "{} = stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = {axes:?} : ({from}, {number}) -> {to}",
            result.name,
            x.name,
            zero.name,
            name(op)
        ));
        if result.dtype == out.dtype { Ok(()) } else { self.convert_to(&result, out) }
    }

    /// In steps of doubling distance: each element takes in the one that lies `distance` before it.
    pub(super) fn cumulative(
        &mut self,
        op: ReduceOp,
        axis: usize,
        x: &Val,
        out: &Val,
    ) -> Result<(), XlaError> {
        let n = x.sizes[axis];
        let mut sum = self.convert(x, wide(op, x.dtype))?;
        let zero = self.temporary(sum.dtype, &[]);
        self.constant(&zero, &neutral(op, sum.dtype))?;
        let mut distance = 1;
        while distance < n {
            let mut kept = sum.sizes.clone();
            kept[axis] = n - distance;
            let head = self.temporary(sum.dtype, &kept);
            let bounds = kept.iter().map(|k| format!("0:{k}")).collect::<Vec<_>>().join(", ");
            let (from, to) = (sum.ty()?, head.ty()?);
            self.line(format_args!(
                "{} = stablehlo.slice {} [{bounds}] : ({from}) -> {to}",
                head.name, sum.name
            ));
            let mut low = vec![0; kept.len()];
            low[axis] = distance;
            let shifted = self.temporary(sum.dtype, &sum.sizes);
            self.pad((&head, &zero), &low, &vec![0; kept.len()], &shifted)?;
            let next = self.temporary(sum.dtype, &sum.sizes);
            self.binary(binary(op), &shifted, &sum, &next)?;
            sum = next;
            distance *= 2;
        }
        self.convert_to(&sum, out)
    }

    /// Whether a number comes before another, NaN after all.
    fn lies_below(&mut self, first: &Val, second: &Val) -> Result<Val, XlaError> {
        let below = self.compared(CompareOp::Lt, first, second)?;
        if !first.dtype.is_float() {
            return Ok(below);
        }
        let number = self.compared(CompareOp::Eq, first, first)?;
        let nan = self.compared(CompareOp::Ne, second, second)?;
        let [last, either] = [(); 2].map(|()| self.temporary(DType::Bool, &[]));
        self.same("and", &[&number, &nan], &last)?;
        self.same("or", &[&below, &last], &either)?;
        Ok(either)
    }

    /// Stable; NaN counts as the largest.
    pub(super) fn sort(
        &mut self,
        (axis, descending): (usize, bool),
        x: &Val,
        outs: &[Val],
    ) -> Result<(), XlaError> {
        let place = self.temporary(DType::I32, &x.sizes);
        self.iota(&place, axis)?;
        let (value, index) = (types::tensor(x.dtype, &[])?, types::tensor(DType::I32, &[])?);
        self.fresh += 1;
        let n = self.fresh;
        let result = format!("%sorted{n}");
        self.line(format_args!(
            "{result}:2 = \"stablehlo.sort\"({}, {}) <{{dimension = {axis} : i64, is_stable = true}}> ({{",
            x.name, place.name
        ));
        self.line(format_args!("^bb0(%a{n}: {value}, %b{n}: {value}, %i{n}: {index}, %j{n}: {index}):"));
        self.depth += 1;
        let scalar = |name: String, dtype| Val { name, dtype, sizes: vec![] };
        let (a, b) = (scalar(format!("%a{n}"), x.dtype), scalar(format!("%b{n}"), x.dtype));
        let (first, second) = if descending { (&b, &a) } else { (&a, &b) };
        let mut before = self.lies_below(first, second)?;
        if self.options.total_orders {
            let after = self.lies_below(second, first)?;
            let places = (scalar(format!("%i{n}"), DType::I32), scalar(format!("%j{n}"), DType::I32));
            let earlier = self.compared(CompareOp::Lt, &places.0, &places.1)?;
            let [equal, kept, either] = [(); 3].map(|()| self.temporary(DType::Bool, &[]));
            self.same("not", &[&after], &equal)?;
            self.same("and", &[&equal, &earlier], &kept)?;
            self.same("or", &[&before, &kept], &either)?;
            before = either;
        }
        self.line(format_args!("stablehlo.return {} : tensor<i1>", before.name));
        self.depth -= 1;
        let (from, places) = (x.ty()?, place.ty()?);
        self.line(format_args!("}}) : ({from}, {places}) -> ({from}, {places})"));
        for (i, out) in outs.iter().enumerate() {
            let part = Val { name: format!("{result}#{i}"), ..out.clone() };
            self.reshape_to(&part, out)?;
        }
        Ok(())
    }

    /// The first place of the largest, or of the first NaN.
    pub(super) fn arg_max(&mut self, axis: usize, x: &Val, out: &Val) -> Result<(), XlaError> {
        let largest = self.temporary(x.dtype, &out.sizes);
        self.reduce(ReduceOp::Max, &[axis], x, &largest)?;
        let mut kept = x.sizes.clone();
        kept[axis] = 1;
        let largest = self.reshape(&largest, &kept)?;
        let largest = self.spread(&largest, &x.sizes)?;
        let mut hit = self.compared(CompareOp::Eq, x, &largest)?;
        if x.dtype.is_float() {
            let nan = self.compared(CompareOp::Ne, x, x)?;
            let either = self.temporary(DType::Bool, &x.sizes);
            self.same("or", &[&hit, &nan], &either)?;
            hit = either;
        }
        let exact = x.sizes[axis] < 1 << f32::MANTISSA_DIGITS;
        let wide = if self.options.for_iree_gpu && exact { DType::F32 } else { DType::I32 };
        let place = self.temporary(wide, &x.sizes);
        self.iota(&place, axis)?;
        let never = self.number(wide, &x.sizes, f64::from(i32::MAX))?;
        let found = self.temporary(wide, &x.sizes);
        self.select(&hit, (&place, &never), &found)?;
        if wide == out.dtype {
            return self.reduce(ReduceOp::Min, &[axis], &found, out);
        }
        let least = self.temporary(wide, &out.sizes);
        self.reduce(ReduceOp::Min, &[axis], &found, &least)?;
        self.convert_to(&least, out)
    }
}
