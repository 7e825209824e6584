//! A model that turns token ids into vectors, several sequences in one step. Texts and formats are its callers'
//! business.

use anyhow::{Result, anyhow, ensure};
use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, Engine, EngineError, Logits, Program, SequenceState};
use mlxcel_ir::{Bindings, step};

use crate::session::Loaded;

pub struct Embedder {
    engine: Box<dyn Engine>,
    loaded: Loaded,
    block_size: usize,
    compiled: Option<Compiled>,
}

/// A program and how much it holds at once.
struct Compiled {
    program: Box<dyn Program>,
    blocks: usize,
    sequences: usize,
}

impl Embedder {
    pub fn new(engine: Box<dyn Engine>, loaded: Loaded) -> Self {
        let block_size = engine.caps().block_size;
        Embedder { engine, loaded, block_size, compiled: None }
    }

    /// The vectors of whole sequences, none of which is empty, in one step.
    pub fn embed(&mut self, sequences: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        let needs_cache = self.loaded.bytes_per_token() > 0;
        let mut batch = Batch::new(self.block_size);
        let mut blocks = 0u32;
        for (slot, tokens) in (0u32..).zip(sequences) {
            let first = blocks;
            if needs_cache {
                blocks += u32::try_from(tokens.len().div_ceil(self.block_size))?;
            }
            let state = SequenceState { blocks: (first..blocks).collect(), slot, known_len: tokens.len() };
            batch.push(&state, tokens, 0, Logits::None, &SamplingParams::default());
        }
        let program = self.program(blocks as usize, sequences.len())?;
        let ticket = program.submit(&batch.feeds(), &[step::EMBEDDINGS])?;
        let outputs = program.collect(ticket)?;
        let output = outputs.first().ok_or_else(|| anyhow!("the engine made no embeddings"))?;
        let rows = output.to_vec::<f32>().ok_or_else(|| anyhow!("the engine's embeddings are not f32"))?;
        let width = rows.len() / sequences.len().max(1);
        ensure!(width > 0 && rows.len() == width * sequences.len(), "the engine made no embeddings");
        Ok(rows.chunks(width).map(<[f32]>::to_vec).collect())
    }

    /// A program with room for a step: the one there is, or a new one that is twice as large as needed, so that ever
    /// longer texts do not each compile anew.
    fn program(&mut self, blocks: usize, sequences: usize) -> Result<&mut dyn Program> {
        let fits = |c: &Compiled| c.blocks >= blocks && c.sequences >= sequences;
        let compiled = match self.compiled.take().filter(fits) {
            Some(compiled) => compiled,
            None => {
                let (blocks, sequences) = (2 * blocks.max(1), 2 * sequences);
                let sizes = [("blocks", blocks), ("block", self.block_size), ("slots", sequences)];
                let dims = Bindings::from(sizes.map(|(name, size)| (name.to_string(), size)));
                let program = self.engine.compile(&self.loaded.model.graph, &self.loaded.checkpoint, &dims);
                let program = program.map_err(|error| match error {
                    EngineError::OutOfMemory { .. } => anyhow!("{error}; give shorter texts or --truncate"),
                    error => error.into(),
                })?;
                Compiled { program, blocks, sequences }
            }
        };
        Ok(&mut *self.compiled.insert(compiled).program)
    }
}
