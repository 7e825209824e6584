//! Fourier transforms as products with the matrices of sines and cosines. Quadratic, but exact and everywhere.

use crate::builder::{Builder, Tensor};
use crate::dtype::DType;

/// Cosine and sine of `2π j k / n` for `j < rows` and `k < columns`, in the type of `like`.
fn waves<'g>(b: &'g Builder, like: Tensor<'g>, n: usize, rows: usize, columns: usize) -> [Tensor<'g>; 2] {
    let shape = crate::shape![rows, columns];
    let product = b.iota(DType::I64, shape.clone(), 0) * b.iota(DType::I64, shape, 1);
    // Reduced before it is rounded, so that long transforms keep their precision.
    let turn = (product % n as f64).cast(like.dtype());
    let angle = turn * (2.0 * std::f64::consts::PI / n as f64);
    [angle.cos(), angle.sin()]
}

fn length(x: Tensor<'_>) -> usize {
    x.dim(x.rank() - 1).as_fixed().expect("transformed axes are fixed")
}

fn times<'g>(x: Tensor<'g>, matrix: Tensor<'g>) -> Tensor<'g> {
    x.dot_general(matrix, &[], &[(x.rank() - 1, 0)])
}

pub(super) fn complex<'g>(b: &'g Builder, re: Tensor<'g>, im: Tensor<'g>, inverse: bool) -> [Tensor<'g>; 2] {
    let n = length(re);
    let [cos, sin] = waves(b, re, n, n, n);
    if inverse {
        let scale = 1.0 / n as f64;
        [(times(re, cos) - times(im, sin)) * scale, (times(im, cos) + times(re, sin)) * scale]
    } else {
        [times(re, cos) + times(im, sin), times(im, cos) - times(re, sin)]
    }
}

pub(super) fn forward_real<'g>(b: &'g Builder, x: Tensor<'g>) -> [Tensor<'g>; 2] {
    let n = length(x);
    let [cos, sin] = waves(b, x, n, n, n / 2 + 1);
    [times(x, cos), -times(x, sin)]
}

/// The frequencies that a real signal makes redundant count twice; the imaginary parts of the first and, for even
/// `n`, of the last frequency do not count.
pub(super) fn inverse_real<'g>(b: &'g Builder, re: Tensor<'g>, im: Tensor<'g>, n: usize) -> Tensor<'g> {
    let bins = n / 2 + 1;
    let [cos, sin] = waves(b, re, n, bins, n);
    let twice: Vec<f64> = (0..bins).map(|k| if k == 0 || 2 * k == n { 1.0 } else { 2.0 }).collect();
    let weights = b.constant(crate::HostTensor::from_f64(re.dtype(), &[bins], &twice));
    (times(re * weights, cos) - times(im * weights, sin)) * (1.0 / n as f64)
}
