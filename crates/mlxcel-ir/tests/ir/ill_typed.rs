//! Ill-typed uses of the ops: every message names the op, the node, its label and the types.

use mlxcel_ir::*;

const Q4: DType = DType::Quant(QuantFormat::Gguf(GgufFormat::Q4_0));

fn f<'g>(b: &'g Builder, name: &str, shape: Shape) -> Tensor<'g> {
    b.input(name, DType::F32, shape)
}

fn i<'g>(b: &'g Builder, name: &str, shape: Shape) -> Tensor<'g> {
    b.input(name, DType::I32, shape)
}

fn conv<'g>(b: &'g Builder, x: Shape, w: &[usize], groups: usize) -> Tensor<'g> {
    let op = Op::Conv { strides: vec![1], padding: vec![(0, 0)], dilation: vec![1], groups };
    first(b, op, &[f(b, "x", x), b.weight("w", DType::F32, w)])
}

fn rope<'g>(b: &'g Builder, positions: Shape, inv_freq: &[usize]) -> Tensor<'g> {
    let x = f(b, "x", shape!["tokens", 2, 4]);
    let op = Op::Rope { interleaved: false, scale: 1.0 };
    x.rope(i(b, "positions", positions), b.weight("inv_freq", DType::F32, inv_freq), op)
}

fn attention<'g>(b: &'g Builder, [q, k, v]: [Shape; 3]) -> Tensor<'g> {
    let spec =
        AttentionSpec { scale: 1.0, causal: true, window: None, softcap: None, mask: false, sinks: false };
    b.attention([f(b, "q", q), f(b, "k", k), f(b, "v", v)], None, None, spec)
}

fn route<'g>(b: &'g Builder, logits: Shape, top_k: usize) -> Tensor<'g> {
    let score = RouteScore::Softmax;
    let spec = RouteSpec { top_k, score, renormalize: true, scale: 1.0, groups: None, correction: false };
    f(b, "logits", logits).moe_route(spec, None)[0]
}

