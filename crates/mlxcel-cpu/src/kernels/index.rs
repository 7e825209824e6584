//! Taking and putting rows by index: gather, take_along, scatter, embedding, counting.
//!
//! Algorithm: indices are read once as `i64`, clamped (reads) or dropped (writes) when out of range, and rows are moved
//! as bytes. An embedding decodes only the rows that are asked for. Checked against the interpreter.

use mlxcel_ir::{DType, ScatterMode};

use crate::context::{Context, Operand};
use crate::lanes::{Class, Lane, indices};
use crate::layout::{Layout, Walk};
use crate::simd::{Kernel, Simd};
use crate::view::{Out, Plain, View};
use crate::weight::Rows;

fn clamp(i: i64, n: usize) -> usize {
    i.clamp(0, n as i64 - 1) as usize
}

/// `x` (row-major) taken along `axis`.
pub(crate) fn gather(ctx: &Context, x: &View<'_>, index: &View<'_>, axis: usize, out: &mut Out<'_>) {
    if out.elements() == 0 || x.elements() == 0 {
        return;
    }
    let ids = indices(index);
    let n = x.shape()[axis];
    let row = x.shape()[axis + 1..].iter().product::<usize>() * x.size();
    let bytes = x.bytes();
    let per_task = ctx.threads.lines_per_task(out.elements() * x.size() / row.max(1), row);
    ctx.threads.chunks(out.bytes(), per_task * row, |task, part| {
        for (i, line) in part.chunks_mut(row.max(1)).enumerate() {
            let at = task * per_task + i;
            let from = (at / ids.len() * n + clamp(ids[at % ids.len()], n)) * row;
            line.copy_from_slice(&bytes[from..from + row]);
        }
    });
}

/// Element by element along `axis`.
pub(crate) fn take_along(x: &View<'_>, index: &View<'_>, axis: usize, out: &mut Out<'_>) {
    match x.size() {
        1 => take_typed::<u8>(x, index, axis, out),
        2 => take_typed::<u16>(x, index, axis, out),
        4 => take_typed::<u32>(x, index, axis, out),
        _ => take_typed::<u64>(x, index, axis, out),
    }
}

fn take_typed<T: Plain>(x: &View<'_>, index: &View<'_>, axis: usize, out: &mut Out<'_>) {
    let ids = indices(index);
    let (n, step) = (x.shape()[axis], x.layout.strides[axis]);
    let mut strides = x.layout.strides;
    strides[axis] = 0;
    let layouts = [Layout { shape: out.shape, strides }];
    if n == 0 || out.elements() == 0 {
        return;
    }
    let source = x.elements_of::<T>();
    let mut walk = Walk::new(&layouts, layouts[0].rank(), 0);
    for (to, &i) in out.slice::<T>().iter_mut().zip(&ids) {
        *to = source[walk.offsets[0] + clamp(i, n) * step];
        walk.step();
    }
}

/// Rows of `out`, which holds the old contents, become or gain the updates (row-major).
pub(crate) fn scatter(index: &View<'_>, updates: &View<'_>, mode: ScatterMode, out: &mut Out<'_>) {
    let ids = indices(index);
    let (rows, row) = (out.shape[0], out.shape[1..].iter().product::<usize>());
    let (dtype, size) = (out.dtype, out.size());
    let from = updates.bytes();
    let to = out.bytes();
    for (u, &i) in ids.iter().enumerate().filter(|(_, i)| (0..rows as i64).contains(*i)) {
        let source = &from[u * row * size..(u + 1) * row * size];
        let target = &mut to[i as usize * row * size..(i as usize + 1) * row * size];
        match (mode, Class::of(dtype)) {
            (ScatterMode::Set, _) => target.copy_from_slice(source),
            (ScatterMode::Add, Class::F32) => add::<f32>(dtype, source, target, |a, b| a + b),
            (ScatterMode::Add, Class::F64) => add::<f64>(dtype, source, target, |a, b| a + b),
            (ScatterMode::Add, Class::I64) => add::<i64>(dtype, source, target, i64::wrapping_add),
        }
    }
}

fn add<L: Lane>(dtype: DType, source: &[u8], target: &mut [u8], f: impl Fn(L, L) -> L) {
    let n = source.len() / dtype.size().expect("rows are plain");
    let (mut a, mut b) = (vec![L::default(); n], vec![L::default(); n]);
    L::load(dtype, target, (0, 1), &mut a);
    L::load(dtype, source, (0, 1), &mut b);
    a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, b));
    L::store(dtype, &a, target);
}

/// Rows of a table of any type.
pub(crate) fn embedding(
    ctx: &Context,
    table: &Operand<'_>,
    ids: &View<'_>,
    out: &mut Out<'_>,
) -> Result<(), mlxcel_engine::EngineError> {
    let dense;
    let (rows, count) = match table.matrix {
        Some(matrix) => (matrix.rows(), matrix.shape[0]),
        None => {
            dense = ctx.dense(&table.view)?;
            (Rows::of_view(&dense.view), table.view.shape()[0])
        }
    };
    if out.elements() == 0 || count == 0 {
        return Ok(());
    }
    let ids = indices(ids);
    decode(ctx, &rows, out, |i| clamp(ids[i], count));
    Ok(())
}

/// All rows of a packed weight.
pub(crate) fn dequantize(ctx: &Context, rows: &Rows<'_>, out: &mut Out<'_>) {
    if out.elements() > 0 {
        decode(ctx, rows, out, |i| i);
    }
}

fn decode(ctx: &Context, rows: &Rows<'_>, out: &mut Out<'_>, pick: impl Fn(usize) -> usize + Sync) {
    let (dtype, size, cols) = (out.dtype, out.size(), rows.cols);
    let per_task = ctx.threads.lines_per_task(out.elements() / cols, cols);
    ctx.threads.chunks(out.bytes(), per_task * cols * size, |task, bytes| {
        let mut line = vec![0.0; cols];
        for (i, to) in bytes.chunks_mut(cols * size).enumerate() {
            ctx.level.dispatch(Decode { rows, row: pick(task * per_task + i), line: &mut line });
            f32::store(dtype, &line, to);
        }
    });
}

struct Decode<'a> {
    rows: &'a Rows<'a>,
    row: usize,
    line: &'a mut [f32],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        self.rows.decode::<S>(self.row, 0, self.line);
    }
}

/// `0, 1, 2, …` along `axis`.
pub(crate) fn iota(axis: usize, out: &mut Out<'_>) {
    let (n, dtype, size) = (out.shape[axis], out.dtype, out.size());
    let inner = out.shape[axis + 1..].iter().product::<usize>();
    for (i, element) in out.bytes().chunks_exact_mut(size).enumerate() {
        i64::store(dtype, &[(i / inner % n) as i64], element);
    }
}
