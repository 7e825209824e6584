//! Ragged batches for ops with state: sequences that grow step by step, in scattered blocks and slots.

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, Feeds, Logits, SequenceState};
use mlxcel_ir::{DType, HostTensor, PagedBatch, Tensor, shape};

use super::case::Sketch;

/// How many tokens each sequence adds in each step; one that adds none is not in the step.
pub(crate) struct Ragged<'a> {
    pub(crate) plan: &'a [&'a [usize]],
    pub(crate) block_size: usize,
    /// The recurrent-state slot of each sequence.
    pub(crate) slots: &'a [u32],
}

/// Inputs of a step that say where its tokens belong.
const NAMES: [&str; 5] = ["positions", "seq_ids", "slot_mapping", "block_table", "slot_ids"];

impl<'a> Ragged<'a> {
    pub(crate) fn new(plan: &'a [&'a [usize]], block_size: usize) -> Self {
        Ragged { plan, block_size, slots: &[] }
    }

    fn sequences(&self) -> usize {
        self.plan[0].len()
    }

    fn pages(&self) -> usize {
        let longest =
            (0..self.sequences()).map(|s| self.plan.iter().map(|step| step[s]).sum::<usize>()).max();
        longest.unwrap_or(0).div_ceil(self.block_size)
    }

    /// Blocks in the pool: a prime number of them, more than all sequences need.
    pub(crate) fn blocks(&self) -> usize {
        let needed = self.sequences() * self.pages() + 2;
        (needed..).find(|n| (2..*n).all(|d| n % d != 0)).expect("there are primes without end")
    }

    /// Neighbouring blocks of a sequence lie far apart: multiples of 3 modulo a prime, all different.
    fn sequence(&self, s: usize) -> SequenceState {
        let all = self.blocks();
        let block = |page: usize| (((s * self.pages() + page + 1) * 3) % all) as u32;
        let blocks = (0..self.pages()).map(block).collect();
        SequenceState { blocks, slot: self.slots.get(s).copied().unwrap_or(s as u32), known_len: 0 }
    }

    pub(crate) fn tokens(&self, step: usize) -> usize {
        self.plan[step].iter().sum()
    }

    /// What each step feeds besides its tensors.
    pub(crate) fn feeds(&self) -> Vec<Feeds> {
        let mut done = vec![0; self.sequences()];
        let step = |grown: &&[usize]| {
            let mut batch = Batch::new(self.block_size);
            for (s, &n) in grown.iter().enumerate().filter(|(_, n)| **n > 0) {
                let tokens = vec![0; n];
                batch.push(&self.sequence(s), &tokens, done[s], Logits::None, &SamplingParams::default());
                done[s] += n;
            }
            batch.feeds()
        };
        self.plan.iter().map(step).collect()
    }

    /// The same by name, for a sketch.
    pub(crate) fn named(&self, step: usize) -> Vec<(&'static str, HostTensor)> {
        let feeds = &self.feeds()[step];
        NAMES.iter().filter_map(|&name| Some((name, feeds.get(name)?.clone()))).collect()
    }

    /// Declares what paged attention reads, fed with the first step.
    pub(crate) fn declare_paged<'g>(&self, s: &'g Sketch) -> PagedBatch<'g> {
        s.bind("blocks", self.blocks());
        s.bind("block", self.block_size);
        let first = self.named(0);
        let fed = |name: &str| {
            let found = first.iter().find(|(n, _)| *n == name);
            found.expect("a batch feeds every input that paged attention reads").1.clone()
        };
        let per_token = |name: &'static str, pad| s.input_padded(name, (shape!["tokens"], pad), fed(name));
        PagedBatch {
            positions: per_token("positions", 0),
            seq_ids: per_token("seq_ids", -1),
            slot_mapping: per_token("slot_mapping", -1),
            block_table: s.input_as("block_table", shape!["sequences", "pages"], fed("block_table")),
            cache: None,
        }
    }

    /// Declares positions and slot ids, fed with the first step.
    pub(crate) fn declare_slots<'g>(&self, s: &'g Sketch, slots: usize) -> [Tensor<'g>; 2] {
        s.bind("slots", slots);
        let feeds = &self.feeds()[0];
        ["positions", "slot_ids"].map(|name| {
            let fed = feeds.get(name).expect("a batch feeds positions and slot ids").clone();
            debug_assert_eq!(fed.dtype(), DType::I32);
            s.input_as(name, shape!["tokens"], fed)
        })
    }
}
