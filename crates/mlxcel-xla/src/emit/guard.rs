//! Indices for devices that read and write wherever an index points. Gathers take the nearest row, as the specification
//! has it; rows that it drops from a scatter are given a row in range and a value that changes nothing.

use mlxcel_ir::{BinaryOp, CompareOp, DType, ReduceOp, ScatterMode};

use super::{Emitter, Val};
use crate::error::XlaError;

impl Emitter {
    /// Indices and updates with nothing out of range. Where values are added, the others add zero to the first row;
    /// where they are set, they repeat the last row that is in range, which no later one changes, or write a row as it
    /// is.
    pub(super) fn guarded(&mut self, x: [&Val; 3], mode: ScatterMode) -> Result<(Val, Val), XlaError> {
        let [base, indices, updates] = x;
        let zero = self.number(indices.dtype, &indices.sizes, 0.0)?;
        let end = self.number(indices.dtype, &indices.sizes, base.sizes[0] as f64)?;
        let (low, high) =
            (self.compared(CompareOp::Ge, indices, &zero)?, self.compared(CompareOp::Lt, indices, &end)?);
        let valid = self.temporary(DType::Bool, &indices.sizes);
        self.same("and", &[&low, &high], &valid)?;
        let (row, value) = match mode {
            ScatterMode::Add => (zero, self.number(updates.dtype, &updates.sizes, 0.0)?),
            ScatterMode::Set => self.harmless(x, &valid)?,
        };
        let row = self.spread(&row, &indices.sizes)?;
        let index = self.temporary(indices.dtype, &indices.sizes);
        self.select(&valid, (indices, &row), &index)?;
        let column: Vec<usize> =
            updates.sizes.iter().enumerate().map(|(i, n)| if i == 0 { *n } else { 1 }).collect();
        let chosen = self.reshape(&valid, &column)?;
        let chosen = self.spread(&chosen, &updates.sizes)?;
        let value = self.spread(&value, &updates.sizes)?;
        let update = self.temporary(updates.dtype, &updates.sizes);
        self.select(&chosen, (updates, &value), &update)?;
        Ok((index, update))
    }

    /// A row in range, as one index, and what may be written to it without a change.
    fn harmless(&mut self, [base, indices, updates]: [&Val; 3], valid: &Val) -> Result<(Val, Val), XlaError> {
        let (n, rows) = (indices.sizes[0] as f64, base.sizes[0] as f64);
        let place = self.temporary(DType::I32, &indices.sizes);
        self.iota(&place, 0)?;
        let never = self.number(DType::I32, &indices.sizes, -1.0)?;
        let places = self.temporary(DType::I32, &indices.sizes);
        self.select(valid, (&place, &never), &places)?;
        let last = self.temporary(DType::I32, &[]);
        self.reduce(ReduceOp::Max, &[0], &places, &last)?;
        let zero = self.number(DType::I32, &[], 0.0)?;
        let some = self.compared(CompareOp::Ge, &last, &zero)?;
        let at = self.bounded(&last, n - 1.0)?;
        let index = self.row_of(indices, &at)?;
        let index = self.bounded(&index, rows - 1.0)?;
        let scalar = self.reshape(&index, &[])?;
        let (new, old) = (self.row_of(updates, &at)?, self.row_of(base, &scalar)?);
        let some = self.spread(&some, &new.sizes)?;
        let value = self.temporary(new.dtype, &new.sizes);
        self.select(&some, (&new, &old), &value)?;
        Ok((index, value))
    }

    /// Between zero and `last`.
    pub(super) fn bounded(&mut self, x: &Val, last: f64) -> Result<Val, XlaError> {
        let (zero, last) = (self.number(x.dtype, &x.sizes, 0.0)?, self.number(x.dtype, &x.sizes, last)?);
        let least = self.temporary(x.dtype, &x.sizes);
        self.binary(BinaryOp::Max, x, &zero, &least)?;
        let out = self.temporary(x.dtype, &x.sizes);
        self.binary(BinaryOp::Min, &least, &last, &out)?;
        Ok(out)
    }

    /// One row, as the only one of its array.
    fn row_of(&mut self, x: &Val, at: &Val) -> Result<Val, XlaError> {
        let starts = self.entry_starts(x, at)?;
        let sizes: Vec<usize> = std::iter::once(1).chain(x.sizes[1..].iter().copied()).collect();
        let row = self.temporary(x.dtype, &sizes);
        self.dynamic_slice(x, &starts, &row)?;
        Ok(row)
    }
}
