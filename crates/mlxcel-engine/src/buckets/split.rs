//! Splitting the feeds of a ragged step, and joining the outputs of its parts. Which axis belongs to what is told by
//! the symbols of the graph's types: `tokens`, `sequences`, `rows`, `pages`.

use mlxcel_ir::{Bindings, Dim, Graph, HostTensor, Op};

use super::Buckets;
use super::rows::{Joined, fill, take};
use crate::Feeds;

/// A step as sub-steps, which run in this order.
#[derive(Debug)]
pub struct Split {
    pub steps: Vec<SubStep>,
    sizes: Bindings,
}

/// Part of a step: one token each of several sequences, or several tokens of one.
#[derive(Debug)]
pub struct SubStep {
    /// What the graph declares, not padded.
    pub feeds: Feeds,
    /// Places in the whole step.
    tokens: Vec<usize>,
    sequences: Vec<usize>,
    rows: Vec<usize>,
    /// Blocks that the longest of the sequences uses.
    pages: Option<usize>,
}

/// Splits a step whose sizes are bound. `None` if the graph is no step over sequences: without `seq_ids`, with a
/// sequence whose tokens are apart, or with an output that is not one per token, row or sequence.
pub fn split(graph: &Graph, feeds: &Feeds, sizes: &Bindings, buckets: &Buckets) -> Option<Split> {
    let ids = feeds.get("seq_ids")?.to_i64();
    let splits = graph.outputs().iter().all(|(_, v)| joint(&graph.ty(*v).shape).is_some());
    let is_step = sizes.get("tokens") == Some(&ids.len()) && splits;
    let runs = runs(&ids).filter(|_| is_step)?;
    let logit_rows = match feeds.get("logit_rows") {
        Some(rows) => rows.to_i64(),
        None if sizes.contains_key("rows") => return None,
        None => vec![],
    };
    let mut groups: Vec<Vec<Run>> = vec![];
    let (single, several): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(|r| r.len == 1);
    groups.extend(single.chunks(buckets.sequences_max.max(1)).map(<[Run]>::to_vec));
    groups.extend(several.into_iter().map(|r| vec![r]));
    let whole = Whole { graph, feeds, sizes, logit_rows };
    let steps = groups.iter().map(|g| whole.part(g)).collect();
    let mut sizes = sizes.clone();
    sizes.insert("rows".to_string(), whole.logit_rows.len());
    Some(Split { steps, sizes })
}

/// Neighbouring tokens of one sequence.
#[derive(Clone, Copy, Debug)]
struct Run {
    sequence: usize,
    first: usize,
    len: usize,
}

/// The runs of a step; tokens of no sequence are left out. `None` if a sequence has two.
fn runs(ids: &[i64]) -> Option<Vec<Run>> {
    let mut runs: Vec<Run> = vec![];
    for (first, &id) in ids.iter().enumerate() {
        let Ok(sequence) = usize::try_from(id) else { continue };
        if let Some(r) = runs.last_mut().filter(|r| r.sequence == sequence && r.first + r.len == first) {
            r.len += 1;
        } else if runs.iter().any(|r| r.sequence == sequence) {
            return None;
        } else {
            runs.push(Run { sequence, first, len: 1 });
        }
    }
    Some(runs)
}

/// The axis of an output along which parts are joined, and its symbol.
fn joint(shape: &[Dim]) -> Option<(usize, &str)> {
    let symbols = shape.iter().enumerate().filter_map(|(i, d)| Some((i, d.as_symbol()?)));
    symbols.into_iter().find(|(_, s)| ["tokens", "rows", "sequences"].contains(s))
}

/// What a part is taken from.
struct Whole<'a> {
    graph: &'a Graph,
    feeds: &'a Feeds,
    sizes: &'a Bindings,
    logit_rows: Vec<i64>,
}

