//! Few tokens: rows are decoded in registers and multiplied at once, so a weight's way is from memory to the sum.
//!
//! The order of additions is that of the tiles: element `k` goes to lane `k mod LANES` of one accumulator, in order.
#![allow(unsafe_code)]

use super::decode::{Sink, decode};
use super::panel::Panel;
use crate::simd::{Kernel, Simd};
use crate::weight::Rows;

/// The most tokens that are streamed.
pub(super) const TOKENS: usize = 4;
/// Rows of a call.
pub(super) const ROWS: usize = 4;

/// Up to [`ROWS`] whole rows with up to [`TOKENS`] tokens; gives `[token][row]`.
pub(super) struct Stream<'a> {
    pub(super) panel: &'a Panel<'a>,
    pub(super) rows: &'a Rows<'a>,
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Kernel for Stream<'_> {
    type Output = [[f32; ROWS]; TOKENS];

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        if self.panel.tokens == 1 { self.tokens::<S, 1>() } else { self.tokens::<S, TOKENS>() }
    }
}

impl Stream<'_> {
    #[inline(always)]
    fn tokens<S: Simd, const T: usize>(&self) -> [[f32; ROWS]; TOKENS] {
        let mut sums = [[S::splat(0.0); T]; ROWS];
        for (r, sums) in sums.iter_mut().enumerate().take(self.count) {
            let mut dot = Dot::<S, T> { x: [std::ptr::null(); T], sums: *sums };
            for (t, x) in dot.x.iter_mut().enumerate() {
                // Absent tokens repeat the last; nobody reads their sums.
                *x = self.panel.row(t.min(self.panel.tokens - 1), 0);
            }
            let parts = self.rows.parts(self.first + r);
            decode::<S>(self.rows.dtype, parts, 0..self.rows.cols, &mut dot);
            *sums = dot.sums;
        }
        let mut out = [[0.0; ROWS]; TOKENS];
        for (t, line) in out.iter_mut().enumerate().take(T) {
            *line = S::sums([sums[0][t], sums[1][t], sums[2][t], sums[3][t]]);
        }
        out
    }
}

/// Multiplies decoded vectors with the same elements of each token.
struct Dot<S: Simd, const T: usize> {
    x: [*const f32; T],
    sums: [S::F; T],
}

impl<S: Simd, const T: usize> Sink<S> for Dot<S, T> {
    #[inline(always)]
    fn put(&mut self, at: usize, v: S::F) {
        for (sum, x) in self.sums.iter_mut().zip(self.x) {
            // SAFETY: rows of a panel are padded to whole vectors, and decoding stays within a row.
            *sum = S::fma(unsafe { S::load(x.add(at)) }, v, *sum);
        }
    }
}
