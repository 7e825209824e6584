//! Contractions over any axes, linear layers with plain weights, embeddings, experts and convolutions.

use mlxcel_ir::{DType, HostTensor, Op, Tensor, shape};
use mlxcel_weights::WeightTensor;

use super::elementwise::apply;
use super::{FLOATS, Sketch, Table};

pub(super) fn add(t: &mut Table) {
    t.floats("dot_general", dots);
    t.case("dot_general f64", |s| dots(s, DType::F64));
    t.case("dot_general of integers", integer_dots);
    t.case("dot_general to a wider type", |s| {
        let a = s.normal_input("a", DType::BF16, &[7, 96]);
        let b = s.normal_input("b", DType::BF16, &[5, 96]);
        let op = Op::DotGeneral { batch: vec![], contract: vec![(1, 1)], dtype: DType::F32 };
        s.output("y", apply(s, op, &[a, b]));
    });
    for x in FLOATS {
        for w in FLOATS {
            t.case(&format!("linear {x} by {w}"), |s| linear(s, x, w));
        }
    }
    t.case("linear at a model's width", |s| {
        let x = s.input_as("x", shape!["tokens", 576], s.normal(DType::F32, &[7, 576]));
        let up = s.normal_weight("up", DType::BF16, &[1536, 576]);
        let down = s.normal_weight("down", DType::BF16, &[576, 1536]);
        let hidden = x.linear(up, None);
        s.output("up", hidden);
        s.output("down", hidden.linear(down, None));
        s.step(vec![("x", s.normal(DType::F32, &[1, 576]))]);
        s.step(vec![("x", s.normal(DType::F32, &[64, 576]))]);
    });
    t.case("logits of a large vocabulary", |s| {
        let x = s.input_as("x", shape!["rows", 576], s.normal(DType::F32, &[1, 576]));
        let w = s.normal_weight("w", DType::F32, &[4096, 576]);
        s.output("y", x.linear(w, None));
        s.step(vec![("x", s.normal(DType::F32, &[3, 576]))]);
        s.step(vec![("x", s.normal(DType::F32, &[0, 576]))]);
    });
    t.case("a weight of several pieces", pieces);
    t.floats("embedding", |s, dtype| {
        let table = s.normal_weight("table", dtype, &[4096, 48]);
        let ids = s.input_as("ids", shape!["tokens"], s.whole(DType::I32, &[7], (0, 4096)));
        s.output("f32", table.embedding(ids, DType::F32));
        s.output("same", table.embedding(ids, dtype));
        s.step(vec![("ids", s.whole(DType::I32, &[64], (0, 4096)))]);
        s.exact();
    });
    t.floats("expert linear", experts);
    convolutions(t);
}

fn dots(s: &Sketch, dtype: DType) {
    let input = |name: &str, shape: &[usize]| s.normal_input(name, dtype, shape);
    let (a, b) = (input("a", &[3, 4, 5]), input("b", &[5, 3, 6]));
    let d = input("d", &[4, 3, 5, 2]);
    s.output("one axis", a.dot_general(b, &[], &[(2, 0)]));
    s.output("first axes", a.dot_general(b, &[], &[(0, 1)]));
    s.output("batch", a.dot_general(b, &[(0, 1)], &[(2, 0)]));
    s.output("two contracted", a.dot_general(d, &[], &[(1, 0), (0, 1)]));
    s.output("in the other order", a.dot_general(d, &[], &[(0, 1), (1, 0)]));
    s.output("all contracted", a.dot_general(d, &[], &[(2, 2), (0, 1), (1, 0)]));
    s.output("batch and two", a.dot_general(d, &[(1, 0)], &[(2, 2), (0, 1)]));
    s.output("two batches", a.dot_general(d, &[(2, 2), (1, 0)], &[(0, 1)]));
    s.output("only batches", a.dot_general(d, &[(0, 1), (1, 0), (2, 2)], &[]));
    s.output("outer", a.dot_general(b, &[], &[]));
    let (rows, columns) = (input("rows", &[7, 130]), input("columns", &[130, 65]));
    s.output("matrix", rows.dot_general(columns, &[], &[(1, 0)]));
    s.output("matrix turned", columns.dot_general(rows, &[], &[(0, 1)]));
    s.output("of a transpose", rows.transpose(&[1, 0]).dot_general(columns, &[], &[(0, 0)]));
    s.output(
        "vector",
        rows.slice(0, 2usize, 3usize).reshape(shape![130]).dot_general(columns, &[], &[(0, 0)]),
    );
}

fn integer_dots(s: &Sketch) {
    for from in [DType::I8, DType::U8, DType::I32] {
        let a = s.input(&format!("a {from}"), s.whole(from, &[3, 40], (0, 120)));
        let b = s.input(&format!("b {from}"), s.whole(from, &[40, 5], (0, 120)));
        for to in [DType::I32, DType::I64, from] {
            let op = Op::DotGeneral { batch: vec![], contract: vec![(1, 0)], dtype: to };
            if from == to && to == DType::I32 {
                continue;
            }
            s.output(&format!("{from} to {to}"), apply(s, op, &[a, b]));
        }
    }
}

