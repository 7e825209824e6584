//! What a step takes: the work that the graph counts for each op, over the rate at which the device does that kind of
//! work. Ops follow one another; what an engine overlaps or fuses it does better than foretold.

use mlxcel_ir::{Bindings, Cost, DType, Graph, Op};

use super::Rates;

/// Seconds to the first token of a prompt; `None` where the graph does not know its cost.
pub fn prefill(graph: &Graph, rates: &Rates, tokens: usize, block: usize) -> Option<f64> {
    step(graph, rates, &sizes(tokens, tokens, block))
}

/// Seconds for one more token behind so many.
pub fn decode(graph: &Graph, rates: &Rates, context: usize, block: usize) -> Option<f64> {
    step(graph, rates, &sizes(1, context.max(1), block))
}

fn sizes(tokens: usize, context: usize, block: usize) -> Bindings {
    let pages = context.div_ceil(block.max(1));
    let sizes = [
        ("tokens", tokens),
        ("sequences", 1),
        ("rows", 1),
        ("pages", pages),
        ("blocks", pages),
        ("block", block),
        ("slots", 1),
    ];
    sizes.into_iter().map(|(name, size)| (name.to_string(), size)).collect()
}

fn step(graph: &Graph, rates: &Rates, sizes: &Bindings) -> Option<f64> {
    let nodes = graph.nodes().iter().enumerate().filter(|(_, n)| !n.op.is_leaf());
    let ops = nodes.map(|(i, n)| {
        let cost = graph.cost(i as u32, sizes)?;
        // Products with narrow weights go at the rate of narrow numbers, whatever the activations are.
        let operand = usize::from(matches!(n.op, Op::Linear { .. } | Op::ExpertLinear { .. }));
        let dtype = n.inputs.get(operand).map(|v| graph.ty(*v).dtype);
        let own = if is_free(&n.op) { 0.0 } else { rates.op_us * 1e-6 };
        Some(own + seconds(&n.op, dtype, cost, rates))
    });
    let total: f64 = ops.collect::<Option<Vec<f64>>>()?.into_iter().sum();
    Some(rates.round_trip_us * 1e-6 + total)
}

/// What engines do not run at all.
fn is_free(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape { .. } | Op::Constant(_) | Op::Iota { .. } | Op::Size { .. } | Op::Broadcast { .. }
    )
}

fn seconds(op: &Op, dtype: Option<DType>, cost: Cost, rates: &Rates) -> f64 {
    let over = |amount: u64, giga: f64| amount as f64 / (giga * 1e9);
    let gflop = match dtype {
        Some(DType::BF16 | DType::F16 | DType::Quant(_)) => rates.bf16_gflop_per_s,
        _ => rates.f32_gflop_per_s,
    };
    let moved = cost.read_bytes + cost.write_bytes;
    match op {
        _ if is_free(op) => 0.0,
        Op::Linear { .. } | Op::ExpertLinear { .. } | Op::DotGeneral { .. } | Op::Conv { .. } => {
            let streamed = over(cost.weight_bytes, rates.stream_gigabytes_per_s);
            streamed.max(over(cost.flops, gflop))
        }
        Op::Attention(_) | Op::PagedAttention(_) => {
            over(moved, rates.attention_gigabytes_per_s).max(over(cost.flops, gflop))
        }
        Op::Reduce { .. } | Op::Softmax { .. } | Op::Sort { .. } | Op::TopK { .. } | Op::ArgMax { .. } => {
            over(moved, rates.reduce_gigabytes_per_s)
        }
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::AddRmsNorm { .. } => {
            over(moved + cost.weight_bytes, rates.reduce_gigabytes_per_s)
        }
        _ => over(moved + cost.weight_bytes, rates.copy_gigabytes_per_s),
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_ir::{Builder, shape};

    use super::*;
    use crate::rates::{Sizes, example, measure};

    fn product(dtype: DType, width: usize) -> Graph {
        let b = Builder::new();
        let x = b.input("x", dtype, shape!["tokens", width]);
        b.output("y", x.linear(b.weight("w", dtype, &[width, width]), None));
        b.finish().unwrap()
    }

    fn close(got: Option<f64>, expected: f64) {
        let got = got.unwrap();
        assert!((got / expected - 1.0).abs() < 1e-9, "{got} s instead of {expected} s");
    }

    #[test]
    fn units_are_bytes_operations_and_seconds() {
        // 4e6 bytes at 10e9 a second are 400 µs, 2e6 operations at 100e9 a second 20; a step takes 5 more.
        close(decode(&product(DType::F32, 1000), &example(), 1, 16), 405e-6);
        // A thousand rows are 2e9 operations: 20 ms. In bf16, at 400e9 a second, 5.
        close(prefill(&product(DType::F32, 1000), &example(), 1000, 16), 20.005e-3);
        close(prefill(&product(DType::BF16, 1000), &example(), 1000, 16), 5.005e-3);
        let b = Builder::new();
        b.output("y", b.input("x", DType::F32, shape!["tokens", 1000]).exp());
        let exp = b.finish().unwrap();
        // 4e6 bytes read and 4e6 written at 5e9 a second; and what every op adds.
        let slow = Rates { op_us: 7.0, ..example() };
        close(prefill(&exp, &slow, 1000, 16), 1.6e-3 + 12e-6);
    }

    #[test]
    fn a_longer_context_takes_longer_by_the_bytes_of_its_cache() {
        let b = Builder::new();
        let inputs = mlxcel_ir::step::StepInputs::declare(&b);
        let x = b.input("q", DType::F32, shape!["tokens", 8, 64]);
        let spec =
            mlxcel_ir::PagedSpec { scale: 1.0, window: None, softcap: None, sinks: false, value_dim: None };
        b.output("y", b.paged_attention((x, x, Some(x)), inputs.paged(), None, 0, spec));
        let graph = b.finish().unwrap();
        let graph = mlxcel_ir::passes::optimize(&graph).unwrap();
        let at = |context: usize| decode(&graph, &example(), context, 16).unwrap();
        // 16,384 tokens more of 2 · 8 · 64 numbers of 4 bytes, at 8e9 bytes a second.
        let more = 16384.0 * 4096.0 / 8e9;
        let grown = at(32768) - at(16384);
        assert!((grown / more - 1.0).abs() < 1e-2, "{grown} s instead of {more} s");
    }

    /// Ratios between shapes, of what is foretold and of what is measured: never a time by itself.
    #[test]
    fn foretold_ratios_are_those_of_measurements_within_wide_bounds() {
        let engine = crate::engines::open(&crate::engines::EngineArgs::default()).unwrap();
        let sizes = Sizes { width: 512, layers: 2, rows_max: 256, elements: 1 << 20, context: 1024 };
        let rates = measure(&*engine, "test", sizes).unwrap();
        let narrow = measure(&*engine, "test", Sizes { width: 256, ..sizes }).unwrap();
        // Twice the width is four times the weights, and as much time for each.
        let foretold = |width: usize, rows: usize| {
            prefill(&product(DType::F32, width), &rates, rows, 16).unwrap() - rates.round_trip_us * 1e-6
        };
        let ratio = foretold(512, 256) / foretold(256, 256);
        let seconds = |r: &Rates, width: f64| width * width / r.f32_gflop_per_s;
        let measured = seconds(&rates, 512.0) / seconds(&narrow, 256.0);
        assert!((3.0..5.0).contains(&ratio), "foretold {ratio}");
        assert!((0.1..10.0).contains(&(ratio / measured)), "foretold {ratio}, measured {measured}");
    }
}
