//! A tensor on the device as a step sees it: a root of memory, an offset, a shape and strides. Knows no addresses.

use mlxcel_ir::DType;

/// The number of a root: a piece of memory.
pub(crate) type RootId = usize;

/// A strided tensor of a plain type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) root: RootId,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
    pub(crate) offset: i64,
}

/// Row-major strides.
pub(crate) fn strides(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i] as i64;
    }
    strides
}

/// Bytes of an element of a plain type.
pub(crate) fn size(dtype: DType) -> usize {
    dtype.size().expect("packed weights are no views")
}

/// The code of a plain type in kernels: its place in their order.
pub(crate) fn code(dtype: DType) -> usize {
    DType::PLAIN.iter().position(|d| *d == dtype).expect("packed weights are no views")
}

impl View {
    pub(crate) fn dense(root: RootId, dtype: DType, shape: &[usize]) -> Self {
        View { root, dtype, shape: shape.to_vec(), strides: strides(shape), offset: 0 }
    }

    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub(crate) fn byte_offset(&self) -> u64 {
        (self.offset * size(self.dtype) as i64) as u64
    }

    /// Whether the elements lie in order without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        let wanted = strides(&self.shape);
        self.elements() <= 1
            || self.shape.iter().zip(self.strides.iter().zip(&wanted)).all(|(&n, (a, b))| n == 1 || a == b)
    }

    /// Whether it is the whole of its root, in order.
    pub(crate) fn is_whole(&self) -> bool {
        self.offset == 0 && self.is_dense()
    }

    /// The same elements under another shape, if strides allow.
    pub(crate) fn reshaped(&self, shape: &[usize]) -> Option<View> {
        if self.elements() == 0 || self.is_dense() {
            let strides = strides(shape);
            return Some(View { shape: shape.to_vec(), strides, ..self.clone() });
        }
        let strides = reshape_strides(&self.shape, &self.strides, shape)?;
        Some(View { shape: shape.to_vec(), strides, ..self.clone() })
    }

    /// All axes but the last as one: rows, elements of a row, and the stride from row to row. `None` if rows are not at
    /// equal distances or their elements not side by side.
    pub(crate) fn rows(&self) -> Option<(usize, usize, i64)> {
        let (&width, leading) = self.shape.split_last()?;
        let count = leading.iter().product();
        if width > 1 && self.strides.last() != Some(&1) {
            return None;
        }
        let merged = merge(leading, &self.strides[..leading.len()]);
        match merged.as_slice() {
            [] => Some((count, width, width as i64)),
            [(_, stride)] => Some((count, width, *stride)),
            _ => None,
        }
    }

    /// Strides when read under a larger shape, zero where it repeats.
    pub(crate) fn broadcast_strides(&self, shape: &[usize]) -> Vec<i64> {
        let skip = shape.len() - self.shape.len();
        let stride =
            |i: usize| if i < skip || self.shape[i - skip] == 1 { 0 } else { self.strides[i - skip] };
        (0..shape.len()).map(stride).collect()
    }
}

/// Axes that follow each other in memory as one, axes of one element dropped: lengths and strides.
pub(crate) fn merge(shape: &[usize], strides: &[i64]) -> Vec<(usize, i64)> {
    let mut out: Vec<(usize, i64)> = vec![];
    for (&n, &s) in shape.iter().zip(strides).filter(|(n, _)| **n != 1) {
        match out.last_mut() {
            Some(last) if last.1 == s * n as i64 => *last = (last.0 * n, s),
            _ => out.push((n, s)),
        }
    }
    out
}

fn reshape_strides(from: &[usize], strides: &[i64], to: &[usize]) -> Option<Vec<i64>> {
    let mut out = vec![0; to.len()];
    let mut merged = merge(from, strides).into_iter().rev().collect::<Vec<_>>().into_iter();
    let mut current = merged.next().unwrap_or((1, 1));
    let mut left = current.0;
    for (i, &n) in to.iter().enumerate().rev() {
        if n == 1 {
            out[i] = 1;
            continue;
        }
        if left == 1 {
            current = merged.next()?;
            left = current.0;
        }
        if left % n != 0 {
            return None;
        }
        out[i] = current.1 * (current.0 / left) as i64;
        left /= n;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sliced() -> View {
        View { shape: vec![5, 12], strides: vec![20, 1], offset: 3, ..View::dense(0, DType::F32, &[5, 12]) }
    }

    #[test]
    fn a_slice_of_rows_splits_into_heads_without_a_copy() {
        let heads = sliced().reshaped(&[5, 3, 4]).unwrap();
        assert_eq!((heads.strides, heads.offset), (vec![20, 4, 1], 3));
        assert_eq!(sliced().reshaped(&[60]), None);
        assert_eq!(sliced().rows(), Some((5, 12, 20)));
    }

    #[test]
    fn a_transposed_view_has_no_rows() {
        let v = View { strides: vec![1, 5], ..sliced() };
        assert_eq!(v.rows(), None);
        assert!(!v.is_dense());
    }
}
