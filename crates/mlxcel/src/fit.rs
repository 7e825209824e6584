//! Whether a model fits into memory: what weights, cache and activations take at a length of text, what the machine
//! has left, and the longest text that fits. Activations are what the engine's plan keeps for the largest step.

use anyhow::{Result, ensure};
use mlxcel_engine::{Caps, Engine, Program};
use mlxcel_ir::{Bindings, step};
use mlxcel_models::ModelKind;
use serde::Serialize;

use crate::memory;
use crate::report::in_words;
use crate::session::Loaded;

/// Memory for one sequence of `context` tokens.
#[derive(Debug, Serialize)]
pub struct Fit {
    context: usize,
    weight_bytes: u64,
    cache_bytes: u64,
    state_bytes: u64,
    /// `None` if the engine cannot tell.
    activation_bytes: Option<u64>,
    total_bytes: u64,
    /// `None` if the machine does not say.
    available_bytes: Option<u64>,
    fits: Option<bool>,
    /// 0 if not even one token fits.
    largest_context: Option<usize>,
}

/// What the machine can give.
#[derive(Clone, Copy)]
struct Room {
    all: u64,
    /// The part that a cache may take.
    cache: u64,
}

/// What depends on the model and the engine alone.
struct Needs<'a> {
    loaded: &'a Loaded,
    program: Box<dyn Program>,
    block_size: usize,
    step_tokens: usize,
    weight_bytes: u64,
}

pub fn judge(loaded: &Loaded, engine: &dyn Engine, asked: Option<usize>) -> Result<Fit> {
    let longest = loaded.model.built.max_context;
    ensure!(
        asked.is_none_or(|n| n <= longest),
        "--ctx-size {} is more than the model's context of {longest} tokens; give a smaller number",
        asked.unwrap_or_default()
    );
    let room = memory::available_bytes().zip(memory::cache_bytes()).map(|(all, cache)| Room { all, cache });
    let mut needs = Needs::new(loaded, engine)?;
    let mut fit = needs.at(asked.unwrap_or(longest))?;
    if let Some(room) = room {
        fit.available_bytes = Some(room.all);
        fit.fits = Some(fit.is_within(room));
        fit.largest_context = Some(needs.largest(longest, room)?);
    }
    Ok(fit)
}

impl<'a> Needs<'a> {
    fn new(loaded: &'a Loaded, engine: &dyn Engine) -> Result<Self> {
        let Caps { block_size, step_tokens, .. } = engine.caps();
        // The plan is the same however long the cache is, so the smallest one will do.
        let program = engine.compile(&loaded.model.graph, &loaded.checkpoint, &sizes(1, block_size, 1))?;
        let tensors = loaded.checkpoint.names().filter_map(|name| loaded.checkpoint.info(name));
        let bytes = tensors.filter_map(|(dtype, shape)| dtype.storage_bytes(shape));
        let weight_bytes = bytes.fold(0u64, |sum, n| sum.saturating_add(n as u64));
        Ok(Needs { loaded, program, block_size, step_tokens, weight_bytes })
    }

    /// What a sequence of so many tokens takes.
    fn at(&mut self, context: usize) -> Result<Fit> {
        // An encoder sees a text in one step, a decoder a part of it.
        let (output, tokens) = match self.loaded.model.built.kind {
            ModelKind::Embed => (step::EMBEDDINGS, context),
            ModelKind::Generate => (step::SAMPLED, context.min(self.step_tokens)),
        };
        let sizes = sizes(context, self.block_size, tokens);
        let activation_bytes = self.program.working_bytes(&[output], &sizes)?;
        let slots = context.div_ceil(self.block_size).saturating_mul(self.block_size);
        let cache_bytes = self.loaded.bytes_per_token().saturating_mul(slots as u64);
        let state_bytes = self.loaded.bytes_per_sequence();
        let parts = [self.weight_bytes, cache_bytes, state_bytes, activation_bytes.unwrap_or(0)];
        Ok(Fit {
            context,
            weight_bytes: self.weight_bytes,
            cache_bytes,
            state_bytes,
            activation_bytes,
            total_bytes: parts.into_iter().fold(0, u64::saturating_add),
            available_bytes: None,
            fits: None,
            largest_context: None,
        })
    }

    /// The most tokens up to `longest` that are within `room`; more tokens never need less.
    fn largest(&mut self, longest: usize, room: Room) -> Result<usize> {
        let (mut fits, mut too_many) = (0, longest.saturating_add(1));
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.at(middle)?.is_within(room) {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        Ok(fits)
    }
}

/// One sequence with room for `context` tokens, of which a step computes `tokens`.
fn sizes(context: usize, block_size: usize, tokens: usize) -> Bindings {
    let blocks = context.div_ceil(block_size);
    let sizes = [("blocks", blocks), ("pages", blocks), ("block", block_size), ("tokens", tokens)];
    let ones = ["slots", "sequences", "rows"].map(|name| (name, 1));
    sizes.into_iter().chain(ones).map(|(name, size)| (name.to_string(), size)).collect()
}

impl Fit {
    fn is_within(&self, room: Room) -> bool {
        self.total_bytes <= room.all && self.cache_bytes <= room.cache
    }

    /// Lines of the table.
    pub fn rows(&self) -> Vec<[String; 2]> {
        let mut parts = vec![format!("weights {}", in_words(self.weight_bytes, "B"))];
        let mut part = |name: &str, bytes: u64| {
            if bytes > 0 {
                parts.push(format!("{name} {}", in_words(bytes, "B")));
            }
        };
        part("KV cache", self.cache_bytes);
        part("state", self.state_bytes);
        part("activations", self.activation_bytes.unwrap_or(0));
        let total = in_words(self.total_bytes, "B");
        let needed = format!("{total} at {} tokens: {}", self.context, parts.join(", "));
        vec![["memory".to_string(), needed], ["fits".to_string(), self.verdict()]]
    }

    fn verdict(&self) -> String {
        let (Some(available), Some(largest)) = (self.available_bytes, self.largest_context) else {
            return "unknown: this system does not say how much memory is available".to_string();
        };
        let available = in_words(available, "B");
        match (self.fits, largest) {
            (Some(true), _) => format!("yes: {available} are available, enough for {largest} tokens"),
            (_, 0) => format!("no: {available} are available"),
            _ => format!("no: {available} are available, enough for {largest} tokens"),
        }
    }
}
