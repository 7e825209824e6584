//! Matrices in packed formats, in the four ops that read them.

use mlxcel_ir::{DType, QuantFormat, ScaleType, shape};

use super::contraction::expert_ids;
use super::{Sketch, Table};
use crate::ops::packed;

const AFFINE: DType = DType::Quant(QuantFormat::Affine { bits: 4, group: 64, scale: ScaleType::BF16 });
const LARGE: DType = DType::Quant(QuantFormat::Affine { bits: 4, group: 128, scale: ScaleType::F16 });

pub(super) fn add(t: &mut Table) {
    for (format, cols) in packed::formats() {
        t.case(&format!("linear by {format}"), |s| linear(s, format, cols, DType::F32));
    }
    t.case("packed weights joined along the first axis", |s| {
        let x = s.normal_input("x", DType::F32, &[3, 64]);
        let parts = [("a", 5), ("b", 9)].map(|(name, rows)| packed_weight(s, name, AFFINE, &[rows, 64]));
        s.output("y", x.linear(s.b().concat(&parts, 0), None));
        let names = ["a", "b"].map(String::from).to_vec();
        let pieces = s.b().weight_pieces("ab", AFFINE, &[14, 64], names);
        s.output("pieces", x.linear(pieces, None));
    });
    t.case("a packed layer at a model's width", |s| {
        let x = s.input_as("x", shape!["tokens", 576], s.normal(DType::F32, &[7, 576]));
        let w = packed_weight(s, "w", AFFINE, &[1536, 576]);
        s.output("y", x.linear(w, None));
        s.step(vec![("x", s.normal(DType::F32, &[1, 576]))]);
        s.step(vec![("x", s.normal(DType::F32, &[64, 576]))]);
    });
}

pub(super) fn add_halves(t: &mut Table) {
    for x in [DType::F16, DType::BF16] {
        t.case(&format!("linear {x} by {AFFINE}"), |s| linear(s, AFFINE, 576, x));
        t.case(&format!("linear {x} by {LARGE}"), |s| linear(s, LARGE, 384, x));
        for (format, cols) in
            packed::formats().into_iter().filter(|(f, _)| matches!(f, DType::Quant(QuantFormat::Gguf(_))))
        {
            t.case(&format!("linear {x} by {format}"), |s| linear(s, format, cols, x));
        }
    }
}

pub(super) fn add_rows(t: &mut Table) {
    for (format, cols) in packed::formats() {
        t.case(&format!("rows of {format}"), |s| {
            let w = packed_weight(s, "w", format, &[37, cols]);
            let ids = s.input("ids", s.whole(DType::I32, &[5], (0, 37)));
            s.output("embedding", w.embedding(ids, DType::F32));
            s.output("embedding bf16", w.embedding(ids, DType::BF16));
            s.output("dequantize", w.dequantize(DType::F32));
            s.output("dequantize f16", w.dequantize(DType::F16));
        });
        t.case(&format!("experts of {format}"), |s| experts(s, format, cols));
    }
}

fn packed_weight<'g>(s: &'g Sketch, name: &str, format: DType, shape: &[usize]) -> mlxcel_ir::Tensor<'g> {
    s.weight(name, s.random(|r| packed::weight(r, format, shape)))
}

fn linear(s: &Sketch, format: DType, cols: usize, x_type: DType) {
    let x = s.input_as("x", shape!["tokens", cols], s.normal(x_type, &[7, cols]));
    let w = packed_weight(s, "w", format, &[37, cols]);
    let bias = s.normal_weight("bias", DType::F32, &[37]);
    s.output("plain", x.linear(w, None));
    s.output("with a bias", x.linear(w, Some(bias)));
    s.step(vec![("x", s.normal(x_type, &[1, cols]))]);
    s.step(vec![("x", s.normal(x_type, &[33, cols]))]);
}

fn experts(s: &Sketch, format: DType, cols: usize) {
    let w = packed_weight(s, "w", format, &[4, 11, cols]);
    let bias = s.normal_weight("bias", DType::F32, &[4, 11]);
    let ids = expert_ids(s);
    let shared = s.normal_input("shared", DType::F32, &[7, 1, cols]);
    let own = s.normal_input("own", DType::F32, &[7, 2, cols]);
    s.output("shared", shared.expert_linear(w, ids, None));
    s.output("own with a bias", own.expert_linear(w, ids, Some(bias)));
}
