//! Products, convolutions and packed matrices.

use mlxcel_ir::{DType, GgufFormat, HostTensor, Op, QuantFormat, ScaleType, Tensor, shape};

use super::{Build, Golden};

pub(super) const CASES: &[(&str, Build)] = &[
    ("dots", dots),
    ("integer_dots", |g| g.y("y", dot_as(g, DType::I32))),
    ("half_dots", half_dots),
    ("convolutions_1d", convolutions_1d),
    ("convolutions_2d", convolutions_2d),
    ("convolution_3d", convolution_3d),
    ("linears", linears),
    ("embeddings", embeddings),
    ("expert_linears", expert_linears),
    ("affine_2_bit", |g| affine(g, 2, 32, ScaleType::F16)),
    ("affine_3_bit", |g| affine(g, 3, 64, ScaleType::BF16)),
    ("affine_4_bit", |g| affine(g, 4, 64, ScaleType::BF16)),
    ("affine_5_bit", |g| affine(g, 5, 128, ScaleType::F32)),
    ("affine_6_bit", |g| affine(g, 6, 32, ScaleType::F16)),
    ("affine_8_bit", |g| affine(g, 8, 64, ScaleType::F32)),
    ("microscaling_4_bit", |g| products(g, QuantFormat::MxFp4, 128)),
    ("gguf_q4_0", |g| products(g, QuantFormat::Gguf(GgufFormat::Q4_0), 256)),
    ("gguf_q4_1", |g| products(g, QuantFormat::Gguf(GgufFormat::Q4_1), 256)),
    ("gguf_q8_0", |g| products(g, QuantFormat::Gguf(GgufFormat::Q8_0), 256)),
    ("gguf_q4_k", |g| products(g, QuantFormat::Gguf(GgufFormat::Q4K), 256)),
    ("gguf_q6_k", |g| products(g, QuantFormat::Gguf(GgufFormat::Q6K), 256)),
];

fn dots(g: &Golden<'_>) {
    let (a, b, d) = (g.x("a"), g.x("b"), g.x("d"));
    g.y("matmul", a.dot_general(b, &[], &[(2, 0)]));
    g.y("batched", a.dot_general(b, &[(0, 1)], &[(2, 0)]));
    g.y("two_contracted", a.dot_general(d, &[], &[(1, 0), (2, 2), (0, 1)]).unsqueeze(0));
    g.y("batch_and_two", a.dot_general(d, &[(1, 0)], &[(2, 2), (0, 1)]));
    g.y("crossed_batch", a.dot_general(d, &[(2, 2), (1, 0), (0, 1)], &[]));
    let corner = a.slice(0, 0usize, 1usize).slice(1, 0usize, 2usize).slice(2, 0usize, 2usize);
    let other = b.slice(0, 0usize, 2usize).slice(1, 0usize, 1usize).slice(2, 0usize, 3usize);
    g.y("outer", corner.dot_general(other, &[], &[]));
}

fn dot_as<'g>(g: &'g Golden<'_>, dtype: DType) -> Tensor<'g> {
    dot_of(g, [g.x("a"), g.x("b")], dtype)
}

fn dot_of<'g>(g: &'g Golden<'_>, ab: [Tensor<'g>; 2], dtype: DType) -> Tensor<'g> {
    let op = Op::DotGeneral { batch: vec![], contract: vec![(1, 0)], dtype };
    g.sketch.b().apply(op, &ab)[0]
}

fn half_dots(g: &Golden<'_>) {
    let ab = [g.x("a"), g.x("b")];
    g.y("y", dot_of(g, ab, DType::F16));
    g.y("wide", dot_of(g, ab, DType::F32));
    // Sums are rounded once, at the end.
    g.sketch.slacken(0.5);
}

/// Strides, padding and dilation of one convolution.
type Windowing<'a> = (&'a [usize], &'a [(usize, usize)], &'a [usize]);

