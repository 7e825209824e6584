//! What a node costs when symbols have values: bytes of weights and activations, and arithmetic. For plans and
//! limits; it knows no engine, so it counts what must be moved and computed, not how.
//!
//! Conventions: a multiplication and an addition are two flops; any other elementwise op is one flop an element;
//! moving and casting are none. Masks do not lower the count of attention. State is updated in place, so a cache
//! costs the rows that are read and written. Paged attention reads the whole block table.

use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::shape::{Bindings, Type};

/// Bytes and arithmetic of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights that are read.
    pub weight_bytes: u64,
    /// Bytes of everything else that is read.
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub flops: u64,
}

impl Type {
    /// Bytes of a tensor of this type; `None` if a symbol is unbound or the number overflows.
    pub fn bytes(&self, bindings: &Bindings) -> Option<u64> {
        let shape: Vec<usize> = self.shape.iter().map(|d| d.eval(bindings)).collect::<Option<_>>()?;
        u64::try_from(self.dtype.storage_bytes(&shape)?).ok()
    }
}

impl Graph {
    /// The cost of a node; `None` if a symbol is unbound, a number overflows, or the node is a loop whose length is
    /// not known.
    pub fn cost(&self, node: u32, bindings: &Bindings) -> Option<Cost> {
        let n = self.nodes().get(node as usize)?;
        // What has no results at all, such as the logits of a step that wants none, reads no operand either.
        if !n.op.is_leaf() && n.types.iter().all(|t| count(t, bindings) == Some(0)) {
            return Some(Cost::default());
        }
        let mut cost = Cost { flops: flops(self, node, bindings)?, ..Cost::default() };
        let traffic = Traffic { graph: self, node: n, bindings };
        for (i, &v) in n.inputs.iter().enumerate() {
            let bytes = traffic.read(i)?;
            let total = if is_weight(self, v) { &mut cost.weight_bytes } else { &mut cost.read_bytes };
            *total = total.checked_add(bytes)?;
        }
        for r in 0..n.types.len() {
            cost.write_bytes = cost.write_bytes.checked_add(traffic.written(r)?)?;
        }
        Some(cost)
    }

    /// The sum of the costs of all nodes.
    pub fn total_cost(&self, bindings: &Bindings) -> Option<Cost> {
        (0..self.nodes().len() as u32).try_fold(Cost::default(), |sum, node| {
            let c = self.cost(node, bindings)?;
            Some(Cost {
                weight_bytes: sum.weight_bytes.checked_add(c.weight_bytes)?,
                read_bytes: sum.read_bytes.checked_add(c.read_bytes)?,
                write_bytes: sum.write_bytes.checked_add(c.write_bytes)?,
                flops: sum.flops.checked_add(c.flops)?,
            })
        })
    }
}

/// Whether a value is a weight, perhaps seen with another shape.
fn is_weight(graph: &Graph, v: Value) -> bool {
    let mut node = graph.node(v);
    while let Op::Reshape { .. } = node.op {
        node = graph.node(node.inputs[0]);
    }
    matches!(node.op, Op::Weight { .. })
}

/// The bytes that go in and out of a node.
struct Traffic<'a> {
    graph: &'a Graph,
    node: &'a Node,
    bindings: &'a Bindings,
}

