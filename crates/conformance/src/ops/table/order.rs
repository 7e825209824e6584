//! Reductions, running reductions, sorting, top-k and argmax.

use mlxcel_ir::{DType, ReduceOp, shape};

use super::{Sketch, Table};

const ALL: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];

pub(super) fn add(t: &mut Table) {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        t.case(&format!("reductions {dtype}"), |s| reductions(s, dtype));
    }
    for dtype in [DType::I32, DType::U8, DType::I64, DType::U32] {
        t.case(&format!("reductions {dtype}"), |s| whole_reductions(s, dtype));
    }
    t.floats("sums at a model's width", |s, dtype| {
        let x = s.input_as("x", shape!["tokens", 2048], s.normal(dtype, &[7, 2048]));
        s.output("sum", x.reduce(ReduceOp::Sum, &[1]));
        s.output("max", x.reduce(ReduceOp::Max, &[1]));
        s.output("over tokens", x.reduce(ReduceOp::Sum, &[0]));
        s.output("mean", x.mean_keep(1));
        s.output("mean over tokens", x.mean_keep(0));
        s.step(vec![("x", s.normal(dtype, &[1, 2048]))]);
    });
    t.floats("sorting", sorting);
    t.case("sorting i32", |s| sorting(s, DType::I32));
    t.floats("choosing the largest", largest);
    t.case("a top-k threshold", |s| {
        // The 40th largest logit, as a sampler reads it: the last of the top 40, which come largest first.
        let x = s.normal_input("x", DType::F32, &[3, 4096]);
        let [values, _] = x.top_k(40);
        let threshold = values.slice(1, 39usize, 40usize);
        s.output("threshold", threshold);
        s.output("kept", x.ge(threshold).select(x, x.number(-1e9)));
        s.exact();
    });
    t.case("the largest token of a vocabulary", |s| {
        let x = s.input_as("x", shape!["rows", 4099], s.normal(DType::F32, &[3, 4099]));
        s.output("y", x.argmax(1));
        s.step(vec![("x", s.normal(DType::F32, &[1, 4099]))]);
        s.step(vec![("x", s.normal(DType::F32, &[0, 4099]))]);
    });
}

fn reductions(s: &Sketch, dtype: DType) {
    // Products of numbers near one, so that they neither vanish nor overflow a half.
    let x = s.input("x", s.uniform(dtype, &[3, 4, 5], (0.5, 1.5)));
    for op in ALL {
        for axes in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[2, 0, 1]] {
            s.output(&format!("{op:?} {axes:?}"), x.reduce(op, axes));
        }
        for axis in 0..3 {
            s.output(&format!("running {op:?} {axis}"), x.cumulative(op, axis));
        }
    }
    s.output("of none", x.reduce(ReduceOp::Sum, &[]));
    let long = s.input("long", s.uniform(dtype, &[2, 300], (-1.0, 1.0)));
    s.output("long running sum", long.cumulative(ReduceOp::Sum, 1));
    // A long sum in a narrow type may be accumulated in any order.
    s.slacken(2.0);
}

fn whole_reductions(s: &Sketch, dtype: DType) {
    let x = s.input("x", s.whole(dtype, &[4, 9], (0, 100)));
    for op in ALL {
        s.output(&format!("{op:?}"), x.reduce(op, &[1]));
        s.output(&format!("{op:?} of all"), x.reduce(op, &[0, 1]));
        s.output(&format!("running {op:?}"), x.cumulative(op, 0));
    }
}

fn sorting(s: &Sketch, dtype: DType) {
    s.exact();
    let ties = s.input("ties", s.whole(dtype, &[5, 64], (0, 7)));
    let long = s.input("long", s.whole(dtype, &[2, 1000], (-900, 900)));
    for (name, x) in [("ties", ties), ("long", long)] {
        for axis in 0..2 {
            for (way, [values, order]) in
                [("rising", x.sort_ascending(axis)), ("falling", x.sort_descending(axis))]
            {
                s.output(&format!("{name} {axis} {way}"), values);
                s.output(&format!("{name} {axis} {way} order"), order);
            }
        }
    }
}

fn largest(s: &Sketch, dtype: DType) {
    s.exact();
    let ties = s.input("ties", s.whole(dtype, &[3, 4, 30], (0, 5)));
    let logits = s.normal_input("logits", dtype, &[7, 4096]);
    for (name, x) in [("ties", ties), ("logits", logits)] {
        for k in [1, 8, 30] {
            let [values, order] = x.top_k(k);
            s.output(&format!("top {k} of {name}"), values);
            s.output(&format!("top {k} of {name} order"), order);
        }
    }
    (0..3).for_each(|axis| s.output(&format!("argmax {axis}"), ties.argmax(axis)));
    s.output("argmax of logits", logits.argmax(1));
}
