//! Where the elements of a view lie: shape and strides, in elements, and the moves that need no copy. Knows nothing
//! of memory or element types.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// The most axes a value may have.
pub(crate) const RANK_MAX: usize = 8;

/// A short list of sizes, held in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dims {
    len: usize,
    sizes: [usize; RANK_MAX],
}

impl Dims {
    /// Panics beyond [`RANK_MAX`], which compiling a graph rules out.
    pub(crate) fn new(sizes: &[usize]) -> Self {
        sizes.iter().copied().collect()
    }

    pub(crate) fn push(&mut self, size: usize) {
        assert!(self.len < RANK_MAX, "more than {RANK_MAX} axes");
        self.sizes[self.len] = size;
        self.len += 1;
    }

    pub(crate) fn elements(&self) -> usize {
        self.iter().product()
    }
}

impl FromIterator<usize> for Dims {
    fn from_iter<I: IntoIterator<Item = usize>>(sizes: I) -> Self {
        let mut dims = Dims { len: 0, sizes: [0; RANK_MAX] };
        sizes.into_iter().for_each(|s| dims.push(s));
        dims
    }
}

impl Deref for Dims {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.sizes[..self.len]
    }
}

impl DerefMut for Dims {
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.sizes[..self.len]
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Shape and strides. The first element lies at 0; a broadcast axis has stride 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: Dims,
    pub(crate) strides: Dims,
}

impl Layout {
    /// Row-major.
    pub(crate) fn contiguous(shape: &[usize]) -> Self {
        let mut strides = Dims::new(shape);
        let mut step = 1;
        for (i, &n) in shape.iter().enumerate().rev() {
            strides[i] = step;
            step *= n;
        }
        Layout { shape: Dims::new(shape), strides }
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Elements from the first to the last one reached.
    pub(crate) fn span(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        1 + self.shape.iter().zip(self.strides.iter()).map(|(n, s)| (n - 1) * s).sum::<usize>()
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        let mut step = 1;
        self.shape.iter().zip(self.strides.iter()).rev().all(|(&n, &s)| {
            let fits = n == 1 || s == step;
            step *= n;
            fits
        }) || self.elements() == 0
    }

    pub(crate) fn transpose(&self, perm: &[usize]) -> Self {
        let pick = |from: &Dims| perm.iter().map(|&p| from[p]).collect();
        Layout { shape: pick(&self.shape), strides: pick(&self.strides) }
    }

    /// `count` entries of an axis, `step` apart; where they start is the caller's business.
    pub(crate) fn cut(&self, axis: usize, count: usize, step: usize) -> Self {
        let mut cut = *self;
        cut.shape[axis] = count;
        cut.strides[axis] *= step;
        cut
    }

    /// Repeated over `to` as NumPy broadcasts.
    pub(crate) fn broadcast(&self, to: &[usize]) -> Self {
        let skip = to.len() - self.rank();
        let stride = |i: usize| match i.checked_sub(skip) {
            Some(j) if self.shape[j] != 1 => self.strides[j],
            _ => 0,
        };
        Layout { shape: Dims::new(to), strides: (0..to.len()).map(stride).collect() }
    }

    /// The same elements in order under another shape, if strides can say it.
    pub(crate) fn reshape(&self, to: &[usize]) -> Option<Self> {
        if self.elements() == 0 || self.is_contiguous() {
            return Some(Self::contiguous(to));
        }
        let from = self.merged();
        let mut strides = Dims::new(to);
        // Walks both shapes from the last axis: each merged run must be a product of whole new axes.
        let mut axis = to.len();
        for (&n, &s) in from.shape.iter().zip(from.strides.iter()).rev() {
            let (mut left, mut step) = (n, s);
            while left > 1 {
                axis = axis.checked_sub(1)?;
                if left % to[axis] != 0 {
                    return None;
                }
                strides[axis] = step;
                step *= to[axis];
                left /= to[axis];
            }
        }
        strides[..axis].fill(0);
        Some(Layout { shape: Dims::new(to), strides })
    }

    /// Neighbouring axes joined where one continues the other, axes of length 1 left out.
    pub(crate) fn merged(&self) -> Self {
        let [merged] = merge([*self]);
        merged
    }
}

/// Joins neighbouring axes of several layouts of one shape, where all of them continue. Never empty unless the
/// shape is a scalar.
pub(crate) fn merge<const N: usize>(layouts: [Layout; N]) -> [Layout; N] {
    let list = merge_all(&layouts);
    std::array::from_fn(|i| list[i])
}

/// As [`merge`], for any number.
pub(crate) fn merge_all(layouts: &[Layout]) -> Vec<Layout> {
    let empty = Layout { shape: Dims::new(&[]), strides: Dims::new(&[]) };
    let mut out = vec![empty; layouts.len()];
    let Some(first) = layouts.first() else { return out };
    for axis in (0..first.rank()).filter(|&a| first.shape[a] != 1) {
        let n = first.shape[axis];
        let continues = !out[0].shape.is_empty()
            && layouts
                .iter()
                .zip(&out)
                .all(|(l, o)| o.strides.last().is_some_and(|&outer| outer == l.strides[axis] * n));
        for (l, o) in layouts.iter().zip(&mut out) {
            if continues {
                let last = o.shape.len() - 1;
                o.shape[last] *= n;
                o.strides[last] = l.strides[axis];
            } else {
                o.shape.push(n);
                o.strides.push(l.strides[axis]);
            }
        }
    }
    out
}

/// Counts through the indices of a shape and keeps the offsets of several layouts along.
#[derive(Clone, Debug)]
pub(crate) struct Walk<'l> {
    layouts: &'l [Layout],
    axes: usize,
    index: Dims,
    pub(crate) offsets: Vec<usize>,
}

