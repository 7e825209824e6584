//! From a path to a model that a server can use: opened, sized by context and memory, compiled.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use mlxcel_engine::Engine;
use mlxcel_ir::Bindings;
use mlxcel_models::{EmbedOptions, ModelKind, Pooling};
use mlxcel_sched::{Limits, Runner, Traits};
use mlxcel_server::{EmbedError, Info, LoadError, Parts, Work};
use mlxcel_weights::Checkpoint;

use super::Serve;
use crate::budget::{self, StepSize};
use crate::cli::TypeArgs;
use crate::embed::{PoolingName, STEP_TOKENS};
use crate::embedder::Embedder;
use crate::engines::EngineArgs;
use crate::report::in_words;
use crate::session::Loaded;
use crate::vocabulary::{self, Vocabulary};
use crate::{engines, inspect, memory, say};

/// How models are loaded.
pub struct Loading {
    types: TypeArgs,
    engine: EngineArgs,
    embeddings: bool,
    pooling: Option<Pooling>,
    ctx_size: Option<usize>,
    parallel: usize,
    queue: usize,
    batch_size: Option<usize>,
}

/// How much a compiled model holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// Tokens of one request.
    context: usize,
    /// Tokens of all requests together.
    tokens: usize,
}

impl Loading {
    pub fn new(options: &Serve) -> Result<Self> {
        // Whether there is such an engine shows now, not with the first request.
        engines::open(&options.engine)?;
        Ok(Loading {
            types: options.types,
            engine: options.engine.clone(),
            embeddings: options.embeddings,
            pooling: options.pooling.map(|name| match name {
                PoolingName::Mean => Pooling::Mean,
                PoolingName::Cls => Pooling::Cls,
                PoolingName::Last => Pooling::Last,
            }),
            ctx_size: options.ctx_size.map(|n| n as usize),
            parallel: options.parallel.into(),
            queue: options.queue as usize,
            batch_size: options.batch_size.map(|n| n as usize),
        })
    }

    pub fn load(&self, path: &Path) -> Result<Parts> {
        let checkpoint = Checkpoint::open(path)?;
        let vocabulary = vocabulary::open(&checkpoint)?.ok_or_else(|| {
            anyhow!(
                "{} has no tokenizer, so it cannot read text; put tokenizer.json beside it",
                path.display()
            )
        })?;
        let explain = |error| inspect::explain(path, error);
        let engine = engines::open(&self.engine)?;
        if !self.embeddings {
            let types = engines::types(self.types, &engine.caps(), &checkpoint);
            let model = mlxcel_models::load(&checkpoint, types).map_err(explain)?;
            if model.built.kind == ModelKind::Generate {
                return self.generating((path, engine), Loaded { checkpoint, model }, vocabulary);
            }
        }
        let options = EmbedOptions { pooling: self.pooling, normalize: true };
        let dtype = engines::activation_type(self.types.dtype, &engine.caps(), &checkpoint);
        let model = mlxcel_models::load_embedder(&checkpoint, dtype, options).map_err(explain)?;
        self.embedding((path, engine), Loaded { checkpoint, model }, vocabulary)
    }

    fn generating(
        &self,
        (path, engine): (&Path, Box<dyn Engine>),
        loaded: Loaded,
        vocabulary: Vocabulary,
    ) -> Result<Parts> {
        let size = self.size(&loaded, &*engine)?;
        let mut end_ids = loaded.model.eos_token_ids.clone();
        end_ids.extend(vocabulary.tokenizer.end_ids());
        let info = self.info(path, &loaded, &*engine, size.context);
        let (limits, traits) = (self.limits(&loaded, &*engine, size), traits(&loaded, size));
        let loaded = Arc::new(loaded);
        let make = move || {
            let runner = runner(&loaded, &*engine, limits, traits);
            runner.map_err(|error| LoadError { reason: format!("{error:#}") })
        };
        let Vocabulary { tokenizer, templates } = vocabulary;
        Ok(Parts { info, tokenizer, templates, end_ids, work: Work::Generate(Box::new(make)) })
    }

    fn embedding(
        &self,
        (path, engine): (&Path, Box<dyn Engine>),
        loaded: Loaded,
        vocabulary: Vocabulary,
    ) -> Result<Parts> {
        let context = self.context(&loaded)?;
        let info = self.info(path, &loaded, &*engine, context);
        let (tokens, sequences) = (self.batch_size.unwrap_or(STEP_TOKENS), self.parallel);
        let batches = Batches { embedder: Embedder::new(engine, loaded), tokens, sequences };
        let work = Work::Embed(Box::new(batches));
        let Vocabulary { tokenizer, templates } = vocabulary;
        Ok(Parts { info, tokenizer, templates, end_ids: Default::default(), work })
    }

    fn info(&self, path: &Path, loaded: &Loaded, engine: &dyn Engine, context: usize) -> Info {
        let caps = engine.caps();
        Info {
            family: loaded.model.family.to_string(),
            engine: caps.name.to_string(),
            device: caps.device,
            context,
            vocab_size: loaded.model.built.vocab_size,
            parallel: self.parallel,
            queue: self.queue,
            path: path.display().to_string(),
        }
    }

