//! Ops that move and index elements: all exact, in element types of every width.

use mlxcel_ir::{DType, Dim, HostTensor, ScatterMode, shape};

use super::{Sketch, Table};

const WIDTHS: [DType; 7] =
    [DType::Bool, DType::I8, DType::F16, DType::BF16, DType::I32, DType::F32, DType::I64];

pub(super) fn add(t: &mut Table) {
    for dtype in WIDTHS {
        t.case(&format!("shapes {dtype}"), |s| shapes(s, dtype));
        t.case(&format!("joining and cutting {dtype}"), |s| joining(s, dtype));
        t.case(&format!("indexing {dtype}"), |s| indexing(s, dtype));
    }
    for dtype in [DType::F32, DType::F16, DType::I32, DType::U8] {
        t.case(&format!("scatter {dtype}"), |s| scatter(s, dtype));
    }
    t.case("dynamic slices are clamped", dynamic);
    t.case("symbolic axes", symbolic);
    t.case("a rotation by transposes at a model's shape", |s| {
        s.exact();
        let x = s.input_as("x", shape!["tokens", 576], s.normal(DType::BF16, &[64, 576]));
        let heads = x.split_last(9, 64).transpose(&[1, 0, 2]);
        s.output("heads", heads);
        s.output("turned", heads.transpose(&[2, 1, 0]));
        s.step(vec![("x", s.normal(DType::BF16, &[1, 576]))]);
    });
    t.case("rows taken from a table", |s| {
        s.exact();
        let x = s.normal_input("x", DType::F32, &[64, 576]);
        let rows = s.input_as("rows", shape!["rows"], HostTensor::new(&[3], &[63i32, 0, 17]));
        s.output("y", x.gather(rows, 0));
        s.step(vec![("rows", HostTensor::new(&[0], &[] as &[i32]))]);
        s.step(vec![("rows", HostTensor::new(&[1], &[5i32]))]);
    });
}

/// Small whole numbers that every type holds.
fn numbers(s: &Sketch, dtype: DType, shape: &[usize]) -> HostTensor {
    s.whole(dtype, shape, if dtype == DType::Bool { (0, 2) } else { (0, 100) })
}

fn shapes(s: &Sketch, dtype: DType) {
    s.exact();
    let x = s.input("x", numbers(s, dtype, &[2, 3, 4, 5]));
    s.output("reshape", x.reshape(shape![6, 20]));
    s.output("flat", x.reshape(shape![120]));
    s.output("unsqueeze", x.unsqueeze(2));
    s.output("transpose", x.transpose(&[3, 1, 0, 2]));
    s.output("swap", x.transpose(&[0, 1, 3, 2]));
    s.output("reshaped transpose", x.transpose(&[2, 0, 3, 1]).reshape(shape![8, 15]));
    let row = s.input("row", numbers(s, dtype, &[3, 1, 5]));
    s.output("broadcast", row.broadcast(shape![2, 3, 4, 5]));
    let scalar = s.input("scalar", numbers(s, dtype, &[]));
    s.output("scalar", scalar.broadcast(shape![3, 7]));
    s.output("broadcast transpose", row.broadcast(shape![2, 3, 4, 5]).transpose(&[1, 3, 2, 0]));
    s.output("same", x);
}

fn joining(s: &Sketch, dtype: DType) {
    s.exact();
    let x = s.input("x", numbers(s, dtype, &[4, 6, 5]));
    let y = s.input("y", numbers(s, dtype, &[4, 1, 5]));
    s.output("slice", x.slice(1, 2usize, 5usize));
    s.output("slice of slice", x.slice(0, 1usize, 4usize).slice(2, 1usize, 3usize));
    s.output("step", x.slice_step(1, 1, 6, 2));
    s.output("step of last", x.slice_step(2, 0, 5, 3));
    s.output("empty", x.slice(1, 3usize, 3usize));
    s.output("concat", s.b().concat(&[x, y, x.slice(1, 0usize, 2usize)], 1));
    s.output("concat first", s.b().concat(&[x, x.slice(0, 2usize, 4usize)], 0));
    s.output("concat last", s.b().concat(&[x.slice(2, 4usize, 5usize), x], 2));
    s.output("concat one", s.b().concat(&[x], 2));
    let value = s.input("value", numbers(s, dtype, &[]));
    s.output("pad", x.pad(&[1, 0, 2], &[0, 3, 1], value));
    s.output("pad nothing", x.pad(&[0, 0, 0], &[0, 0, 0], value));
    s.output("pad transpose", x.transpose(&[2, 0, 1]).pad(&[0, 1, 0], &[2, 0, 1], value));
}