impl<'l> Walk<'l> {
    /// Over the first `axes` axes, starting from the `start`-th index in row-major order.
    pub(crate) fn new(layouts: &'l [Layout], axes: usize, start: usize) -> Self {
        let shape = layouts[0].shape;
        let mut index = Dims::new(&vec![0; axes]);
        let mut rest = start;
        for a in (0..axes).rev() {
            index[a] = rest % shape[a].max(1);
            rest /= shape[a].max(1);
        }
        let offset = |l: &Layout| index.iter().zip(l.strides.iter()).map(|(i, s)| i * s).sum();
        let offsets = layouts.iter().map(offset).collect();
        Walk { layouts, axes, index, offsets }
    }

    /// The next index; wraps to zero after the last.
    pub(crate) fn step(&mut self) {
        for a in (0..self.axes).rev() {
            self.index[a] += 1;
            let wraps = self.index[a] == self.layouts[0].shape[a];
            for (l, o) in self.layouts.iter().zip(&mut self.offsets) {
                *o = if wraps { *o - (self.index[a] - 1) * l.strides[a] } else { *o + l.strides[a] };
            }
            if !wraps {
                return;
            }
            self.index[a] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(l: Layout) -> Vec<usize> {
        let layouts = [l];
        let mut walk = Walk::new(&layouts, l.rank(), 0);
        (0..l.elements())
            .map(|_| {
                let o = walk.offsets[0];
                walk.step();
                o
            })
            .collect()
    }

    #[test]
    fn a_reshape_without_a_copy_keeps_the_order_of_elements() {
        let base = Layout::contiguous(&[4, 6, 10]);
        let views =
            [base, base.cut(2, 4, 1), base.cut(0, 2, 2), base.transpose(&[1, 0, 2]), base.cut(1, 1, 1)];
        let mut shared = 0;
        for view in views {
            for to in [vec![240], vec![24, 10], vec![4, 60], vec![4, 6, 2, 2], vec![24, 4], vec![6, 4, 5, 2]]
            {
                if to.iter().product::<usize>() != view.elements() {
                    continue;
                }
                if let Some(l) = view.reshape(&to) {
                    assert_eq!(offsets(l), offsets(view), "{view:?} as {to:?}");
                    shared += 1;
                }
            }
        }
        assert!(shared >= 7, "only {shared} reshapes were free");
        assert_eq!(base.transpose(&[2, 1, 0]).reshape(&[240]), None);
    }

    #[test]
    fn walking_can_start_anywhere() {
        let l = Layout::contiguous(&[3, 4, 5]).transpose(&[2, 0, 1]);
        let all = offsets(l);
        let layouts = [l];
        for start in [0, 7, 59] {
            assert_eq!(Walk::new(&layouts, 3, start).offsets[0], all[start]);
        }
    }

    #[test]
    fn merging_keeps_broadcast_axes_apart() {
        let a = Layout::contiguous(&[2, 3, 4]);
        let b = Layout::contiguous(&[4]).broadcast(&[2, 3, 4]);
        let [a, b] = merge([a, b]);
        assert_eq!((&*a.shape, &*a.strides, &*b.strides), (&[6, 4][..], &[4, 1][..], &[0, 1][..]));
    }

    #[test]
    fn empty_layouts_span_nothing() {
        let l = Layout::contiguous(&[0, 4]);
        assert_eq!((l.span(), l.is_contiguous()), (0, true));
        assert_eq!(l.reshape(&[4, 0]).map(|l| l.elements()), Some(0));
    }
}
