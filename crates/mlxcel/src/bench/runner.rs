//! A compiled model with room for several sequences, and the clock. It runs what a case says and looks at no result:
//! how long a step takes does not depend on which tokens it has.

use std::time::{Duration, Instant};

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, Caps, Engine, EngineError, Logits, Program, SequenceState};
use mlxcel_ir::{Bindings, step};

use super::case::{Case, Kind, Step};
use crate::session::Loaded;

/// Steps of an answer that are made before the clock runs.
const WARM_UP_TOKENS: usize = 4;

pub struct Runner {
    program: Box<dyn Program>,
    block_size: usize,
    step_tokens: usize,
    sequences: Vec<Sequence>,
    random: Random,
}

struct Sequence {
    blocks: Vec<u32>,
    slot: u32,
    /// Tokens at the beginning that no run writes to.
    filled: usize,
}

impl Runner {
    /// Compiles the model for sequences of so many tokens each.
    pub fn new(loaded: &Loaded, engine: &dyn Engine, rooms: &[usize]) -> Result<Self, EngineError> {
        let Caps { block_size, step_tokens, .. } = engine.caps();
        let mut next = 0u32;
        let mut sequences = Vec::new();
        for (slot, room) in (0u32..).zip(rooms) {
            let end = next + room.div_ceil(block_size) as u32;
            sequences.push(Sequence { blocks: (next..end).collect(), slot, filled: 0 });
            next = end;
        }
        let sizes = [("blocks", next.max(1) as usize), ("block", block_size), ("slots", rooms.len().max(1))];
        let dims = Bindings::from(sizes.map(|(name, size)| (name.to_string(), size)));
        let program = engine.compile(&loaded.model.graph, &loaded.checkpoint, &dims)?;
        let random = Random { state: 0, below: loaded.model.built.vocab_size as u64 };
        Ok(Runner { program, block_size, step_tokens, sequences, random })
    }

    /// Gives every sequence of the case its depth: the first one computes what it lacks, the others copy it.
    pub fn fill(&mut self, case: &Case) -> Result<(), EngineError> {
        let depth = case.depth;
        let filled = self.sequences[0].filled;
        if filled < depth {
            let prompt = Case { kind: Kind::Prompt, tokens: depth - filled, depth: filled, sequences: 1 };
            for step in prompt.steps(self.step_tokens) {
                self.step(&Step { is_answered: false, ..step }, 1)?;
            }
            self.sequences[0].filled = depth;
        }
        let (first, others) = self.sequences.split_at_mut(1);
        let lacking = others.iter_mut().take(case.sequences - 1).filter(|other| other.filled < depth);
        let (mut blocks, mut slots) = (vec![], vec![]);
        for other in lacking {
            let lacks = other.filled / self.block_size..depth.div_ceil(self.block_size);
            blocks.extend(lacks.map(|i| (first[0].blocks[i], other.blocks[i])));
            slots.push((first[0].slot, other.slot));
            other.filled = depth;
        }
        self.program.copy_state("blocks", &blocks)?;
        self.program.copy_state("slots", &slots)
    }

    /// Runs the case, or the beginning of a long answer, so that caches, pages and threads are awake.
    pub fn warm_up(&mut self, case: &Case) -> Result<(), EngineError> {
        let tokens = match case.kind {
            Kind::Prompt => case.tokens,
            Kind::Generate => case.tokens.min(WARM_UP_TOKENS),
        };
        self.run(&Case { tokens, ..*case }).map(drop)
    }

    /// How long the case takes. Each run starts at the case's depth and overwrites what the last one left there.
    pub fn run(&mut self, case: &Case) -> Result<Duration, EngineError> {
        let steps = case.steps(self.step_tokens);
        let started = Instant::now();
        for step in &steps {
            self.step(step, case.sequences)?;
        }
        Ok(started.elapsed())
    }

    fn step(&mut self, step: &Step, sequences: usize) -> Result<(), EngineError> {
        let end = step.start + step.tokens;
        let pages = end.div_ceil(self.block_size);
        let mut batch = Batch::new(self.block_size);
        let (rows, outputs): (_, &[&str]) =
            if step.is_answered { (Logits::Last, &[step::SAMPLED]) } else { (Logits::None, &[]) };
        for sequence in &self.sequences[..sequences] {
            let tokens: Vec<u32> = (0..step.tokens).map(|_| self.random.id()).collect();
            let blocks = sequence.blocks[..pages].to_vec();
            let state = SequenceState { blocks, slot: sequence.slot, known_len: end };
            batch.push(&state, &tokens, step.start, rows, &SamplingParams::default());
        }
        let ticket = self.program.submit(&batch.feeds(), outputs)?;
        self.program.collect(ticket).map(drop)
    }
}

/// Token ids, the same in every process: splitmix64 from 0.
struct Random {
    state: u64,
    below: u64,
}

impl Random {
    fn id(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % self.below.max(1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_are_those_of_splitmix64() {
        // The first two numbers of the published generator, seeded with 0.
        let mut random = Random { state: 0, below: u64::MAX };
        assert_eq!(random.id(), 0xe220_a839_7b1d_cdaf_u64 as u32);
        assert_eq!(random.id(), 0x6e78_9e6a_a1b9_65f4_u64 as u32);
    }
}