impl Whole<'_> {
    fn part(&self, runs: &[Run]) -> SubStep {
        let tokens: Vec<usize> = runs.iter().flat_map(|r| r.first..r.first + r.len).collect();
        let sequences = runs.iter().map(|r| r.sequence).collect();
        let mine = |row: &usize| tokens.binary_search(&(self.logit_rows[*row] as usize)).is_ok();
        let rows = (0..self.logit_rows.len()).filter(mine).collect();
        let pages = self.pages(&tokens);
        let mut part = SubStep { feeds: Feeds::new(), tokens, sequences, rows, pages };
        for (_, node) in self.graph.inputs() {
            let Op::Input { name, shape, .. } = &node.op else { continue };
            let fed = self.feeds.get(name).expect("the step was bound, so every input is fed");
            part.feeds.insert(name, self.taken(&part, name, shape, fed));
        }
        part
    }

    /// Blocks that these tokens see, by their positions.
    fn pages(&self, tokens: &[usize]) -> Option<usize> {
        let positions = self.feeds.get("positions")?.to_i64();
        let last = tokens.iter().filter_map(|&t| usize::try_from(*positions.get(t)?).ok()).max()?;
        Some(last / self.sizes.get("block").filter(|b| **b > 0)? + 1)
    }

    fn taken(&self, part: &SubStep, name: &str, shape: &[Dim], fed: &HostTensor) -> HostTensor {
        let mut t = fed.clone();
        for (axis, dim) in shape.iter().enumerate() {
            t = match dim.as_symbol() {
                Some("tokens") => take(&t, axis, &part.tokens),
                Some("sequences") => take(&t, axis, &part.sequences),
                Some("rows") => take(&t, axis, &part.rows),
                Some("pages") => {
                    let used = part.pages.unwrap_or(usize::MAX).min(t.shape()[axis]);
                    take(&t, axis, &(0..used).collect::<Vec<_>>())
                }
                _ => t,
            };
        }
        match name {
            "seq_ids" => renumber(&t, |id| part.sequences.iter().position(|s| *s as i64 == id)),
            "logit_rows" => renumber(&t, |row| part.tokens.binary_search(&(row as usize)).ok()),
            _ => t,
        }
    }
}

fn renumber(t: &HostTensor, place: impl Fn(i64) -> Option<usize>) -> HostTensor {
    let new: Vec<f64> = t.to_i64().into_iter().map(|v| place(v).map_or(-1.0, |p| p as f64)).collect();
    HostTensor::from_f64(t.dtype(), t.shape(), &new)
}

impl SubStep {
    /// Whether every sequence has one token.
    pub fn is_decode(&self) -> bool {
        self.tokens.len() == self.sequences.len()
    }

