//! Products over any axes, convolutions, and the composites that decompose into them.

use mlxcel_ir::{Builder, DType, Op, PoolKind, shape};

use crate::support::{Case, Random};

#[test]
fn products_over_any_axes_are_those_of_the_reference() {
    let mut r = Random(31);
    for d in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::U8, DType::I64] {
        for n in [5, 1, 0] {
            let b = Builder::new();
            let x = b.input("x", d, shape![2, "n", 3, 19]);
            let y = b.input("y", d, shape![3, 19, 2, 7]);
            b.output("batched", x.dot_general(y, &[(0, 2), (2, 0)], &[(3, 1)]));
            b.output("two", x.dot_general(y, &[(0, 2)], &[(3, 1), (2, 0)]));
            b.output(
                "outer",
                x.slice(3, 0, 2).dot_general(y.slice(1, 0, 2).reshape(shape![6, 14]), &[], &[]),
            );
            b.output("over n", x.dot_general(x, &[(2, 2)], &[(1, 1)]));
            let wide = Op::DotGeneral { batch: vec![], contract: vec![(3, 1)], dtype: DType::F32 };
            b.output("wide", b.apply(wide, &[x, y])[0]);
            let case =
                Case::new(b).feed("x", r.tensor(d, &[2, n, 3, 19])).feed("y", r.tensor(d, &[3, 19, 2, 7]));
            case.check(&format!("{d}, n = {n}"));
        }
    }
}

#[test]
fn large_products_keep_their_precision() {
    let mut r = Random(32);
    let b = Builder::new();
    let (x, y) = (b.input("x", DType::F32, shape!["n", 1030]), b.input("y", DType::F32, shape![1030, 70]));
    b.output("z", x.dot_general(y, &[], &[(1, 0)]));
    let case = Case::new(b).feed("x", r.tensor(DType::F32, &[37, 1030]));
    case.feed("y", r.tensor(DType::F32, &[1030, 70])).check("37 by 1030 by 70");
}

#[test]
fn convolutions_over_one_to_three_axes_are_those_of_the_reference() {
    let mut r = Random(33);
    for d in [DType::F32, DType::F64, DType::BF16] {
        let b = Builder::new();
        let conv =
            |strides: &[usize], padding: &[(usize, usize)], dilation: &[usize], groups: usize| Op::Conv {
                strides: strides.to_vec(),
                padding: padding.to_vec(),
                dilation: dilation.to_vec(),
                groups,
            };
        let x = b.input("x", d, shape![2, 4, 11]);
        let w = b.input("w", d, shape![6, 4, 3]);
        b.output("1d", b.apply(conv(&[2], &[(1, 2)], &[2], 1), &[x, w])[0]);
        let grouped = b.input("g", d, shape![4, 2, 3]);
        b.output("groups", b.apply(conv(&[1], &[(2, 0)], &[1], 2), &[x, grouped])[0]);
        let x2 = b.input("x2", d, shape!["n", 3, 6, 7]);
        let w2 = b.input("w2", d, shape![2, 3, 3, 2]);
        b.output("2d", b.apply(conv(&[1, 2], &[(1, 1), (0, 1)], &[1, 3], 1), &[x2, w2])[0]);
        let x3 = b.input("x3", d, shape![1, 2, 4, 5, 3]);
        let w3 = b.input("w3", d, shape![2, 1, 2, 3, 2]);
        b.output("3d", b.apply(conv(&[1, 1, 1], &[(0, 0), (1, 1), (0, 0)], &[1, 1, 1], 2), &[x3, w3])[0]);
        let case = Case::new(b).feed("x", r.tensor(d, &[2, 4, 11])).feed("w", r.tensor(d, &[6, 4, 3]));
        let case = case.feed("g", r.tensor(d, &[4, 2, 3])).feed("x2", r.tensor(d, &[3, 3, 6, 7]));
        let case = case.feed("w2", r.tensor(d, &[2, 3, 3, 2])).feed("x3", r.tensor(d, &[1, 2, 4, 5, 3]));
        case.feed("w3", r.tensor(d, &[2, 1, 2, 3, 2])).check(&format!("{d}"));
    }
}

#[test]
fn pooling_and_transforms_run_through_their_decompositions() {
    let mut r = Random(34);
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["n", 2, 8, 6]);
    for kind in [PoolKind::Max, PoolKind::Min, PoolKind::Sum, PoolKind::Mean, PoolKind::Prod] {
        b.output(&format!("{kind:?}"), x.pool(kind, &[3, 2], &[2, 1], &[(1, 1), (0, 1)]));
    }
    let [re, im] = x.rfft();
    b.output("re", re);
    b.output("im", im);
    b.output("back", re.irfft(im, 6));
    let y = x.reshape(shape!["n", 96]).reshape(shape!["n", 4, 24]);
    let w = b.input("w", DType::F32, shape![4]);
    b.output("group norm", y.group_norm(2, 1e-5, w, w));
    let case = Case::new(b).feed("x", r.tensor(DType::F32, &[2, 2, 8, 6]));
    case.feed("w", r.tensor(DType::F32, &[4])).check("pool and fft");
}