fn linear(s: &Sketch, x_type: DType, w_type: DType) {
    for (n, k) in [(192, 576), (53, 37), (1, 8), (16, 1)] {
        let x = s.input_as(&format!("x{k}"), shape!["tokens", k], s.normal(x_type, &[7, k]));
        let w = s.normal_weight(&format!("w{n}x{k}"), w_type, &[n, k]);
        let bias = s.normal_weight(&format!("b{n}x{k}"), w_type, &[n]);
        s.output(&format!("{n}x{k}"), x.linear(w, None));
        s.output(&format!("{n}x{k} with a bias"), x.linear(w, Some(bias)));
    }
    let x = s.normal_input("cube", x_type, &[2, 3, 24]);
    let w = s.normal_weight("w cube", w_type, &[10, 24]);
    s.output("cube", x.linear(w, None));
    for tokens in [1, 64] {
        let fresh = |(name, k): (&'static str, usize)| (name, s.normal(x_type, &[tokens, k]));
        s.step([("x576", 576), ("x37", 37), ("x8", 8), ("x1", 1)].map(fresh).to_vec());
    }
}

/// Merged projections: three checkpoint tensors as one matrix, cut apart again afterwards.
fn pieces(s: &Sketch) {
    let x = s.normal_input("x", DType::F32, &[5, 32]);
    let names = ["q", "k", "v"];
    for (name, rows) in names.into_iter().zip([16, 8, 8]) {
        let piece = WeightTensor::from_host(s.normal(DType::F16, &[rows, 32]));
        // Declared once by itself too: two weights may share a piece.
        let own = s.weight(name, piece);
        s.output(name, x.linear(own, None));
    }
    let merged = s.b().weight_pieces("qkv", DType::F16, &[32, 32], names.map(String::from).to_vec());
    let [q, k, v] = x.linear(merged, None).cut_last([16, 8, 8]);
    s.output("merged q", q);
    s.output("merged k", k);
    s.output("merged v", v);
}

pub(super) fn expert_ids(s: &Sketch) -> Tensor<'_> {
    // A token may choose one expert twice, and an expert may be chosen by nobody.
    let ids = [0i32, 3, 2, 0, 3, 3, 0, 2, 2, 3, 0, 0, 3, 2];
    s.input("ids", HostTensor::new(&[7, 2], &ids))
}

fn experts(s: &Sketch, dtype: DType) {
    let w = s.normal_weight("w", dtype, &[4, 24, 40]);
    let bias = s.normal_weight("bias", dtype, &[4, 24]);
    let ids = expert_ids(s);
    let shared = s.normal_input("shared", dtype, &[7, 1, 40]);
    let own = s.normal_input("own", dtype, &[7, 2, 40]);
    s.output("shared", shared.expert_linear(w, ids, None));
    s.output("own", own.expert_linear(w, ids, None));
    s.output("with a bias", own.expert_linear(w, ids, Some(bias)));
}

struct Convolution {
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    strides: &'static [usize],
    padding: &'static [(usize, usize)],
    dilation: &'static [usize],
    groups: usize,
}

const CONVOLUTIONS: [Convolution; 10] = [
    conv("1d", &[2, 6, 15], &[4, 6, 3]),
    Convolution { strides: &[2], padding: &[(1, 1)], ..conv("1d strided", &[1, 20, 50], &[24, 20, 3]) },
    Convolution { dilation: &[3], padding: &[(4, 0)], ..conv("1d dilated", &[2, 6, 15], &[4, 6, 3]) },
    Convolution { groups: 6, padding: &[(3, 0)], ..conv("1d depthwise", &[1, 6, 33], &[6, 1, 4]) },
    Convolution { groups: 3, ..conv("1d grouped", &[2, 6, 15], &[9, 2, 5]) },
    conv("1d pointwise", &[1, 32, 9], &[16, 32, 1]),
    Convolution { padding: &[(1, 1), (1, 1)], ..conv("2d", &[1, 3, 16, 16], &[8, 3, 3, 3]) },
    Convolution {
        strides: &[2, 3],
        padding: &[(1, 0), (2, 1)],
        dilation: &[2, 1],
        ..conv("2d mixed", &[2, 4, 9, 8], &[6, 4, 3, 2])
    },
    Convolution { strides: &[4, 4], ..conv("2d patches", &[1, 3, 16, 16], &[12, 3, 4, 4]) },
    Convolution {
        strides: &[1, 2, 1],
        padding: &[(1, 1), (0, 0), (1, 0)],
        dilation: &[1, 1, 2],
        groups: 2,
        ..conv("3d", &[1, 4, 4, 5, 6], &[6, 2, 2, 3, 2])
    },
];

const fn conv(name: &'static str, x: &'static [usize], w: &'static [usize]) -> Convolution {
    const ONES: &[usize] = &[1, 1, 1];
    const NONE: &[(usize, usize)] = &[(0, 0), (0, 0), (0, 0)];
    let (ones, none) = (ONES.split_at(x.len() - 2).0, NONE.split_at(x.len() - 2).0);
    Convolution { name, x, w, strides: ones, padding: none, dilation: ones, groups: 1 }
}

fn convolutions(t: &mut Table) {
    for c in CONVOLUTIONS {
        t.floats(&format!("conv {}", c.name), |s, dtype| {
            let x = s.normal_input("x", dtype, c.x);
            let w = s.normal_weight("w", dtype, c.w);
            let op = Op::Conv {
                strides: c.strides.to_vec(),
                padding: c.padding.to_vec(),
                dilation: c.dilation.to_vec(),
                groups: c.groups,
            };
            s.output("y", apply(s, op, &[x, w]));
        });
    }
}
