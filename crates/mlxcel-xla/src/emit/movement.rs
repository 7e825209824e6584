//! Reshaping, slicing and joining.

use mlxcel_ir::{Dim, Op};

use super::{Emitter, Val};
use crate::error::XlaError;

impl Emitter {
    pub(super) fn movement(&mut self, op: &Op, x: &[&Val], out: &Val) -> Result<(), XlaError> {
        match op {
            Op::Reshape { .. } => self.reshape_to(x[0], out),
            Op::Broadcast { .. } => self.spread_to(x[0], out),
            Op::Transpose { perm } => {
                self.moved(x[0], out, format_args!("transpose {}, dims = {perm:?}", x[0].name))
            }
            Op::Slice { axis, start, end, step } => {
                let bounds = slice_bounds(x[0], *axis, (start, end, *step))?;
                self.moved(x[0], out, format_args!("slice {} [{bounds}]", x[0].name))
            }
            Op::Concat { axis } => {
                let names: Vec<&str> = x.iter().map(|v| v.name.as_str()).collect();
                let types = x.iter().map(|v| v.ty()).collect::<Result<Vec<_>, _>>()?.join(", ");
                let (names, to) = (names.join(", "), out.ty()?);
                self.line(format_args!(
                    "{} = stablehlo.concatenate {names}, dim = {axis} : ({types}) -> {to}",
                    out.name
                ));
                Ok(())
            }
            Op::Pad { low, high } => self.pad((x[0], x[1]), low, high, out),
            Op::DynamicSlice { .. } => {
                let starts = self.starts(x[1])?;
                self.dynamic_slice(x[0], &starts, out)
            }
            Op::UpdateSlice => {
                let starts = self.starts(x[2])?;
                self.update_slice((x[0], x[1]), &starts, out)
            }
            other => unreachable!("{} moves nothing", other.name()),
        }
    }

    /// `out = op… : (type of x) -> type of out`.
    fn moved(&mut self, x: &Val, out: &Val, op: std::fmt::Arguments<'_>) -> Result<(), XlaError> {
        let (from, to) = (x.ty()?, out.ty()?);
        self.line(format_args!("{} = stablehlo.{op} : ({from}) -> {to}", out.name));
        Ok(())
    }

    pub(super) fn pad(
        &mut self,
        (x, value): (&Val, &Val),
        low: &[usize],
        high: &[usize],
        out: &Val,
    ) -> Result<(), XlaError> {
        let between = vec![0; low.len()];
        let (from, number, to) = (x.ty()?, value.ty()?, out.ty()?);
        self.line(format_args!(
            "{} = stablehlo.pad {}, {}, low = {low:?}, high = {high:?}, interior = {between:?} : ({from}, {number}) -> {to}",
            out.name, x.name, value.name
        ));
        Ok(())
    }

    /// The elements of a vector of starts as scalars.
    fn starts(&mut self, starts: &Val) -> Result<Vec<Val>, XlaError> {
        let n = starts.sizes.first().copied().unwrap_or(0);
        let mut scalars = vec![];
        for i in 0..n {
            let one = self.temporary(starts.dtype, &[1]);
            self.moved(starts, &one, format_args!("slice {} [{i}:{}]", starts.name, i + 1))?;
            scalars.push(self.reshape(&one, &[])?);
        }
        Ok(scalars)
    }

    pub(super) fn dynamic_slice(&mut self, x: &Val, starts: &[Val], out: &Val) -> Result<(), XlaError> {
        let (names, types) = listed(x, &[], starts)?;
        let (sizes, to) = (&out.sizes, out.ty()?);
        self.line(format_args!(
            "{} = stablehlo.dynamic_slice {names}, sizes = {sizes:?} : ({types}) -> {to}",
            out.name
        ));
        Ok(())
    }

    pub(super) fn update_slice(
        &mut self,
        (x, update): (&Val, &Val),
        starts: &[Val],
        out: &Val,
    ) -> Result<(), XlaError> {
        let (names, types) = listed(x, &[update], starts)?;
        let to = out.ty()?;
        self.line(format_args!("{} = stablehlo.dynamic_update_slice {names} : ({types}) -> {to}", out.name));
        Ok(())
    }
}

/// Names and types of operands.
fn listed(x: &Val, more: &[&Val], starts: &[Val]) -> Result<(String, String), XlaError> {
    let all: Vec<&Val> = std::iter::once(x).chain(more.iter().copied()).chain(starts).collect();
    let names = all.iter().map(|v| v.name.as_str()).collect::<Vec<_>>().join(", ");
    let types = all.iter().map(|v| v.ty()).collect::<Result<Vec<_>, _>>()?.join(", ");
    Ok((names, types))
}

fn slice_bounds(x: &Val, axis: usize, (start, end, step): (&Dim, &Dim, usize)) -> Result<String, XlaError> {
    let fixed = |d: &Dim| d.as_fixed().ok_or_else(|| XlaError::Unbound { ty: d.to_string() });
    let (start, end) = (fixed(start)?, fixed(end)?);
    let bounds = x.sizes.iter().enumerate().map(|(i, n)| match (i == axis, step) {
        (false, _) => format!("0:{n}"),
        (true, 1) => format!("{start}:{end}"),
        (true, _) => format!("{start}:{end}:{step}"),
    });
    Ok(bounds.collect::<Vec<_>>().join(", "))
}