/// The first result, or an operand when the op is refused, as it is in every case here.
fn first<'g>(b: &'g Builder, op: Op, inputs: &[Tensor<'g>]) -> Tensor<'g> {
    b.apply(op, inputs).first().copied().unwrap_or(inputs[0])
}

/// The first of `results`, if there is one; there is none after an error.
fn any<'g>(b: &'g Builder, results: Vec<Tensor<'g>>) -> Tensor<'g> {
    results.first().copied().unwrap_or_else(|| b.scalar(0.0f32))
}

/// The message of what `build` does below the label `layers.3.mlp`.
fn refusal(build: impl FnOnce(&Builder)) -> String {
    let b = Builder::new();
    b.scope("layers.3", || b.scope("mlp", || build(&b)));
    b.finish().expect_err("an ill-typed graph").to_string()
}

/// Each case is a test: what is built, and the whole message.
macro_rules! refused {
    ($name:ident, |$b:ident| $body:expr, $message:expr) => {
        #[test]
        fn $name() {
            let message = refusal(|$b| {
                let _ = $body;
            });
            assert_eq!(message, $message);
        }
    };
}

refused!(
    operands_of_add_broadcast,
    |b| f(b, "x", shape!["tokens", 4]) + f(b, "y", shape!["tokens", 5]),
    "binary at node %2 (layers.3.mlp): shapes [tokens, 4] and [tokens, 5] do not broadcast; operands: \
     f32[tokens, 4], f32[tokens, 5]"
);
refused!(
    nothing_is_promoted,
    |b| f(b, "x", shape![4]) + i(b, "y", shape![4]),
    "binary at node %2 (layers.3.mlp): element types f32 and i32 differ; operands: f32[4], i32[4]"
);
refused!(
    floats_have_no_bits,
    |b| f(b, "x", shape![4]) & f(b, "y", shape![4]),
    "binary at node %2 (layers.3.mlp): And is not defined for f32; operands: f32[4], f32[4]"
);
refused!(
    integers_have_no_exponential,
    |b| i(b, "x", shape![4]).exp(),
    "unary at node %1 (layers.3.mlp): Exp is not defined for i32; operands: i32[4]"
);
refused!(
    booleans_are_not_added,
    |b| f(b, "x", shape![4]).eq(f(b, "y", shape![4])) + f(b, "x2", shape![4]).eq(f(b, "y2", shape![4])),
    "binary at node %6 (layers.3.mlp): Add is not defined for bool; operands: bool[4], bool[4]"
);
refused!(
    shifts_are_for_integers,
    |b| f(b, "x", shape![4]) << f(b, "y", shape![4]),
    "binary at node %2 (layers.3.mlp): Shl is not defined for f32; operands: f32[4], f32[4]"
);
refused!(
    comparison_needs_one_type,
    |b| f(b, "x", shape![4]).lt(i(b, "y", shape![4])),
    "compare at node %2 (layers.3.mlp): element types f32 and i32 differ; operands: f32[4], i32[4]"
);
refused!(
    select_needs_a_bool,
    |b| i(b, "c", shape![4]).select(f(b, "x", shape![4]), f(b, "y", shape![4])),
    "select at node %3 (layers.3.mlp): the condition is i32, not bool; operands: i32[4], f32[4], f32[4]"
);
refused!(
    select_needs_one_type,
    |b| f(b, "c", shape![4]).eq(f(b, "d", shape![4])).select(f(b, "x", shape![4]), i(b, "y", shape![4])),
    "select at node %5 (layers.3.mlp): element types f32 and i32 differ; operands: bool[4], f32[4], \
     i32[4]"
);
refused!(
    cast_does_not_pack,
    |b| first(b, Op::Cast(Q4), &[f(b, "x", shape![32])]),
    "cast at node %1 (layers.3.mlp): cannot cast to the packed type q4_0; operands: f32[32]"
);
refused!(
    reshape_keeps_the_count,
    |b| f(b, "x", shape!["tokens", 6]).reshape(shape!["tokens", 5]),
    "reshape at node %1 (layers.3.mlp): cannot reshape 6*tokens elements to [tokens, 5]; operands: \
     f32[tokens, 6]"
);
refused!(
    reshape_keeps_the_symbols,
    |b| f(b, "x", shape!["tokens", 6]).reshape(shape!["pages", 6]),
    "reshape at node %1 (layers.3.mlp): cannot reshape 6*tokens elements to [pages, 6]; operands: \
     f32[tokens, 6]"
);
refused!(
    broadcast_only_grows,
    |b| f(b, "x", shape!["tokens", 6]).broadcast(shape![6]),
    "broadcast at node %1 (layers.3.mlp): [tokens, 6] does not broadcast to [6]; operands: f32[tokens, \
     6]"
);
refused!(
    broadcast_fits,
    |b| f(b, "x", shape![5]).broadcast(shape!["tokens", 6]),
    "broadcast at node %1 (layers.3.mlp): shapes [5] and [tokens, 6] do not broadcast; operands: f32[5]"
);
refused!(
    transpose_is_a_permutation,
    |b| f(b, "x", shape!["tokens", 6]).transpose(&[0, 0]),
    "transpose at node %1 (layers.3.mlp): [0, 0] is not a permutation of 2 axes; operands: f32[tokens, \
     6]"
);
refused!(
    slice_has_an_axis,
    |b| f(b, "x", shape![6]).slice(1, 0, 2),
    "slice at node %1 (layers.3.mlp): axis 1 is out of range for f32[6]; operands: f32[6]"
);
refused!(
    slice_ends_inside,
    |b| f(b, "x", shape!["tokens", 6]).slice(1, 0, 7),
    "slice at node %1 (layers.3.mlp): end 7 is beyond the axis of 6; operands: f32[tokens, 6]"
);
refused!(
    slice_runs_forward,
    |b| f(b, "x", shape!["tokens", 6]).slice(1, 4, 2),
    "slice at node %1 (layers.3.mlp): start 4 is after end 2; operands: f32[tokens, 6]"
);
refused!(
    steps_are_positive,
    |b| f(b, "x", shape![6]).slice_step(0, 0, 6, 0),
    "slice at node %1 (layers.3.mlp): a step of zero; operands: f32[6]"
);
refused!(
    concat_agrees_elsewhere,
    |b| b.concat(&[f(b, "x", shape!["tokens", 4]), f(b, "y", shape!["tokens", 5])], 0),
    "concat at node %2 (layers.3.mlp): an operand has shape [tokens, 5], expected [tokens, 4]; \
     operands: f32[tokens, 4], f32[tokens, 5]"
);
refused!(
    concat_agrees_in_type,
    |b| b.concat(&[f(b, "x", shape![4]), i(b, "y", shape![4])], 0),
    "concat at node %2 (layers.3.mlp): element types f32 and i32 differ; operands: f32[4], i32[4]"
);
refused!(
    concat_takes_something,
    |b| b.concat(&[], 0),
    "concat at node %0 (layers.3.mlp): takes at least one operand; operands: "
);
refused!(
    packed_weights_join_along_rows_only,
    |b| b.concat(&[b.weight("a", Q4, &[2, 32]), b.weight("b", Q4, &[2, 32])], 1),
    "concat at node %2 (layers.3.mlp): does not take packed operands such as q4_0[2, 32]; operands: \
     q4_0[2, 32], q4_0[2, 32]"
);
refused!(
    padding_is_a_scalar,
    |b| f(b, "x", shape![4]).pad(&[1], &[1], f(b, "y", shape![1])),
    "pad at node %2 (layers.3.mlp): the padding value has rank 1, expected 0; operands: f32[4], f32[1]"
);
refused!(
    padding_has_every_axis,
    |b| f(b, "x", shape![4, 4]).pad(&[1], &[1], f(b, "y", shape![])),
    "pad at node %2 (layers.3.mlp): one low and one high per axis; operands: f32[4, 4], f32[]"
);
refused!(
    dynamic_slice_fits,
    |b| f(b, "x", shape!["tokens", 4]).dynamic_slice(i(b, "s", shape![2]), shape![1, 5]),
    "dynamic_slice at node %2 (layers.3.mlp): [1, 5] does not fit in [tokens, 4]; operands: f32[tokens, \
     4], i32[2]"
);
refused!(
    dynamic_slice_starts_at_every_axis,
    |b| f(b, "x", shape!["tokens", 4]).dynamic_slice(i(b, "s", shape![1]), shape![1, 4]),
    "dynamic_slice at node %2 (layers.3.mlp): starts has shape [1], expected [2]; operands: f32[tokens, \
     4], i32[1]"
);
refused!(
    update_slice_fits,
    |b| f(b, "x", shape!["tokens", 4]).update_slice(f(b, "u", shape![1, 5]), i(b, "s", shape![2])),
    "update_slice at node %3 (layers.3.mlp): [1, 5] does not fit in [tokens, 4]; operands: f32[tokens, \
     4], f32[1, 5], i32[2]"
);
refused!(
    gather_needs_integers,
    |b| f(b, "x", shape![4]).gather(f(b, "i", shape![2]), 0),
    "gather at node %2 (layers.3.mlp): the index is f32, expected integers; operands: f32[4], f32[2]"
);
refused!(
    gather_has_an_axis,
    |b| f(b, "x", shape![4]).gather(i(b, "i", shape![2]), 1),
    "gather at node %2 (layers.3.mlp): axis 1 is out of range for f32[4]; operands: f32[4], i32[2]"
);
refused!(
    take_along_has_the_same_rows,
    |b| f(b, "x", shape![3, 4]).take_along(i(b, "i", shape![2, 1]), 1),
    "take_along at node %2 (layers.3.mlp): the index has shape [2, 1], expected [3, 1]; operands: \
     f32[3, 4], i32[2, 1]"
);
refused!(
    scatter_updates_whole_rows,
    |b| f(b, "x", shape![9, 4]).scatter(i(b, "i", shape![2]), f(b, "u", shape![2, 5]), ScatterMode::Set),
    "scatter at node %3 (layers.3.mlp): the update has shape [2, 5], expected [2, 4]; operands: f32[9, \
     4], i32[2], f32[2, 5]"
);
refused!(
    scatter_updates_as_many_as_indices,
    |b| f(b, "x", shape![9, 4]).scatter(
        i(b, "i", shape!["tokens"]),
        f(b, "u", shape![2, 4]),
        ScatterMode::Add
    ),
    "scatter at node %3 (layers.3.mlp): the update has shape [2, 4], expected [tokens, 4]; operands: \
     f32[9, 4], i32[tokens], f32[2, 4]"
);
refused!(
    reduce_has_an_axis,
    |b| f(b, "x", shape![3, 4]).reduce(ReduceOp::Sum, &[2]),
    "reduce at node %1 (layers.3.mlp): axis 2 is out of range for f32[3, 4]; operands: f32[3, 4]"
);
refused!(
    booleans_are_not_reduced,
    |b| f(b, "x", shape![4]).eq(f(b, "y", shape![4])).reduce(ReduceOp::Sum, &[0]),
    "reduce at node %3 (layers.3.mlp): bool cannot be reduced; operands: bool[4]"
);
refused!(
    cumulative_has_an_axis,
    |b| f(b, "x", shape![4]).cumulative(ReduceOp::Sum, 1),
    "cumulative at node %1 (layers.3.mlp): axis 1 is out of range for f32[4]; operands: f32[4]"
);
refused!(
    contracted_axes_agree,
    |b| f(b, "x", shape!["tokens", 4]).dot_general(f(b, "y", shape![5, 6]), &[], &[(1, 0)]),
    "dot_general at node %2 (layers.3.mlp): axis 1 of [tokens, 4] and axis 0 of [5, 6] differ; \
     operands: f32[tokens, 4], f32[5, 6]"
);
refused!(
    axes_are_contracted_once,
    |b| f(b, "x", shape![4, 4]).dot_general(f(b, "y", shape![4, 4]), &[(0, 0)], &[(0, 1)]),
    "dot_general at node %2 (layers.3.mlp): an axis is used twice; operands: f32[4, 4], f32[4, 4]"
);
refused!(
    conv_channels_agree,
    |b| conv(b, shape![1, 6, 9], &[4, 2, 3], 2),
    "conv at node %2 (layers.3.mlp): 4 channels expected, not 6; operands: f32[1, 6, 9], f32[4, 2, 3]"
);
refused!(
    conv_kernels_fit,
    |b| conv(b, shape![1, 4, 2], &[4, 2, 3], 2),
    "conv at node %2 (layers.3.mlp): a window of 3 does not fit an axis of 2; operands: f32[1, 4, 2], \
     f32[4, 2, 3]"
);
refused!(
    conv_groups_divide,
    |b| conv(b, shape![1, 4, 9], &[3, 2, 3], 2),
    "conv at node %2 (layers.3.mlp): 2 groups do not divide the outputs; operands: f32[1, 4, 9], f32[3, \
     2, 3]"
);
refused!(
    dequantize_needs_packed,
    |b| first(b, Op::Dequantize { dtype: DType::F32 }, &[f(b, "x", shape![32])]),
    "dequantize at node %1 (layers.3.mlp): f32 is not packed; operands: f32[32]"
);
refused!(
    packed_weights_do_not_add,
    |b| b.weight("a", Q4, &[2, 32]) + b.weight("b", Q4, &[2, 32]),
    "binary at node %2 (layers.3.mlp): does not take packed operands such as q4_0[2, 32]; operands: \
     q4_0[2, 32], q4_0[2, 32]"
);
refused!(
    states_are_plain,
    |b| b.state("x", Q4, shape!["tokens", 32]),
    "state at node %0 (layers.3.mlp): states are not packed; operands: "
);
refused!(
    softmax_is_for_floats,
    |b| i(b, "x", shape![4]).softmax(0),
    "softmax at node %1 (layers.3.mlp): the operand is i32, expected floats; operands: i32[4]"
);
refused!(
    softmax_has_an_axis,
    |b| f(b, "x", shape!["tokens", 4]).softmax(2),
    "softmax at node %1 (layers.3.mlp): axis 2 is out of range for f32[tokens, 4]; operands: \
     f32[tokens, 4]"
);
refused!(
    norm_weights_fit,
    |b| f(b, "x", shape!["tokens", 4]).rms_norm(1e-6, Some(b.weight("w", DType::F32, &[5]))),
    "rms_norm at node %2 (layers.3.mlp): a parameter has shape [5], expected [4]; operands: f32[tokens, \
     4], f32[5]"
);
refused!(
    norms_have_an_axis,
    |b| f(b, "x", shape![]).rms_norm(1e-6, None),
    "rms_norm at node %1 (layers.3.mlp): axis 0 is out of range for f32[]; operands: f32[]"
);
refused!(
    layer_norm_biases_fit,
    |b| f(b, "x", shape!["tokens", 4]).layer_norm(
        1e-6,
        Some(b.weight("w", DType::F32, &[4])),
        Some(b.weight("b", DType::F32, &[5]))
    ),
    "layer_norm at node %3 (layers.3.mlp): a parameter has shape [5], expected [4]; operands: \
     f32[tokens, 4], f32[4], f32[5]"
);
refused!(
    residuals_have_the_shape,
    |b| first(
        b,
        Op::AddRmsNorm { eps: 1e-6 },
        &[f(b, "x", shape!["tokens", 4]), f(b, "r", shape![4]), b.weight("w", DType::F32, &[4])]
    ),
    "add_rms_norm at node %3 (layers.3.mlp): the residual has shape [4], expected [tokens, 4]; \
     operands: f32[tokens, 4], f32[4], f32[4]"
);
refused!(
    groups_divide_channels,
    |b| f(b, "x", shape![1, 6, 4]).group_norm(
        4,
        1e-6,
        b.weight("w", DType::F32, &[6]),
        b.weight("b", DType::F32, &[6])
    ),
    "group_norm at node %3 (layers.3.mlp): 4 groups do not divide 6 channels; operands: f32[1, 6, 4], \
     f32[6], f32[6]"
);
refused!(
    attributes_are_finite,
    |b| f(b, "x", shape!["tokens", 4]).rms_norm(f64::NAN, None),
    "rms_norm at node %1 (layers.3.mlp): an attribute is not a finite number; operands: f32[tokens, 4]"
);
refused!(
    rope_has_a_position_for_each_token,
    |b| rope(b, shape!["pages"], &[2]),
    "rope at node %3 (layers.3.mlp): positions has shape [pages], expected [tokens]; operands: \
     f32[tokens, 2, 4], i32[pages], f32[2]"
);
refused!(
    rope_rotates_what_is_there,
    |b| rope(b, shape!["tokens"], &[3]),
    "rope at node %3 (layers.3.mlp): rotates 6 of 4 elements; operands: f32[tokens, 2, 4], i32[tokens], \
     f32[3]"
);
refused!(
    attention_keys_fit,
    |b| attention(b, [shape![1, 5, 4, 8], shape![1, 7, 2, 9], shape![1, 7, 2, 8]]),
    "attention at node %3 (layers.3.mlp): q and k do not fit; operands: f32[1, 5, 4, 8], f32[1, 7, 2, \
     9], f32[1, 7, 2, 8]"
);
refused!(
    attention_values_fit,
    |b| attention(b, [shape![1, 5, 4, 8], shape![1, 7, 2, 8], shape![1, 6, 2, 8]]),
    "attention at node %3 (layers.3.mlp): v has shape [1, 6, 2, 8], expected [1, 7, 2, 8]; operands: \
     f32[1, 5, 4, 8], f32[1, 7, 2, 8], f32[1, 6, 2, 8]"
);
refused!(
    attention_heads_share_evenly,
    |b| attention(b, [shape![1, 5, 4, 8], shape![1, 7, 3, 8], shape![1, 7, 3, 8]]),
    "attention at node %3 (layers.3.mlp): 4 query heads do not share 3 key heads evenly; operands: \
     f32[1, 5, 4, 8], f32[1, 7, 3, 8], f32[1, 7, 3, 8]"
);
refused!(
    linear_features_fit,
    |b| f(b, "x", shape!["tokens", 4]).linear(b.weight("w", DType::F32, &[8, 5]), None),
    "linear at node %2 (layers.3.mlp): x has 4 features but the weight takes 5; operands: f32[tokens, \
     4], f32[8, 5]"
);
refused!(
    linear_biases_fit,
    |b| f(b, "x", shape!["tokens", 4])
        .linear(b.weight("w", DType::F32, &[8, 4]), Some(b.weight("b", DType::F32, &[4]))),
    "linear at node %3 (layers.3.mlp): the bias has shape [4], expected [8]; operands: f32[tokens, 4], \
     f32[8, 4], f32[4]"
);
refused!(
    embedding_ids_are_integers,
    |b| b.weight("w", DType::F32, &[8, 4]).embedding(f(b, "ids", shape!["tokens"]), DType::F32),
    "embedding at node %2 (layers.3.mlp): ids is f32, expected integers; operands: f32[8, 4], \
     f32[tokens]"
);
refused!(
    expert_features_fit,
    |b| f(b, "x", shape!["tokens", 1, 4]).expert_linear(
        b.weight("w", DType::F32, &[8, 6, 5]),
        i(b, "ids", shape!["tokens", 2]),
        None
    ),
    "expert_linear at node %3 (layers.3.mlp): x and the weight differ in features; operands: \
     f32[tokens, 1, 4], f32[8, 6, 5], i32[tokens, 2]"
);
refused!(
    experts_are_chosen_for_each_token,
    |b| f(b, "x", shape!["tokens", 3, 4]).expert_linear(
        b.weight("w", DType::F32, &[8, 6, 4]),
        i(b, "ids", shape!["tokens", 2]),
        None
    ),
    "expert_linear at node %3 (layers.3.mlp): x and ids do not fit; operands: f32[tokens, 3, 4], f32[8, \
     6, 4], i32[tokens, 2]"
);
refused!(
    routes_choose_among_the_experts,
    |b| route(b, shape!["tokens", 4], 5),
    "moe_route at node %1 (layers.3.mlp): top 5 of 4 experts; operands: f32[tokens, 4]"
);
refused!(
    routes_need_a_fixed_number_of_experts,
    |b| route(b, shape![4, "tokens"], 2),
    "moe_route at node %1 (layers.3.mlp): the number of experts must be fixed; operands: f32[4, tokens]"
);
refused!(
    top_k_fits,
    |b| f(b, "x", shape!["tokens", 4]).top_k(5)[0],
    "top_k at node %1 (layers.3.mlp): top 5 of 4; operands: f32[tokens, 4]"
);
refused!(
    argmax_has_an_axis,
    |b| f(b, "x", shape![4]).argmax(1),
    "arg_max at node %1 (layers.3.mlp): axis 1 is out of range for f32[4]; operands: f32[4]"
);
refused!(
    pool_windows_fit,
    |b| f(b, "x", shape![1, 2, 3]).pool(PoolKind::Max, &[4], &[1], &[(0, 0)]),
    "pool at node %1 (layers.3.mlp): a window of 4 does not fit an axis of 3; operands: f32[1, 2, 3]"
);
refused!(
    pool_padding_stays_in_the_window,
    |b| f(b, "x", shape![1, 2, 3]).pool(PoolKind::Max, &[2], &[1], &[(2, 0)]),
    "pool at node %1 (layers.3.mlp): padding 2,0 reaches past the window 2; operands: f32[1, 2, 3]"
);
refused!(
    transforms_have_two_parts_of_one_shape,
    |b| f(b, "x", shape!["tokens", 8]).fft(f(b, "y", shape!["tokens", 4]))[0],
    "fft at node %2 (layers.3.mlp): the imaginary part has shape [tokens, 4], expected [tokens, 8]; \
     operands: f32[tokens, 8], f32[tokens, 4]"
);
refused!(
    transforms_are_of_a_fixed_length,
    |b| f(b, "x", shape![8, "tokens"]).rfft()[0],
    "rfft at node %1 (layers.3.mlp): the transformed axis must be fixed and not empty; operands: f32[8, \
     tokens]"
);
refused!(
    inverse_transforms_fit,
    |b| f(b, "x", shape![5]).irfft(f(b, "y", shape![5]), 12),
    "irfft at node %2 (layers.3.mlp): 5 frequencies do not give 12 numbers; operands: f32[5], f32[5]"
);
refused!(
    conditions_are_scalar,
    |b| any(
        b,
        b.if_else(
            f(b, "x", shape![4]).eq(f(b, "y", shape![4])),
            &[],
            |b, _| vec![b.scalar(1.0)],
            |b, _| vec![b.scalar(1.0)]
        )
    ),
    "if at node %3 (layers.3.mlp): the condition is bool[4], expected bool[]; operands: bool[4]"
);
refused!(
    branches_agree,
    |b| any(
        b,
        b.if_else(b.scalar(true), &[f(b, "x", shape![4])], |_, x| vec![x[0]], |b, _| vec![b.scalar(1.0f32)])
    ),
    "if at node %2 (layers.3.mlp): the branches give [f32[4]] and [f32[]]; operands: bool[], f32[4]"
);
refused!(
    carried_values_keep_their_type,
    |b| any(
        b,
        b.while_loop(&[f(b, "x", shape![4])], &[], |b, _| b.scalar(true), |b, _| vec![b.scalar(1.0f32)])
    ),
    "while at node %1 (layers.3.mlp): carried values change from [f32[4]] to [f32[]]; operands: f32[4]"
);
refused!(
    loop_conditions_are_bool,
    |b| any(b, b.while_loop(&[f(b, "x", shape![4])], &[], |_, x| x[0], |_, x| vec![x[0]])),
    "while at node %1 (layers.3.mlp): the condition is f32[4], expected bool[]; operands: f32[4]"
);
refused!(
    scanned_axes_agree,
    |b| any(
        b,
        b.scan(&[], &[f(b, "x", shape!["tokens", 4]), f(b, "y", shape!["pages", 4])], &[], |_, x| x.to_vec())
    ),
    "scan at node %2 (layers.3.mlp): scanned axes differ: tokens and f32[pages, 4]; operands: \
     f32[tokens, 4], f32[pages, 4]"
);
refused!(
    errors_inside_a_region_are_found,
    |b| any(
        b,
        b.if_else(
            b.scalar(true),
            &[f(b, "x", shape![4]), f(b, "y", shape![5])],
            |_, x| vec![x[0] + x[1]],
            |_, x| vec![x[0]]
        )
    ),
    "in a region of if at node %3 (layers.3.mlp): binary at node %2: shapes [4] and [5] do not \
     broadcast; operands: f32[4], f32[5]"
);