fn indexing(s: &Sketch, dtype: DType) {
    s.exact();
    let x = s.input("x", numbers(s, dtype, &[4, 6, 5]));
    // Some out of range on either side, which are clamped.
    let index = s.input("index", s.whole(DType::I32, &[2, 3], (-3, 9)));
    (0..3).for_each(|axis| s.output(&format!("gather {axis}"), x.gather(index, axis)));
    let one = s.input("one", HostTensor::scalar(2i32));
    s.output("gather scalar", x.gather(one, 1));
    let wide = s.input("wide", s.whole(DType::I64, &[7], (-3, 9)));
    s.output("gather i64", x.gather(wide, 0));
    let unsigned = s.input("unsigned", s.whole(DType::U32, &[7], (0, 9)));
    s.output("gather u32", x.gather(unsigned, 2));
    for (axis, shape) in [[9, 6, 5], [4, 2, 5], [4, 6, 8]].iter().enumerate() {
        let along = s.input(&format!("along {axis}"), s.whole(DType::I32, shape, (-2, 8)));
        s.output(&format!("take along {axis}"), x.take_along(along, axis));
    }
}

fn scatter(s: &Sketch, dtype: DType) {
    s.exact();
    let x = s.input("x", numbers(s, dtype, &[8, 3, 2]));
    // Duplicates, nowhere (-1) and beyond the end.
    let index = s.input("index", HostTensor::new(&[7], &[3i32, -1, 0, 3, 8, 7, 3]));
    let updates = s.input("updates", numbers(s, dtype, &[7, 3, 2]));
    s.output("set", x.scatter(index, updates, ScatterMode::Set));
    s.output("add", x.scatter(index, updates, ScatterMode::Add));
    let line = s.input("line", numbers(s, dtype, &[6]));
    let few = s.input("few", HostTensor::new(&[3], &[5i64, 5, -7]));
    let values = s.input("values", numbers(s, dtype, &[3]));
    s.output("line set", line.scatter(few, values, ScatterMode::Set));
    s.output("line add", line.scatter(few, values, ScatterMode::Add));
}

fn dynamic(s: &Sketch) {
    s.exact();
    let x = s.normal_input("x", DType::F32, &[6, 7, 3]);
    let update = s.normal_input("update", DType::F32, &[2, 4, 3]);
    let starts = s.input("starts", HostTensor::new(&[3], &[1i32, 2, 0]));
    s.output("slice", x.dynamic_slice(starts, shape![2, 4, 3]));
    s.output("whole", x.dynamic_slice(starts, shape![6, 7, 3]));
    s.output("update", x.update_slice(update, starts));
    s.step(vec![("starts", HostTensor::new(&[3], &[100i32, 3, 1]))]);
    s.step(vec![("starts", HostTensor::new(&[3], &[-5i32, i32::MIN, i32::MAX]))]);
}

fn symbolic(s: &Sketch) {
    s.exact();
    let tokens = Dim::sym("tokens");
    let x = s.input_as("x", shape!["tokens", 4], s.normal(DType::F32, &[7, 4]));
    let b = s.b();
    s.output("size", b.size(&tokens));
    s.output("size of twice", b.size(&tokens.times(&Dim::fixed(2)).plus(&Dim::fixed(1))));
    s.output("iota", b.iota(DType::I32, shape!["tokens", 3], 0));
    s.output("iota f32", b.iota(DType::F32, shape!["tokens", 3], 1));
    s.output("merged", x.reshape(vec![tokens.times(&Dim::fixed(4))]));
    s.output("head", x.slice(0, 0usize, 1usize));
    s.output("tail", x.slice(0, tokens.minus(&Dim::fixed(1)), tokens.clone()));
    s.output("doubled", b.concat(&[x, x], 0));
    s.output("padded", x.pad(&[1, 0], &[2, 0], x.number(9.0)));
    s.output("broadcast", b.scalar(2.5f32).broadcast(shape!["tokens", 2]));
    s.output("transposed", x.transpose(&[1, 0]));
    s.step(vec![("x", s.normal(DType::F32, &[1, 4]))]);
    s.step(vec![("x", s.normal(DType::F32, &[65, 4]))]);
}