    /// Tokens of a request at most, whatever memory allows.
    fn context(&self, loaded: &Loaded) -> Result<usize> {
        let longest = loaded.model.built.max_context;
        let wanted = self.ctx_size.unwrap_or(longest);
        ensure!(
            wanted <= longest,
            "--ctx-size {wanted} is more than the model's context of {longest} tokens; give a smaller number"
        );
        Ok(wanted)
    }

    /// As many tokens as the requests could need, within memory; one request fits in any case.
    fn size(&self, loaded: &Loaded, engine: &dyn Engine) -> Result<Size> {
        let wanted = self.context(loaded)?;
        let state = loaded.bytes_per_sequence().saturating_mul(self.slots(loaded) as u64);
        let (each, memory) = (loaded.bytes_per_token(), self.cache_bytes(loaded, engine)?);
        let left = memory.map(|bytes| bytes.saturating_sub(state));
        let affordable = left.and_then(|bytes| bytes.checked_div(each));
        let affordable = affordable.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        if affordable < wanted {
            if self.ctx_size.is_some() || affordable < 2 {
                bail!(
                    "the cache for {wanted} tokens needs {}, but only {} of memory can be used for it; give a smaller \
                     --ctx-size or --parallel, or --kv-dtype f16",
                    in_words(each.saturating_mul(wanted as u64), "B"),
                    in_words(left.unwrap_or(0), "B"),
                );
            }
            say(&format!("note: memory is enough for requests of {affordable} tokens"));
        }
        let context = wanted.min(affordable);
        // Memory that is the engine's alone is of no use to others.
        let most = if engine.free_memory().is_some() { usize::MAX } else { TOKENS_MAX.max(context) };
        Ok(Size { context, tokens: context.saturating_mul(self.parallel).min(affordable).min(most) })
    }

    /// What the cache may take; how the memory of a device is shared out is told.
    fn cache_bytes(&self, loaded: &Loaded, engine: &dyn Engine) -> Result<Option<u64>> {
        let step = StepSize { tokens: self.step_tokens(engine), sequences: self.parallel };
        let Some(free) = engine.free_memory() else { return Ok(memory::cache_bytes()) };
        let budget = budget::share(free, loaded, step)?;
        say(&format!(
            "{}: {} free, of which {} for weights, {} for work and up to {} for the cache",
            engine.caps().device,
            in_words(free, "B"),
            in_words(budget.weights, "B"),
            in_words(budget.work, "B"),
            in_words(budget.cache, "B"),
        ));
        Ok(Some(budget.cache))
    }

    /// Every sequence has at least one token in a step.
    fn step_tokens(&self, engine: &dyn Engine) -> usize {
        self.batch_size.unwrap_or(engine.caps().step_tokens).max(self.parallel)
    }

    /// With recurrent state, as many slots again keep what prompts have in common.
    fn slots(&self, loaded: &Loaded) -> usize {
        if loaded.bytes_per_sequence() > 0 { 2 * self.parallel } else { self.parallel }
    }

    fn limits(&self, loaded: &Loaded, engine: &dyn Engine, size: Size) -> Limits {
        let block_size = engine.caps().block_size;
        Limits {
            blocks: size.tokens.div_ceil(block_size).max(1),
            block_size,
            slots: self.slots(loaded),
            batch_tokens_max: self.step_tokens(engine),
            sequences_max: self.parallel,
            queue_max: self.queue,
        }
    }
}

/// Tokens of a cache that nobody asked to be larger.
const TOKENS_MAX: usize = 1 << 18;

fn traits(loaded: &Loaded, size: Size) -> Traits {
    let built = &loaded.model.built;
    Traits {
        max_context: size.context,
        vocab_size: built.vocab_size,
        is_recurrent: loaded.bytes_per_sequence() > 0,
        keeps_cache: loaded.bytes_per_token() > 0,
        recompute_past: built.recompute_past,
        lengths_matter_past: built.lengths_matter_past,
    }
}

fn runner(loaded: &Loaded, engine: &dyn Engine, limits: Limits, traits: Traits) -> Result<Runner> {
    let sizes = [("blocks", limits.blocks), ("block", limits.block_size), ("slots", limits.slots)];
    let dims = Bindings::from(sizes.map(|(name, size)| (name.to_string(), size)));
    let program = engine.compile(&loaded.model.graph, &loaded.checkpoint, &dims);
    let program = program.context("it cannot be compiled; a smaller --ctx-size or --parallel may help")?;
    Ok(Runner::new(program, limits, traits))
}

/// Vectors of any number of sequences, some at a time.
struct Batches {
    embedder: Embedder,
    /// Of one step at most, unless a single sequence has more.
    tokens: usize,
    sequences: usize,
}

impl mlxcel_server::Embedder for Batches {
    fn embed(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let mut vectors = Vec::with_capacity(sequences.len());
        let mut rest = sequences;
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = |sequence: &&Vec<u32>| {
                tokens += sequence.len();
                tokens <= self.tokens
            };
            let count = rest.iter().take(self.sequences).take_while(fits).count().max(1);
            let step: Vec<&[u32]> = rest[..count].iter().map(Vec::as_slice).collect();
            let made = self.embedder.embed(&step);
            vectors.extend(made.map_err(|error| EmbedError { reason: format!("{error:#}") })?);
            rest = &rest[count..];
        }
        Ok(vectors)
    }
}