impl Traffic<'_> {
    fn operand(&self, i: usize) -> &Type {
        self.graph.ty(self.node.inputs[i])
    }

    fn dim(&self, i: usize, axis: usize) -> Option<u64> {
        dim(self.operand(i), axis, self.bindings)
    }

    fn full(&self, i: usize) -> Option<u64> {
        self.operand(i).bytes(self.bindings)
    }

    /// Bytes of `rows` slices of operand `i` along its first axis.
    fn rows(&self, i: usize, rows: u64) -> Option<u64> {
        match self.dim(i, 0)? {
            0 => Some(0),
            all => (self.full(i)? / all).checked_mul(rows),
        }
    }

    fn result(&self, r: usize) -> Option<u64> {
        self.node.types[r].bytes(self.bindings)
    }

    /// Bytes read of operand `i`.
    fn read(&self, i: usize) -> Option<u64> {
        match (&self.node.op, i) {
            (Op::Reshape { .. }, _) => Some(0),
            (Op::Slice { .. } | Op::DynamicSlice { .. } | Op::Gather { .. } | Op::TakeAlong { .. }, 0) => {
                self.result(0)
            }
            // In place: what is not replaced is not touched.
            (Op::Scatter { .. } | Op::UpdateSlice, 0) => Some(0),
            (Op::Embedding { .. }, 0) => self.rows(0, count(self.operand(1), self.bindings)?),
            (Op::ExpertLinear { .. }, 1 | 3) => self.rows(i, self.experts(i)?),
            (Op::PagedAttention(p), _) => match self.caches(p.value_dim.is_some()).contains(&i) {
                true => self.cached(i, p.value_dim.is_some()),
                false => self.full(i),
            },
            (Op::SelectiveScan, 6) | (Op::CausalConv, 3) => self.rows(i, self.slots(i)?),
            _ => self.full(i),
        }
    }

    /// Bytes written of result `r`.
    fn written(&self, r: usize) -> Option<u64> {
        match (&self.node.op, r) {
            (Op::Reshape { .. } | Op::Constant(_), _) => Some(0),
            (op, _) if op.is_leaf() => Some(0),
            (Op::Scatter { .. }, _) => self.full(2),
            (Op::UpdateSlice, _) => self.full(1),
            // The new keys and values, in the type of the cache.
            (Op::PagedAttention(_), 1 | 2) => {
                let cache = self.node.types[r].dtype;
                self.operand(r).with_dtype(cache).bytes(self.bindings)
            }
            (Op::SelectiveScan, 1) => self.rows(6, self.slots(6)?),
            (Op::CausalConv, 1) => self.rows(3, self.slots(3)?),
            _ => self.result(r),
        }
    }

    /// Experts that are read at most: one for each choice.
    fn experts(&self, weight: usize) -> Option<u64> {
        Some(count(self.operand(2), self.bindings)?.min(self.dim(weight, 0)?))
    }

    /// State slots that are touched at most: one for each token.
    fn slots(&self, state: usize) -> Option<u64> {
        Some(self.dim(0, 0)?.min(self.dim(state, 0)?))
    }

    /// Which operands of paged attention are caches.
    fn caches(&self, shared: bool) -> std::ops::Range<usize> {
        if shared { 2..3 } else { 3..5 }
    }

    /// Bytes of the blocks that the block table names.
    fn cached(&self, cache: usize, shared: bool) -> Option<u64> {
        let table = self.caches(shared).end + 3;
        self.rows(cache, count(self.operand(table), self.bindings)?)
    }
}

fn dim(t: &Type, axis: usize, bindings: &Bindings) -> Option<u64> {
    u64::try_from(t.shape.get(axis)?.eval(bindings)?).ok()
}

/// The number of elements.
fn count(t: &Type, bindings: &Bindings) -> Option<u64> {
    (0..t.rank()).try_fold(1u64, |a, i| a.checked_mul(dim(t, i, bindings)?))
}

fn times(factors: &[u64]) -> Option<u64> {
    factors.iter().try_fold(1u64, |a, &b| a.checked_mul(b))
}

/// Comparisons of sorting: `n log2 n`, rounded up.
fn sorting(n: u64) -> Option<u64> {
    n.checked_mul(u64::from(n.max(1).next_power_of_two().ilog2()))
}

