//! Pooling and Fourier transforms.

use mlxcel_ir::{Op, PoolKind};

use super::{Build, Golden};

pub(super) const CASES: &[(&str, Build)] = &[
    ("pools_1d", |g| pools(g, &[4], &[3], &[(2, 2)])),
    ("pools_2d", |g| pools(g, &[3, 2], &[2, 1], &[(1, 1), (0, 0)])),
    ("pools_3d", |g| pools(g, &[2, 3, 2], &[2, 2, 1], &[(1, 1), (1, 1), (0, 0)])),
    ("fourier_even", |g| transforms(g, 16)),
    ("fourier_odd", |g| transforms(g, 15)),
    ("fourier_prime", |g| transforms(g, 31)),
    ("fourier_twelve", |g| transforms(g, 12)),
    ("fourier_one", |g| transforms(g, 1)),
    ("fourier_2d", |g| several_axes(g, 2, true)),
    ("fourier_3d", |g| several_axes(g, 3, false)),
];

fn pools(g: &Golden<'_>, window: &[usize], strides: &[usize], padding: &[(usize, usize)]) {
    let x = g.x("x");
    for (name, kind) in [
        ("max", PoolKind::Max),
        ("min", PoolKind::Min),
        ("mean", PoolKind::Mean),
        ("sum", PoolKind::Sum),
        ("prod", PoolKind::Prod),
    ] {
        g.y(name, x.pool(kind, window, strides, padding));
    }
}

fn transforms(g: &Golden<'_>, n: usize) {
    let (re, im) = (g.x("re"), g.x("im"));
    for (name, [re, im]) in [("fft", re.fft(im)), ("ifft", re.ifft(im)), ("rfft", re.rfft())] {
        g.y(&format!("{name}_re"), re);
        g.y(&format!("{name}_im"), im);
    }
    g.y("irfft", g.x("half_re").irfft(g.x("half_im"), n));
}

fn several_axes(g: &Golden<'_>, axes: usize, both_ways: bool) {
    let (re, im) = (g.x("re"), g.x("im"));
    let pair = |name: &str, inverse: bool| {
        let [re, im] = re.fft_nd(im, axes, Op::Fft { inverse });
        g.y(&format!("{name}_re"), re);
        g.y(&format!("{name}_im"), im);
    };
    pair("fft", false);
    if both_ways {
        pair("ifft", true);
    }
}
