//! Convolution over one to three spatial axes.
//!
//! Algorithm: direct. A task computes one output plane: for every input channel of the group and every place of the
//! kernel, the shifted input lines are added with one weight, so the inner loop runs along the last axis. Checked
//! against the interpreter.

use crate::context::Context;
use crate::lanes::{Class, Lane};
use crate::layout::{Layout, Walk};
use crate::view::{Out, View};

/// Attributes of the op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows<'a> {
    pub(crate) strides: &'a [usize],
    pub(crate) padding: &'a [(usize, usize)],
    pub(crate) dilation: &'a [usize],
    pub(crate) groups: usize,
}

/// `x [n, c_in, …]`, `w [c_out, c_in / groups, …]`.
pub(crate) fn conv(ctx: &Context, x: &View<'_>, w: &View<'_>, windows: Windows<'_>, out: &mut Out<'_>) {
    match Class::of(x.dtype) {
        Class::F64 => planes::<f64>(ctx, x, w, windows, out),
        _ => planes::<f32>(ctx, x, w, windows, out),
    }
}

fn planes<L: Lane + std::ops::Mul<Output = L> + std::ops::AddAssign>(
    ctx: &Context,
    x: &View<'_>,
    w: &View<'_>,
    windows: Windows<'_>,
    out: &mut Out<'_>,
) {
    let (dtype, size, shape) = (out.dtype, out.size(), out.shape);
    let plane: usize = shape[2..].iter().product();
    let outputs = shape[1];
    let (input, kernel) = (x.numbers::<L>(), w.numbers::<L>());
    let place = Place { input: &x.shape()[2..], output: &shape[2..], kernel: &w.shape()[2..], windows };
    let channels = w.shape()[1];
    let input_plane: usize = place.input.iter().product();
    let kernel_plane: usize = place.kernel.iter().product();
    ctx.threads.chunks(out.bytes(), (plane * size).max(1), |task, bytes| {
        let (n, o) = (task / outputs, task % outputs);
        let group = o / (outputs / windows.groups);
        let mut sums = vec![L::default(); plane];
        for c in 0..channels {
            let from = (n * x.shape()[1] + group * channels + c) * input_plane;
            let weights = &kernel[(o * channels + c) * kernel_plane..][..kernel_plane];
            for (k, &weight) in weights.iter().enumerate() {
                place.add(k, weight, &input[from..from + input_plane], &mut sums);
            }
        }
        L::store(dtype, &sums, bytes);
    });
}

/// Spatial sizes.
struct Place<'a> {
    input: &'a [usize],
    output: &'a [usize],
    kernel: &'a [usize],
    windows: Windows<'a>,
}

impl Place<'_> {
    /// Adds one place of the kernel to all outputs whose input is inside.
    fn add<L: Lane + std::ops::Mul<Output = L> + std::ops::AddAssign>(
        &self,
        k: usize,
        weight: L,
        input: &[L],
        sums: &mut [L],
    ) {
        let rank = self.kernel.len();
        let kernel = [Layout::contiguous(self.kernel)];
        let strides = kernel[0].strides;
        let at = |axis: usize| k / strides[axis] % self.kernel[axis];
        // Where the input of an output lies, if inside.
        let inside = |axis: usize, o: usize| {
            let w = &self.windows;
            let i = (o * w.strides[axis] + at(axis) * w.dilation[axis]).checked_sub(w.padding[axis].0)?;
            (i < self.input[axis]).then_some(i)
        };
        let last = rank - 1;
        let (width, out_width) = (self.input[last], self.output[last]);
        let outer = [Layout::contiguous(&self.output[..last])];
        let mut walk = Walk::new(&outer, last, 0);
        for line in sums.chunks_mut(out_width.max(1)) {
            let index = outer_index(&outer[0], walk.offsets[0]);
            let row =
                (0..last).try_fold(0, |row, axis| Some(row * self.input[axis] + inside(axis, index[axis])?));
            if let Some(row) = row {
                let from = &input[row * width..(row + 1) * width];
                for (o, sum) in line.iter_mut().enumerate() {
                    if let Some(i) = inside(last, o) {
                        *sum += from[i] * weight;
                    }
                }
            }
            walk.step();
        }
    }
}

/// The index of a place in row-major order.
fn outer_index(layout: &Layout, place: usize) -> Vec<usize> {
    layout.shape.iter().zip(layout.strides.iter()).map(|(n, s)| place / s % n).collect()
}
