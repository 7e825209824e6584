//! Movement, indexing, reductions and order.

use mlxcel_ir::{DType, Dim, ReduceOp, ScatterMode, shape};

use super::{Build, Golden};

pub(super) const MOVEMENT: &[(&str, Build)] = &[
    ("shapes", shapes),
    ("dynamic_slices", dynamic_slices),
    ("gathers", gathers),
    ("scatters", scatters),
    ("counting", counting),
];

pub(super) const ORDER: &[(&str, Build)] = &[
    ("reductions", reductions),
    ("running", running),
    ("sorting", sorting),
    ("top_of_distinct", top_of_distinct),
    ("top_of_equals", top_of_equals),
    ("largest", largest),
];

fn shapes(g: &Golden<'_>) {
    let (x, row) = (g.x("x"), g.x("row"));
    g.y("reshape", x.reshape(shape![4, 6]));
    g.y("transpose", x.transpose(&[2, 0, 1]));
    g.y("broadcast", row.broadcast(shape![2, 3, 4]));
    g.y("slice", x.slice(1, 1usize, 3usize));
    g.y("slice_step", x.slice_step(2, 1, 4, 2));
    g.y("concat", g.sketch.b().concat(&[x, x.slice(1, 0usize, 1usize), x.slice(1, 2usize, 3usize)], 1));
    g.y("pad", x.pad(&[3, 0, 1], &[0, 1, 2], x.number(-1.5)));
    g.y("select", x.gt(x.number(0.0)).select(x, row));
}

fn dynamic_slices(g: &Golden<'_>) {
    let (x, update) = (g.x("x"), g.x("update"));
    for name in ["inside", "beyond", "before"] {
        let starts = g.x(name);
        g.y(&format!("slice_{name}"), x.dynamic_slice(starts, shape![2, 3]));
        g.y(&format!("update_{name}"), x.update_slice(update, starts));
    }
}

fn gathers(g: &Golden<'_>) {
    let (x, index) = (g.x("x"), g.x("index"));
    g.y("axis0", x.gather(index, 0));
    g.y("axis1", x.gather(index, 1));
    g.y("along", x.take_along(g.x("along"), 1));
}

fn scatters(g: &Golden<'_>) {
    let (x, index, updates) = (g.x("x"), g.x("index"), g.x("updates"));
    g.y("set", x.scatter(index, updates, ScatterMode::Set));
    g.y("add", x.scatter(index, updates, ScatterMode::Add));
}

fn counting(g: &Golden<'_>) {
    let x = g.x_as("x", shape!["tokens", 2]);
    let b = g.sketch.b();
    g.y("iota0", b.iota(DType::I32, x.shape(), 0));
    g.y("iota1", b.iota(DType::F32, x.shape(), 1));
    g.y("size", b.size(&Dim::sym("tokens")));
}

fn reductions(g: &Golden<'_>) {
    let (x, n) = (g.x("x"), g.x("n"));
    g.y("sum", x.reduce(ReduceOp::Sum, &[0, 2]));
    g.y("sum_all", x.reduce(ReduceOp::Sum, &[0, 1, 2]));
    g.y("prod", x.reduce(ReduceOp::Prod, &[1]));
    g.y("max", x.reduce(ReduceOp::Max, &[1, 2]));
    g.y("min", x.reduce(ReduceOp::Min, &[0]));
    g.y("int_sum", n.reduce(ReduceOp::Sum, &[1]));
    g.y("int_prod", n.reduce(ReduceOp::Prod, &[0]));
    g.y("int_max", n.reduce(ReduceOp::Max, &[1]));
}

fn running(g: &Golden<'_>) {
    let (x, n) = (g.x("x"), g.x("n"));
    g.y("sum", x.cumulative(ReduceOp::Sum, 1));
    g.y("prod", x.cumulative(ReduceOp::Prod, 1));
    g.y("max", x.cumulative(ReduceOp::Max, 0));
    g.y("min", x.cumulative(ReduceOp::Min, 1));
    g.y("int_sum", n.cumulative(ReduceOp::Sum, 1));
}

fn sorting(g: &Golden<'_>) {
    let x = g.x("x");
    for (name, axis) in [("rows", 1), ("columns", 0)] {
        for (way, [values, order]) in
            [("rising", x.sort_ascending(axis)), ("falling", x.sort_descending(axis))]
        {
            g.y(&format!("{name}_{way}"), values);
            g.y(&format!("{name}_{way}_order"), order);
        }
    }
    let [values, order] = g.x("odd").sort_ascending(0);
    g.y("odd", values);
    g.y("odd_order", order);
}

fn top_of_distinct(g: &Golden<'_>) {
    let x = g.x("x");
    let [values, order] = x.top_k(3);
    let threshold = values.slice(1, 2usize, 3usize);
    g.y("values", values);
    g.y("order", order);
    g.y("threshold", threshold.reshape(shape![2]));
    g.y("kept", x.ge(threshold).select(x, x.number(-1.0)));
}

fn top_of_equals(g: &Golden<'_>) {
    let [values, order] = g.x("x").top_k(5);
    g.y("values", values);
    g.y("order", order);
}

fn largest(g: &Golden<'_>) {
    let x = g.x("x");
    g.y("rows", x.argmax(1));
    g.y("columns", x.argmax(0));
    g.y("int_rows", g.x("n").argmax(1));
}
