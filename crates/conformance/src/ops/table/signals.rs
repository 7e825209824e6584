//! Pooling over one to three axes and Fourier transforms of every kind of length.

use mlxcel_ir::{DType, Op, PoolKind};

use super::{Sketch, Table};

const KINDS: [PoolKind; 5] = [PoolKind::Max, PoolKind::Min, PoolKind::Sum, PoolKind::Mean, PoolKind::Prod];

type Windowing = (&'static [usize], &'static [usize], &'static [(usize, usize)]);

const POOLS: [(&str, &[usize], Windowing); 7] = [
    ("1d", &[2, 3, 17], (&[4], &[3], &[(2, 1)])),
    ("1d global", &[2, 3, 17], (&[17], &[1], &[(0, 0)])),
    ("1d of one", &[1, 2, 9], (&[1], &[2], &[(0, 0)])),
    ("2d", &[2, 3, 9, 8], (&[2, 2], &[2, 2], &[(0, 0), (0, 0)])),
    ("2d padded", &[1, 2, 7, 8], (&[3, 2], &[2, 1], &[(1, 1), (0, 1)])),
    ("3d", &[1, 2, 5, 6, 4], (&[2, 3, 2], &[2, 2, 1], &[(1, 0), (1, 1), (0, 0)])),
    ("3d dense", &[1, 1, 4, 4, 4], (&[2, 2, 2], &[1, 1, 1], &[(0, 0), (0, 0), (0, 0)])),
];

const LENGTHS: [usize; 18] = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 31, 60, 64, 97, 100, 128, 243];

pub(super) fn add(t: &mut Table) {
    for (name, shape, windowing) in POOLS {
        t.floats(&format!("pool {name}"), |s, dtype| {
            // Products of numbers near one stay in the range of a half.
            pools(s, s.uniform(dtype, shape, (0.5, 1.5)), windowing, &KINDS);
        });
        t.case(&format!("pool {name} of integers"), |s| {
            let kinds = [PoolKind::Max, PoolKind::Min, PoolKind::Sum, PoolKind::Prod];
            pools(s, s.whole(DType::I32, shape, (-9, 9)), windowing, &kinds);
        });
    }
    for n in LENGTHS {
        t.case(&format!("fourier {n}"), |s| transforms(s, DType::F32, n));
    }
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        t.case(&format!("fourier 20 {dtype}"), |s| {
            transforms(s, dtype, 20);
            // Twenty products, each with a rounded sine.
            s.slacken(if dtype == DType::F64 { 1.0 } else { 4.0 });
        });
    }
    t.case("fourier over several axes", |s| {
        let (re, im) =
            (s.normal_input("re", DType::F32, &[3, 4, 10]), s.normal_input("im", DType::F32, &[3, 4, 10]));
        for axes in [2, 3] {
            for inverse in [false, true] {
                let [r, i] = re.fft_nd(im, axes, Op::Fft { inverse });
                s.output(&format!("{axes} {inverse} re"), r);
                s.output(&format!("{axes} {inverse} im"), i);
            }
        }
    });
    t.case("there and back", |s| {
        let x = s.normal_input("x", DType::F32, &[4, 33]);
        let [re, im] = x.rfft();
        s.output("x", re.irfft(im, 33));
    });
}

fn pools(s: &Sketch, x: mlxcel_ir::HostTensor, (window, strides, padding): Windowing, kinds: &[PoolKind]) {
    let x = s.input("x", x);
    for &kind in kinds {
        s.output(&format!("{kind:?}"), x.pool(kind, window, strides, padding));
    }
}

fn transforms(s: &Sketch, dtype: DType, n: usize) {
    let (re, im) = (s.normal_input("re", dtype, &[2, 3, n]), s.normal_input("im", dtype, &[2, 3, n]));
    let pair = |name: &str, [re, im]: [mlxcel_ir::Tensor<'_>; 2]| {
        s.output(&format!("{name} re"), re);
        s.output(&format!("{name} im"), im);
    };
    pair("fft", re.fft(im));
    pair("ifft", re.ifft(im));
    pair("rfft", re.rfft());
    let half = n / 2 + 1;
    let (re, im) =
        (s.normal_input("half re", dtype, &[3, half]), s.normal_input("half im", dtype, &[3, half]));
    s.output("irfft", re.irfft(im, n));
    // The sine of a sum of n terms loses a little as n grows; transforms by other routes round elsewhere.
    s.slacken(2.0);
}