    /// The sizes that the part is padded to.
    fn bucket(&self, buckets: &Buckets) -> [(&'static str, usize); 3] {
        if self.is_decode() {
            let n = buckets.sequences.up(self.sequences.len());
            return [("tokens", n), ("sequences", n), ("rows", n)];
        }
        let rows = if self.rows.len() <= 1 { 1 } else { buckets.tokens.up(self.rows.len()) };
        [("tokens", buckets.tokens.up(self.tokens.len())), ("sequences", 1), ("rows", rows)]
    }

    /// The feeds filled up to bucket sizes with what each input declares, and those sizes.
    pub fn pad(&self, graph: &Graph, buckets: &Buckets) -> (Feeds, Bindings) {
        let mut sizes: Bindings = self.bucket(buckets).map(|(s, n)| (s.to_string(), n)).into();
        let mut padded = Feeds::new();
        for (_, node) in graph.inputs() {
            let Op::Input { name, shape, pad, .. } = &node.op else { continue };
            let mut t = self.feeds.get(name).expect("a part has every input").clone();
            for (axis, symbol) in shape.iter().enumerate().filter_map(|(i, d)| Some((i, d.as_symbol()?))) {
                let n = t.shape()[axis];
                let size = *sizes
                    .entry(symbol.to_string())
                    .or_insert_with(|| if symbol == "pages" { buckets.pages.up(n) } else { n });
                t = fill(&t, axis, size, *pad);
            }
            padded.insert(name, t);
        }
        (padded, sizes)
    }
}

impl Split {
    /// The named outputs of the whole step from those of each sub-step, in order. What belongs to no sequence is zero.
    pub fn join(&self, graph: &Graph, names: &[&str], parts: Vec<Vec<HostTensor>>) -> Vec<HostTensor> {
        let whole = names.iter().enumerate().map(|(i, name)| {
            let found = graph.outputs().iter().find(|(n, _)| n == name);
            let (_, value) = found.expect("the outputs were looked up when the step was submitted");
            let ty = graph.ty(*value);
            let (axis, symbol) = joint(&ty.shape).expect("split looked at every output");
            let n = self.sizes[symbol];
            let empty = || {
                let shape = ty.shape.iter().map(|d| d.eval(&self.sizes).unwrap_or(0)).collect::<Vec<_>>();
                HostTensor::from_f64(ty.dtype, &shape, &vec![0.0; shape.iter().product()])
            };
            let first = parts.first().map_or_else(empty, |p| p[i].clone());
            let mut joined = Joined::new(&first, axis, n);
            for (step, part) in self.steps.iter().zip(&parts) {
                let places = match symbol {
                    "tokens" => &step.tokens,
                    "rows" => &step.rows,
                    _ => &step.sequences,
                };
                joined.put(&part[i], places);
            }
            joined.finish()
        });
        whole.collect()
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_ir::step::StepInputs;
    use mlxcel_ir::{Builder, DType};

    use super::*;
    use crate::sampling::SamplingParams;
    use crate::{Batch, Logits, SequenceState};

    const BLOCK: usize = 4;

    /// Outputs one per token, per row and per sequence.
    fn graph() -> Graph {
        let b = Builder::new();
        let x = StepInputs::declare(&b);
        let place = x.slot_mapping + x.slot_ids + x.known_lens + x.seq_ids;
        b.output("token", x.tokens + x.positions * 1000.0 + place * 0.0);
        b.output("row", x.tokens.gather(x.logit_rows, 0).cast(DType::U32) + x.sampling.step * 0.0);
        b.output("sequence", x.query_lens + x.block_table.slice(1, 0, 1).reshape(x.query_lens.shape()) * 0.0);
        b.finish().unwrap()
    }

    /// A decode, a prompt, a decode and a prompt that wants no logits; positions reach into the third block.
    fn batch() -> Batch {
        let mut batch = Batch::new(BLOCK);
        let state = |first: u32| SequenceState {
            blocks: vec![first, first + 1, first + 2],
            slot: first,
            known_len: 9,
        };
        let sampling = SamplingParams::default();
        batch.push(&state(0), &[10], 8, Logits::Last, &sampling);
        batch.push(&state(3), &[20, 21, 22], 0, Logits::All, &sampling);
        batch.push(&state(6), &[30], 2, Logits::Last, &sampling);
        batch.push(&state(9), &[40, 41], 5, Logits::None, &sampling);
        batch
    }

    fn parts(feeds: &Feeds) -> Split {
        let dims = Bindings::from([("block".to_string(), BLOCK)]);
        let sizes = feeds.bind(&graph(), &dims).unwrap();
        split(&graph(), feeds, &sizes, &Buckets::default()).unwrap()
    }

    fn ints(feeds: &Feeds, name: &str) -> Vec<i64> {
        feeds.get(name).unwrap().to_i64()
    }

    #[test]
    fn a_ragged_step_becomes_one_decode_and_a_chunk_for_each_prompt() {
        let whole = parts(&batch().feeds());
        let tokens: Vec<Vec<i64>> = whole.steps.iter().map(|s| ints(&s.feeds, "tokens")).collect();
        assert_eq!(tokens, [vec![10, 30], vec![20, 21, 22], vec![40, 41]]);
        assert_eq!(whole.steps.iter().map(SubStep::is_decode).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(ints(&whole.steps[0].feeds, "seq_ids"), [0, 1]);
        assert_eq!(ints(&whole.steps[0].feeds, "logit_rows"), [0, 1]);
        assert_eq!(ints(&whole.steps[0].feeds, "block_table"), [0, 1, 2, 6, 7, 8]);
        assert_eq!(ints(&whole.steps[1].feeds, "logit_rows"), [0, 1, 2]);
        assert_eq!(ints(&whole.steps[1].feeds, "step"), [1, 2, 3]);
        assert_eq!(ints(&whole.steps[1].feeds, "block_table"), [3], "the prompt reaches into one block only");
        assert_eq!(ints(&whole.steps[2].feeds, "seq_ids"), [0, 0]);
        assert!(ints(&whole.steps[2].feeds, "logit_rows").is_empty());
    }

    #[test]
    fn parts_are_padded_to_buckets_with_what_their_inputs_declare() {
        let whole = parts(&batch().feeds());
        let buckets = Buckets {
            sequences: super::super::Ladder { least: 4 },
            tokens: super::super::Ladder { least: 8 },
            ..Buckets::default()
        };
        let (decode, sizes) = whole.steps[0].pad(&graph(), &buckets);
        assert_eq!(["tokens", "sequences", "rows", "pages"].map(|s| sizes[s]), [4, 4, 4, 4]);
        assert_eq!(ints(&decode, "seq_ids"), [0, 1, -1, -1]);
        assert_eq!(ints(&decode, "slot_mapping"), [8, 26, -1, -1]);
        assert_eq!(ints(&decode, "block_table")[..8], [0, 1, 2, 0, 6, 7, 8, 0]);
        let (chunk, sizes) = whole.steps[2].pad(&graph(), &buckets);
        assert_eq!(["tokens", "sequences", "rows", "pages"].map(|s| sizes[s]), [8, 1, 1, 2]);
        assert_eq!(ints(&chunk, "tokens"), [40, 41, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ints(&chunk, "query_lens"), [2]);
    }

    #[test]
    fn a_decode_of_more_sequences_than_allowed_is_cut() {
        let feeds = batch().feeds();
        let sizes = feeds.bind(&graph(), &Bindings::new()).unwrap();
        let narrow = Buckets { sequences_max: 1, ..Buckets::default() };
        assert_eq!(split(&graph(), &feeds, &sizes, &narrow).unwrap().steps.len(), 4);
    }

    #[test]
    fn outputs_of_parts_are_joined_in_the_order_of_the_step() {
        let feeds = batch().feeds();
        let whole = parts(&feeds);
        let run = |feeds: &Feeds| {
            let bindings = feeds.bind(&graph(), &Bindings::new()).unwrap();
            let mut leaf = |node: &mlxcel_ir::Node| {
                let Op::Input { name, .. } = &node.op else { panic!("the graph has inputs only") };
                Ok(std::sync::Arc::new(mlxcel_ir::interp::Array::from_host(feeds.get(name).unwrap())))
            };
            let done = mlxcel_ir::interp::run(&graph(), &bindings, &mut leaf).unwrap();
            done.outputs.into_iter().map(|(_, a)| a.to_host()).collect::<Vec<_>>()
        };
        let parts = whole.steps.iter().map(|s| run(&s.pad(&graph(), &Buckets::default()).0)).collect();
        let joined = whole.join(&graph(), &["token", "row", "sequence"], parts);
        assert_eq!(joined[0].to_i64(), [8010, 20, 1021, 2022, 2030, 5040, 6041]);
        assert_eq!(joined[1].to_i64(), [10, 20, 21, 22, 30]);
        assert_eq!(joined[2].to_i64(), [1, 3, 1, 2]);
        assert_eq!(joined, run(&feeds), "and equal the step in one piece");
    }

    #[test]
    fn what_is_no_step_over_sequences_is_not_split() {
        let mut feeds = batch().feeds();
        let sizes = feeds.bind(&graph(), &Bindings::new()).unwrap();
        let b = Builder::new();
        let x = StepInputs::declare(&b);
        b.output("sum", x.tokens.reduce(mlxcel_ir::ReduceOp::Sum, &[0]) + x.seq_ids.slice(0, 0, 1) * 0.0);
        let sum = b.finish().unwrap();
        assert!(split(&sum, &feeds, &sizes, &Buckets::default()).is_none());
        feeds = Feeds::new();
        assert!(split(&graph(), &feeds, &sizes, &Buckets::default()).is_none());
        assert!(runs(&[0, 1, 0]).is_none(), "tokens of a sequence that are apart");
    }
}
