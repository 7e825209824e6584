//! Taking and putting by index.

use mlxcel_ir::{Op, ScatterMode};

use super::{Emitter, Val, types};
use crate::error::XlaError;

impl Emitter {
    pub(super) fn indexed(&mut self, op: &Op, x: &[&Val], out: &Val) -> Result<(), XlaError> {
        match op {
            Op::Gather { axis } => self.gather(x[0], x[1], *axis, out),
            Op::TakeAlong { axis } => self.take_along(x[0], x[1], *axis, out),
            Op::Scatter { mode } => self.scatter([x[0], x[1], x[2]], *mode, out),
            other => unreachable!("{} has no indices", other.name()),
        }
    }

    fn gather(&mut self, x: &Val, indices: &Val, axis: usize, out: &Val) -> Result<(), XlaError> {
        let width = indices.sizes.len();
        let offsets: Vec<usize> = (0..axis).chain(axis + width..out.sizes.len()).collect();
        let dims = format!(
            "offset_dims = {offsets:?}, collapsed_slice_dims = [{axis}], start_index_map = [{axis}], \
             index_vector_dim = {width}"
        );
        let mut slice = x.sizes.clone();
        slice[axis] = 1;
        self.gathered(x, indices, (&dims, &slice, x.sizes[axis] as f64 - 1.0), out)
    }

    fn take_along(&mut self, x: &Val, indices: &Val, axis: usize, out: &Val) -> Result<(), XlaError> {
        let rank = x.sizes.len();
        let others: Vec<usize> = (0..rank).filter(|a| *a != axis).collect();
        let dims = format!(
            "collapsed_slice_dims = [{axis}], operand_batching_dims = {others:?}, \
             start_indices_batching_dims = {others:?}, start_index_map = [{axis}], index_vector_dim = {rank}"
        );
        self.gathered(x, indices, (&dims, &vec![1; rank], x.sizes[axis] as f64 - 1.0), out)
    }

    fn gathered(
        &mut self,
        x: &Val,
        indices: &Val,
        (dims, slice, last): (&str, &[usize], f64),
        out: &Val,
    ) -> Result<(), XlaError> {
        if out.sizes.contains(&0) {
            // A slice of one may be more than there is to take from.
            let zero = self.number(out.dtype, &[], 0.0)?;
            return self.spread_to(&zero, out);
        }
        let slice = slice.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let bounded = if self.options.guarded_indices { Some(self.bounded(indices, last)?) } else { None };
        let indices = bounded.as_ref().unwrap_or(indices);
        let (from, index, to) = (x.ty()?, indices.ty()?, out.ty()?);
        self.line(format_args!(
            "{} = \"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<{dims}>, \
             slice_sizes = array<i64: {slice}>, indices_are_sorted = false}}> : ({from}, {index}) -> {to}",
            out.name, x.name, indices.name
        ));
        Ok(())
    }

    /// Rows out of range are dropped, as the specification of scatter has it.
    fn scatter(&mut self, x: [&Val; 3], mode: ScatterMode, out: &Val) -> Result<(), XlaError> {
        if self.options.held_updates && mode == ScatterMode::Set && x[1].sizes == [1] {
            // A single row becomes a slice that is set, which XLA joins with what reads the result, barrier or not, and
            // then copies the whole operand. The same row twice stays a scatter.
            let sizes: Vec<usize> = [2].into_iter().chain(x[2].sizes[1..].iter().copied()).collect();
            let (indices, updates) = (self.spread(x[1], &[2])?, self.spread(x[2], &sizes)?);
            return self.scatter_in_range([x[0], &indices, &updates], mode, out);
        }
        if !self.options.guarded_indices || x[1].sizes[0] == 0 || x[0].sizes[0] == 0 {
            return self.scatter_in_range(x, mode, out);
        }
        let (indices, updates) = self.guarded(x, mode)?;
        self.scatter_in_range([x[0], &indices, &updates], mode, out)
    }

    fn scatter_in_range(&mut self, x: [&Val; 3], mode: ScatterMode, out: &Val) -> Result<(), XlaError> {
        let [base, indices, updates] = x;
        let held = if self.options.held_rows { Some(self.held(updates)?) } else { None };
        let updates = held.as_ref().unwrap_or(updates);
        let windows: Vec<usize> = (1..base.sizes.len()).collect();
        let unique = self.options.for_iree_gpu && mode == ScatterMode::Set;
        let scalar = types::tensor(base.dtype, &[])?;
        let [from, index, update, to] = [base.ty()?, indices.ty()?, updates.ty()?, out.ty()?];
        self.line(format_args!(
            "{} = \"stablehlo.scatter\"({}, {}, {}) <{{scatter_dimension_numbers = #stablehlo.scatter<\
             update_window_dims = {windows:?}, inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], \
             index_vector_dim = 1>, indices_are_sorted = false, unique_indices = {unique}}}> ({{",
            out.name, base.name, indices.name, updates.name
        ));
        self.fresh += 1;
        let n = self.fresh;
        self.line(format_args!("^bb0(%old{n}: {scalar}, %new{n}: {scalar}):"));
        match mode {
            ScatterMode::Set => self.line(format_args!("  stablehlo.return %new{n} : {scalar}")),
            ScatterMode::Add => {
                self.line(format_args!("  %sum{n} = stablehlo.add %old{n}, %new{n} : {scalar}"));
                self.line(format_args!("  stablehlo.return %sum{n} : {scalar}"));
            }
        }
        self.line(format_args!("}}) : ({from}, {index}, {update}) -> {to}"));
        Ok(())
    }
}