/// The arithmetic of a node.
pub(crate) fn flops(graph: &Graph, node: u32, bindings: &Bindings) -> Option<u64> {
    let n = &graph.nodes()[node as usize];
    let x: Vec<&Type> = n.inputs.iter().map(|v| graph.ty(*v)).collect();
    let out = || count(n.types.first()?, bindings);
    let size = |i: usize| count(x[i], bindings);
    let at = |i: usize, axis: usize| dim(x[i], axis, bindings);
    match &n.op {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select => out(),
        Op::Dequantize { .. } => times(&[2, out()?]),
        Op::Reduce { .. } | Op::Cumulative { .. } | Op::TopK { .. } | Op::ArgMax { .. } => size(0),
        Op::Scatter { mode: crate::ScatterMode::Add } => size(2),
        Op::Sort { axis, .. } => match at(0, *axis)? {
            0 => Some(0),
            line => times(&[size(0)? / line, sorting(line)?]),
        },
        Op::DotGeneral { contract, .. } => {
            let inner = contract.iter().try_fold(1u64, |a, &(i, _)| a.checked_mul(at(0, i)?))?;
            times(&[2, out()?, inner])
        }
        Op::Conv { .. } => {
            let per_output = (1..x[1].rank()).try_fold(1u64, |a, i| a.checked_mul(at(1, i)?))?;
            times(&[2, out()?, per_output])
        }
        Op::Linear { bias } => times(&[out()?, (2 * at(1, 1)?).checked_add(u64::from(*bias))?]),
        Op::ExpertLinear { bias } => times(&[out()?, (2 * at(1, 2)?).checked_add(u64::from(*bias))?]),
        Op::Attention(_) => times(&[2, at(0, 0)?, at(0, 2)?, at(0, 1)?, at(1, 1)?, at(0, 3)? + at(2, 3)?]),
        Op::PagedAttention(p) => {
            let (cache, table) = if p.value_dim.is_some() { (2, 6) } else { (3, 8) };
            let width = at(0, 2)?.checked_add(dim(&n.types[0], 2, bindings)?)?;
            times(&[2, at(0, 0)?, at(0, 1)?, at(table, 1)?, at(cache, 1)?, width])
        }
        Op::Fft { .. } | Op::Rfft | Op::Irfft { .. } => transform(&n.types[0], x[0], bindings),
        Op::If | Op::While { .. } | Op::Scan { .. } | Op::Fused => region_flops(n, &x, bindings),
        op if op.is_composite() && !matches!(op, Op::Embedding { .. }) => composite(n, &x, bindings),
        _ => Some(0),
    }
}

/// `5 n log2 n` for each line, the usual count of a fast transform.
fn transform(result: &Type, x: &Type, bindings: &Bindings) -> Option<u64> {
    let last = result.rank().checked_sub(1)?;
    let n = dim(result, last, bindings)?.max(dim(x, last, bindings)?);
    let lines = count(x, bindings)? / dim(x, last, bindings)?.max(1);
    times(&[5, lines, sorting(n)?])
}

fn region_flops(n: &Node, x: &[&Type], bindings: &Bindings) -> Option<u64> {
    let body =
        |r: &Graph| (0..r.nodes().len()).try_fold(0u64, |a, i| a.checked_add(flops(r, i as u32, bindings)?));
    match n.op {
        Op::If => n.regions.iter().map(body).try_fold(0, |a, b| Some(a.max(b?))),
        Op::Scan { carried, .. } => times(&[dim(x[carried], 0, bindings)?, body(n.regions.first()?)?]),
        Op::Fused => body(n.regions.first()?),
        _ => None,
    }
}

