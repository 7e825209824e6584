//! A sequence of tokens driven through a program, the simplest way that is right: its own blocks, any chunking, any
//! company. The scheduler does this for real; here it is the probe.

use std::collections::BTreeSet;

use mlxcel_engine::sampling::{SamplingParams, argmax};
use mlxcel_engine::weights::Checkpoint;
use mlxcel_engine::{Batch, Engine, EngineError, Logits, Program, SequenceState};
use mlxcel_ir::{Bindings, step};
use mlxcel_models::Model;

/// A compiled model with room for a few sequences.
pub struct Runner {
    program: Box<dyn Program>,
    block_size: usize,
    blocks_each: usize,
    recompute_past: Option<usize>,
}

/// A sequence in a runner.
#[derive(Clone, Debug)]
pub struct Sequence {
    state: SequenceState,
    pub tokens: Vec<u32>,
    computed: usize,
}

impl Runner {
    /// Compiles `model` for up to `sequences` sequences of `capacity` tokens.
    pub fn new(
        engine: &dyn Engine,
        (model, checkpoint): (&Model, &Checkpoint),
        sequences: usize,
        capacity: usize,
    ) -> Result<Runner, EngineError> {
        let block_size = engine.caps().block_size;
        let blocks_each = capacity.div_ceil(block_size);
        let dims = Bindings::from([
            ("blocks".to_string(), blocks_each * sequences),
            ("block".to_string(), block_size),
            ("slots".to_string(), sequences),
        ]);
        let program = engine.compile(&model.graph, checkpoint, &dims)?;
        Ok(Runner { program, block_size, blocks_each, recompute_past: model.built.recompute_past })
    }

    /// A sequence in place `index`. Blocks are interleaved between places, so that no sequence is contiguous.
    pub fn sequence(&self, index: usize, places: usize, prompt: &[u32]) -> Sequence {
        let blocks =
            (0..self.blocks_each).map(|b| ((self.blocks_each - 1 - b) * places + index) as u32).collect();
        let state = SequenceState { blocks, slot: index as u32, known_len: prompt.len() };
        Sequence { state, tokens: prompt.to_vec(), computed: 0 }
    }

    /// Computes what is not computed of each sequence, at most `chunk` tokens at a time, and returns the logits of
    /// the last token of each.
    pub fn advance(
        &mut self,
        sequences: &mut [Sequence],
        chunk: usize,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let mut logits = vec![vec![]; sequences.len()];
        for s in sequences.iter_mut() {
            s.state.known_len = s.tokens.len();
            // The rotation of earlier tokens changes with the length: start over, as a preempted sequence does.
            if self.recompute_past.is_some_and(|n| s.computed > 0 && s.computed <= n && s.tokens.len() > n) {
                s.computed = 0;
            }
        }
        while sequences.iter().any(|s| s.computed < s.tokens.len()) {
            let mut batch = Batch::new(self.block_size);
            let mut finishing = BTreeSet::new();
            for (i, s) in sequences.iter_mut().enumerate().filter(|(_, s)| s.computed < s.tokens.len()) {
                let end = s.computed.saturating_add(chunk).min(s.tokens.len());
                let last = end == s.tokens.len();
                let wanted = if last { Logits::Last } else { Logits::None };
                batch.push(
                    &s.state,
                    &s.tokens[s.computed..end],
                    s.computed,
                    wanted,
                    &SamplingParams::default(),
                );
                s.computed = end;
                if last {
                    finishing.insert(i);
                }
            }
            let ticket = self.program.submit(&batch.feeds(), &[step::LOGITS, step::SAMPLED])?;
            let outputs = self.program.collect(ticket)?;
            let rows = outputs[0].to_vec::<f32>().expect("logits are f32");
            let width = outputs[0].shape()[1];
            let sampled = outputs[1].to_i64();
            for (row, i) in finishing.into_iter().enumerate() {
                logits[i] = rows[row * width..(row + 1) * width].to_vec();
                assert_eq!(sampled[row] as u32, argmax(&logits[i]), "the sampled token is not the likeliest");
            }
        }
        Ok(logits)
    }

    /// Greedy continuation of each prompt by `n` tokens: tokens and the logits that chose them.
    pub fn greedy(&mut self, prompts: &[&[u32]], n: usize, chunk: usize) -> Result<Vec<Greedy>, EngineError> {
        let places = prompts.len();
        let mut sequences: Vec<Sequence> =
            prompts.iter().enumerate().map(|(i, p)| self.sequence(i, places, p)).collect();
        let mut results = vec![Greedy::default(); prompts.len()];
        for _ in 0..n {
            let logits = self.advance(&mut sequences, chunk)?;
            for ((s, row), r) in sequences.iter_mut().zip(logits).zip(&mut results) {
                let token = argmax(&row);
                s.tokens.push(token);
                r.tokens.push(token);
                r.logits.push(row);
            }
        }
        Ok(results)
    }

    /// The embeddings of whole sequences, one row each.
    pub fn embed(&mut self, sequences: &[&[u32]]) -> Result<Vec<Vec<f32>>, EngineError> {
        let mut batch = Batch::new(self.block_size);
        for (i, tokens) in sequences.iter().enumerate() {
            let s = self.sequence(i, sequences.len(), tokens);
            batch.push(&s.state, tokens, 0, Logits::None, &SamplingParams::default());
        }
        let ticket = self.program.submit(&batch.feeds(), &[step::EMBEDDINGS])?;
        let out = self.program.collect(ticket)?.remove(0);
        let width = out.shape()[1];
        let rows = out.to_vec::<f32>().expect("embeddings are f32");
        Ok(rows.chunks(width).map(<[f32]>::to_vec).collect())
    }
}

/// A greedy continuation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Greedy {
    pub tokens: Vec<u32>,
    pub logits: Vec<Vec<f32>>,
}
