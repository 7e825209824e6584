//! A ragged batch: new tokens of several sequences laid end to end, and where their state lives. Plain data; who
//! owns blocks and decides what runs is the scheduler's business.

use mlxcel_ir::HostTensor;

use crate::Feeds;
use crate::sampling::SamplingParams;

/// Where a sequence keeps its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceState {
    /// KV blocks in order.
    pub blocks: Vec<u32>,
    /// The recurrent-state slot.
    pub slot: u32,
    /// Tokens known of the sequence, computed or not: at least the prompt's length. A token beyond knows of itself
    /// and those before it, as if it had come alone.
    pub known_len: usize,
}

/// Which tokens of a chunk want logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    None,
    Last,
    All,
}

/// The plain data of one step.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    block_size: usize,
    tokens: Vec<i32>,
    positions: Vec<i32>,
    seq_ids: Vec<i32>,
    slot_mapping: Vec<i32>,
    slot_ids: Vec<i32>,
    known_lens: Vec<i32>,
    query_lens: Vec<i32>,
    logit_rows: Vec<i32>,
    /// The blocks of all sequences end to end, and how many each has.
    blocks: Vec<i32>,
    block_counts: Vec<usize>,
    sampling: Vec<(SamplingParams, u32)>,
}

impl Batch {
    pub fn new(block_size: usize) -> Self {
        Batch { block_size, ..Self::default() }
    }

    /// Adds tokens of one sequence, the first of them at position `start`. The sequence has blocks for all of them, or
    /// no blocks at all if the model keeps no cache. Panics otherwise, and without a token: a key that went nowhere
    /// would be missed by every later step.
    pub fn push(
        &mut self,
        sequence: &SequenceState,
        tokens: &[u32],
        start: usize,
        logits: Logits,
        sampling: &SamplingParams,
    ) {
        let capacity = sequence.blocks.len() * self.block_size;
        assert!(!tokens.is_empty(), "a sequence joins a step with at least one token");
        assert!(
            capacity == 0 || start + tokens.len() <= capacity,
            "{} tokens, {capacity} slots",
            start + tokens.len()
        );
        let index = self.block_counts.len() as i32;
        let first_row = self.tokens.len();
        for (i, &token) in tokens.iter().enumerate() {
            let position = start + i;
            let block = sequence.blocks.get(position / self.block_size.max(1));
            let slot =
                block.map_or(-1, |&b| (b as usize * self.block_size + position % self.block_size) as i32);
            self.tokens.push(token as i32);
            self.positions.push(position as i32);
            self.seq_ids.push(index);
            self.slot_mapping.push(slot);
            self.slot_ids.push(sequence.slot as i32);
            self.known_lens.push(sequence.known_len.max(position + 1) as i32);
        }
        self.query_lens.push(tokens.len() as i32);
        self.blocks.extend(sequence.blocks.iter().map(|&b| b as i32));
        self.block_counts.push(sequence.blocks.len());
        let rows = match logits {
            Logits::None => 0..0,
            Logits::Last => first_row + tokens.len() - 1..first_row + tokens.len(),
            Logits::All => first_row..first_row + tokens.len(),
        };
        for row in rows {
            self.logit_rows.push(row as i32);
            // The number of the drawn token within its sequence: the same in any company and any chunking.
            self.sampling.push((sampling.clone(), (self.positions[row] + 1) as u32));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The step's inputs by the names that graphs declare.
    pub fn feeds(&self) -> Feeds {
        let mut feeds = Feeds::new();
        let vectors = [
            ("tokens", &self.tokens),
            ("positions", &self.positions),
            ("seq_ids", &self.seq_ids),
            ("slot_mapping", &self.slot_mapping),
            ("slot_ids", &self.slot_ids),
            ("known_lens", &self.known_lens),
            ("query_lens", &self.query_lens),
            ("logit_rows", &self.logit_rows),
        ];
        for (name, v) in vectors {
            feeds.insert(name, HostTensor::new(&[v.len()], v));
        }
        feeds.insert("block_table", self.block_table());
        self.feed_sampling(&mut feeds);
        feeds
    }

    /// One row for each sequence, as long as the longest.
    fn block_table(&self) -> HostTensor {
        let pages = self.block_counts.iter().copied().max().unwrap_or(0).max(1);
        let mut table = Vec::with_capacity(self.block_counts.len() * pages);
        let mut blocks = &self.blocks[..];
        for &count in &self.block_counts {
            let (row, rest) = blocks.split_at(count);
            blocks = rest;
            table.extend_from_slice(row);
            table.resize(table.len() + pages - count, 0);
        }
        HostTensor::new(&[self.block_counts.len(), pages], &table)
    }

    fn feed_sampling(&self, feeds: &mut Feeds) {
        fn column<T: mlxcel_ir::Element>(
            rows: &[(SamplingParams, u32)],
            f: impl Fn(&SamplingParams) -> T,
        ) -> HostTensor {
            HostTensor::new(&[rows.len()], &rows.iter().map(|(p, _)| f(p)).collect::<Vec<_>>())
        }
        feeds.insert("temperature", column(&self.sampling, |p| p.temperature));
        feeds.insert("top_k", column(&self.sampling, |p| p.top_k as i32));
        feeds.insert("top_p", column(&self.sampling, |p| p.top_p));
        feeds.insert("min_p", column(&self.sampling, |p| p.min_p));
        feeds.insert("seed", column(&self.sampling, |p| p.seed));
        let steps: Vec<u32> = self.sampling.iter().map(|(_, s)| *s).collect();
        feeds.insert("step", HostTensor::new(&[steps.len()], &steps));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "6 tokens, 4 slots")]
    fn tokens_beyond_the_blocks_of_their_sequence_are_refused() {
        let state = SequenceState { blocks: vec![1], slot: 0, known_len: 6 };
        Batch::new(4).push(&state, &[1, 2, 3], 3, Logits::Last, &SamplingParams::default());
    }

    #[test]
    fn a_ragged_batch_lays_sequences_end_to_end() {
        let mut batch = Batch::new(4);
        let a = SequenceState { blocks: vec![7, 2], slot: 1, known_len: 6 };
        let b = SequenceState { blocks: vec![5], slot: 0, known_len: 2 };
        batch.push(&a, &[10, 11], 3, Logits::Last, &SamplingParams::default());
        batch.push(&b, &[20, 21], 0, Logits::All, &SamplingParams::default());
        let feeds = batch.feeds();
        let ints = |name: &str| feeds.get(name).unwrap().to_i64();
        assert_eq!(ints("positions"), [3, 4, 0, 1]);
        assert_eq!(ints("slot_mapping"), [7 * 4 + 3, 2 * 4, 20, 21]);
        assert_eq!(ints("seq_ids"), [0, 0, 1, 1]);
        assert_eq!(ints("logit_rows"), [1, 2, 3]);
        assert_eq!(ints("known_lens"), [6, 6, 2, 2]);
        assert_eq!(ints("block_table"), [7, 2, 5, 0]);
        assert_eq!(ints("step"), [5, 1, 2]);
    }
}