/// A composite without a formula costs what its decomposition costs.
fn composite(n: &Node, x: &[&Type], bindings: &Bindings) -> Option<u64> {
    let mut alone = Graph::default();
    let mut inputs = vec![];
    for (i, t) in x.iter().enumerate() {
        let op = Op::Input { name: i.to_string(), dtype: t.dtype, shape: t.shape.clone(), pad: 0 };
        inputs.push(Value { node: alone.push(op, vec![], vec![], "").ok()?, result: 0 });
    }
    let index = alone.push(n.op.clone(), inputs, vec![], "").ok()?;
    for (i, v) in alone.results(index).into_iter().enumerate() {
        alone.add_output(&i.to_string(), v).ok()?;
    }
    let parts = crate::decompose(&alone, &|_, _| false).ok()?;
    (0..parts.nodes().len()).try_fold(0u64, |a, i| a.checked_add(flops(&parts, i as u32, bindings)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttentionSpec, Builder, DType, GgufFormat, PagedBatch, PagedSpec, QuantFormat, shape};

    fn bound(pairs: &[(&str, usize)]) -> Bindings {
        pairs.iter().map(|(n, v)| (n.to_string(), *v)).collect()
    }

    /// The cost of the last node.
    fn last(b: Builder, bindings: &Bindings) -> Option<Cost> {
        let g = b.finish().unwrap();
        g.cost(g.nodes().len() as u32 - 1, bindings)
    }

    #[test]
    fn a_linear_layer_streams_its_packed_weight() {
        let q4 = DType::Quant(QuantFormat::Gguf(GgufFormat::Q4_0));
        let b = Builder::new();
        let x = b.input("x", DType::BF16, shape!["tokens", 64]);
        let (w, bias) = (b.weight("w", q4, &[128, 64]), b.weight("b", DType::F32, &[128]));
        x.linear(w, Some(bias));
        // 128 rows of two 18-byte blocks and 128 floats; 5 rows of 64 and 128 bf16.
        let cost = last(b, &bound(&[("tokens", 5)])).unwrap();
        assert_eq!(cost.weight_bytes, 128 * 2 * 18 + 128 * 4);
        assert_eq!((cost.read_bytes, cost.write_bytes), (5 * 64 * 2, 5 * 128 * 2));
        assert_eq!(cost.flops, 5 * 128 * (2 * 64 + 1));
    }

    #[test]
    fn a_layer_that_computes_no_row_reads_no_weight() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["rows", 64]);
        x.linear(b.weight("w", DType::F32, &[128, 64]), None);
        assert_eq!(last(b, &bound(&[("rows", 0)])), Some(Cost::default()));
    }

    #[test]
    fn unbound_symbols_have_no_cost() {
        let b = Builder::new();
        b.input("x", DType::F32, shape!["tokens"]).exp();
        assert_eq!(last(b, &Bindings::new()), None);
    }

    #[test]
    fn contractions_count_two_flops_for_each_product() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![3, 4, 5]);
        let y = b.input("y", DType::F32, shape![3, 5, 6]);
        x.dot_general(y, &[(0, 0)], &[(2, 1)]);
        assert_eq!(last(b, &bound(&[])).unwrap().flops, 2 * 3 * 4 * 5 * 6);

        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![1, 8, 10, 10]);
        let w = b.weight("w", DType::F32, &[16, 4, 3, 3]);
        let op = Op::Conv { strides: vec![1, 1], padding: vec![(1, 1); 2], dilation: vec![1, 1], groups: 2 };
        b.apply(op, &[x, w]);
        assert_eq!(last(b, &bound(&[])).unwrap().flops, 2 * (16 * 10 * 10) * (4 * 3 * 3));
    }

    #[test]
    fn experts_are_read_only_as_often_as_they_are_chosen() {
        let cost = |tokens: usize| {
            let b = Builder::new();
            let x = b.input("x", DType::F32, shape!["tokens", 1, 16]);
            let ids = b.input("ids", DType::I32, shape!["tokens", 2]);
            x.expert_linear(b.weight("w", DType::F32, &[8, 32, 16]), ids, None);
            last(b, &bound(&[("tokens", tokens)])).unwrap()
        };
        assert_eq!(cost(1).weight_bytes, 2 * 32 * 16 * 4);
        assert_eq!(cost(100).weight_bytes, 8 * 32 * 16 * 4);
        assert_eq!(cost(100).flops, 2 * 100 * 2 * 32 * 16);
    }

    #[test]
    fn an_embedding_reads_the_rows_it_looks_up() {
        let b = Builder::new();
        let ids = b.input("ids", DType::I32, shape!["tokens"]);
        b.weight("w", DType::F16, &[1000, 64]).embedding(ids, DType::F32);
        let cost = last(b, &bound(&[("tokens", 3)])).unwrap();
        let expected = Cost { weight_bytes: 3 * 128, read_bytes: 3 * 4, write_bytes: 3 * 256, flops: 0 };
        assert_eq!(cost, expected);
    }

    #[test]
    fn attention_multiplies_with_keys_and_with_values() {
        let b = Builder::new();
        let q = b.input("q", DType::F32, shape![1, "tokens", 8, 64]);
        let k = b.input("k", DType::F32, shape![1, "keys", 2, 64]);
        let v = b.input("v", DType::F32, shape![1, "keys", 2, 32]);
        let spec = AttentionSpec {
            scale: 1.0,
            causal: true,
            window: None,
            softcap: None,
            mask: false,
            sinks: false,
        };
        b.attention([q, k, v], None, None, spec);
        let cost = last(b, &bound(&[("tokens", 10), ("keys", 50)])).unwrap();
        assert_eq!(cost.flops, 2 * 8 * 10 * 50 * (64 + 32));
        assert_eq!(cost.read_bytes, 4 * (10 * 8 * 64 + 50 * 2 * 64 + 50 * 2 * 32));
    }

    #[test]
    fn paged_attention_reads_the_block_table_and_writes_the_new_rows() {
        let b = Builder::new();
        let heads = |n: &str, h: usize| b.input(n, DType::F32, shape!["tokens", h, 64]);
        let per_token = |n: &str| b.input(n, DType::I32, shape!["tokens"]);
        let batch = PagedBatch {
            positions: per_token("positions"),
            seq_ids: per_token("seq_ids"),
            slot_mapping: per_token("slot_mapping"),
            block_table: b.input("block_table", DType::I32, shape!["sequences", "pages"]),
            cache: None,
        };
        let spec = PagedSpec { scale: 1.0, window: None, softcap: None, sinks: false, value_dim: None };
        let (q, k, v) = (heads("q", 8), heads("k", 2), heads("v", 2));
        b.paged_attention((q, k, Some(v)), batch, None, 0, spec);
        let symbols = [("tokens", 2), ("sequences", 2), ("pages", 3), ("blocks", 100), ("block", 16)];
        let cost = last(b, &bound(&symbols)).unwrap();
        let (row, cached) = (2 * 64 * 4, 2 * 3 * 16);
        assert_eq!(cost.flops, 2 * 2 * 8 * (3 * 16) * (64 + 64));
        assert_eq!(cost.write_bytes, 2 * 8 * 64 * 4 + 2 * 2 * row);
        let fed = 2 * 8 * 64 * 4 + 2 * 2 * row + 3 * 2 * 4 + 2 * 3 * 4;
        assert_eq!(cost.read_bytes, fed + 2 * cached * row);
    }

    #[test]
    fn composites_without_a_formula_cost_their_decomposition() {
        let b = Builder::new();
        b.input("x", DType::F32, shape![4, 32]).softmax(1);
        // The maximum, the difference, the exponential, the sum and the quotient.
        assert_eq!(last(b, &bound(&[])).unwrap().flops, 5 * 4 * 32);
    }

    #[test]
    fn a_scan_costs_its_body_at_every_step_and_an_endless_loop_nothing_known() {
        let b = Builder::new();
        let (x, s) = (b.input("x", DType::F32, shape!["tokens", 8]), b.input("s", DType::F32, shape![8]));
        b.scan(&[s], &[x], &[], |_, x| vec![(x[0] + x[1]).exp()]);
        assert_eq!(last(b, &bound(&[("tokens", 7)])).unwrap().flops, 7 * 2 * 8);

        let b = Builder::new();
        let s = b.input("s", DType::F32, shape![]);
        b.while_loop(&[s], &[], |_, x| x[0].lt(x[0].number(1.0)), |_, x| vec![x[0] * 2.0]);
        assert_eq!(last(b, &bound(&[])), None);
    }

    #[test]
    fn a_reshape_is_free_and_a_scatter_touches_only_its_rows() {
        let b = Builder::new();
        b.input("x", DType::F32, shape![4, 32]).unsqueeze(0);
        assert_eq!(last(b, &bound(&[])), Some(Cost::default()));

        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![1000, 8]);
        let (i, u) = (b.input("i", DType::I32, shape![3]), b.input("u", DType::F32, shape![3, 8]));
        x.scatter(i, u, crate::ScatterMode::Set);
        let cost = last(b, &bound(&[])).unwrap();
        assert_eq!((cost.read_bytes, cost.write_bytes, cost.flops), (3 * 4 + 3 * 8 * 4, 3 * 8 * 4, 0));
    }

    #[test]
    fn the_total_is_the_sum_and_overflow_has_no_cost() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens"]);
        b.output("y", x.exp() + x);
        let g = b.finish().unwrap();
        assert_eq!(g.total_cost(&bound(&[("tokens", 10)])).unwrap().flops, 20);
        assert_eq!(g.total_cost(&bound(&[("tokens", usize::MAX)])), None);
    }
}