fn conv<'g>(x: Tensor<'g>, w: Tensor<'g>, windowing: Windowing<'_>, groups: usize) -> Tensor<'g> {
    let (strides, padding, dilation) = windowing;
    let (strides, padding, dilation) = (strides.to_vec(), padding.to_vec(), dilation.to_vec());
    x.builder().apply(Op::Conv { strides, padding, dilation, groups }, &[x, w])[0]
}

fn convolutions_1d(g: &Golden<'_>) {
    let (x, w) = (g.x("x"), g.w("w"));
    g.y("plain", conv(x, w, (&[1], &[(0, 0)], &[1]), 1));
    g.y("strided", conv(x, w, (&[2], &[(1, 1)], &[1]), 1));
    g.y("dilated", conv(x, w, (&[1], &[(2, 2)], &[3]), 1));
    g.y("grouped", conv(x, g.w("grouped"), (&[1], &[(0, 0)], &[1]), 3));
    g.y("causal", conv(x, g.w("depthwise"), (&[1], &[(4, 0)], &[1]), 6));
}

fn convolutions_2d(g: &Golden<'_>) {
    let (x, w) = (g.x("x"), g.w("w"));
    g.y("plain", conv(x, w, (&[1, 1], &[(0, 0), (0, 0)], &[1, 1]), 1));
    g.y("mixed", conv(x, w, (&[2, 3], &[(1, 1), (2, 2)], &[2, 1]), 1));
    g.y("grouped", conv(x, g.w("grouped"), (&[1, 1], &[(1, 1), (1, 1)], &[1, 1]), 2));
    g.y("lopsided", conv(x, w, (&[2, 2], &[(0, 3), (1, 2)], &[1, 1]), 1));
}

fn convolution_3d(g: &Golden<'_>) {
    let windowing: Windowing<'_> = (&[1, 1, 2], &[(1, 1), (0, 0), (1, 1)], &[1, 1, 1]);
    g.y("y", conv(g.x("x"), g.w("w"), windowing, 1));
}

fn linears(g: &Golden<'_>) {
    let (x, bias) = (g.x("x"), g.w("bias"));
    for name in ["f32", "f16", "bf16"] {
        let w = g.w(&format!("w_{name}"));
        g.y(&format!("y_{name}"), x.linear(w, Some(bias)));
        if name == "bf16" {
            g.y("bare", x.linear(w, None));
        }
    }
}

fn embeddings(g: &Golden<'_>) {
    let (table, ids) = (g.w("table"), g.x("ids"));
    g.y("f32", table.embedding(ids, DType::F32));
    g.y("bf16", table.embedding(ids, DType::BF16));
    g.sketch.exact();
}

fn expert_linears(g: &Golden<'_>) {
    let (w, bias, ids) = (g.w("w"), g.w("bias"), g.x("ids"));
    g.y("shared", g.x("shared").expert_linear(w, ids, None));
    g.y("own", g.x("own").expert_linear(w, ids, Some(bias)));
}

fn affine(g: &Golden<'_>, bits: u8, group: u16, scale: ScaleType) {
    products(g, QuantFormat::Affine { bits, group, scale }, 128);
}

fn products(g: &Golden<'_>, format: QuantFormat, cols: usize) {
    let x = g.x("x");
    let w = g.packed("matrix", DType::Quant(format), &[12, cols]);
    g.y("linear", x.linear(w, None));
    let rows = g.sketch.b().constant(HostTensor::new(&[3], &[11i32, 0, 5]));
    g.y("rows", w.embedding(rows, DType::F32));
    let experts = g.packed("experts", DType::Quant(format), &[4, 3, cols]);
    let ids = g.sketch.b().constant(HostTensor::new(&[3, 2], &[0i32, 3, 2, 1, 3, 3]));
    g.y("experts", x.reshape(shape![3, 1, cols]).expert_linear(experts, ids, None));
}
