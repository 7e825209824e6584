//! The lines along the last axis of a strided view, as kernels that treat each line by itself read them.

use mlxcel_ir::DType;

use crate::lanes::Lane;
use crate::layout::{Dims, Layout, Walk};
use crate::view::View;

/// A readable tensor as lines of `n` numbers.
pub(crate) struct Lines<'a> {
    n: usize,
    dtype: DType,
    bytes: &'a [u8],
    /// The numbers, where lines lie as `f32` without gaps.
    plain: Option<&'a [f32]>,
    /// Of the other axes.
    outer: Layout,
    stride: usize,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(view: &View<'a>) -> Self {
        let n = view.shape().last().copied().unwrap_or(1);
        let is_contiguous = view.layout.is_contiguous();
        let last = view.layout.rank().saturating_sub(1);
        let outer = match is_contiguous {
            true => Layout { shape: Dims::new(&[view.elements() / n.max(1)]), strides: Dims::new(&[n]) },
            false => {
                let part = |d: &Dims| d[..last].iter().copied().collect();
                Layout { shape: part(&view.layout.shape), strides: part(&view.layout.strides) }.merged()
            }
        };
        let stride = if is_contiguous { 1 } else { view.layout.strides.last().copied().unwrap_or(1) };
        let plain = stride == 1 && view.dtype == DType::F32;
        let plain = plain.then(|| view.elements_of());
        Lines { n, dtype: view.dtype, bytes: view.bytes(), plain, outer, stride }
    }

    /// A line that needs no loading.
    pub(crate) fn plain(&self, line: usize) -> Option<&'a [f32]> {
        let numbers = self.plain?;
        let start = self.offset(line);
        Some(&numbers[start..start + self.n])
    }

    pub(crate) fn load(&self, line: usize, out: &mut [f32]) {
        f32::load(self.dtype, self.bytes, (self.offset(line), self.stride), out);
    }

    fn offset(&self, line: usize) -> usize {
        match self.outer.rank() {
            0 => 0,
            1 => line * self.outer.strides[0],
            rank => Walk::new(&[self.outer], rank, line).offsets[0],
        }
    }
}
